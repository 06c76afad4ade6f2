//! The keys of lists, events and tables, about which all decoders of a body have to agree.

/// The keys that decide how a list, an event or a table is read.
const KNOWN_KEYS: [&str; 8] = [
    "kind",
    "apiVersion",
    "metadata",
    "items",
    "rows",
    "columnDefinitions",
    "type",
    "object",
];

/// Whether a decoder could take the key for a known one that it does not equal: Go's decoders ignore the case of
/// letters and fold some beyond ASCII, and others end a text at a NUL. The key is as it stands in the body, without
/// quotes. API servers write no such key, and no escape in a key, at the levels where this is asked.
pub(super) fn is_look_alike(key: &[u8]) -> bool {
    let is_plain = key.iter().all(|byte| byte.is_ascii() && !matches!(byte, 0 | b'\\'));
    let mut known_keys = KNOWN_KEYS.iter().map(|known| known.as_bytes());
    !is_plain || known_keys.any(|known| known != key && known.eq_ignore_ascii_case(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_decoders_could_confuse_are_look_alikes() {
        let look_alikes: [&[u8]; 7] = [
            b"Items",
            b"APIVERSION",
            b"columndefinitions",
            br"it\u0065ms",
            b"items\0",
            "\u{212a}ind".as_bytes(),
            b"\xff",
        ];
        for key in look_alikes {
            assert!(is_look_alike(key), "{key:x?}");
        }
        let others: [&[u8]; 7] = [b"", b"items", b"apiVersion", b"item", b"itemss", b"code", b"x-y"];
        for key in others {
            assert!(!is_look_alike(key), "{key:x?}");
        }
    }
}
