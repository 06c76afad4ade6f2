//! The pod's own labels, from the file that kubelet writes for a downward-API volume.
//!
//! Format (kubernetes `pkg/fieldpath/fieldpath.go`, `FormatMap`): one `key="value"` per line, with the value as Go's `%q` writes it. Leaves
//! reading the file to `directory.rs`.

use std::collections::BTreeMap;

/// Largest labels file: the API server allows 256 KiB of annotations, and labels are smaller.
pub(crate) const MAX_LABELS_BYTES: usize = 256 * 1024;

/// Parses the content of the file. The error names the line and what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (key, value) = parse_label(line).ok_or_else(|| format!("line {} is not key=\"value\"", at + 1))?;
        labels.insert(key.to_owned(), value);
    }
    Ok(labels)
}

fn parse_label(line: &str) -> Option<(&str, String)> {
    let (key, quoted) = line.split_once('=')?;
    let inner = quoted.trim_end().strip_prefix('"')?.strip_suffix('"')?;
    Some((key, unquote(inner)?))
}

/// Decodes the text between the quotes of a Go string (`strconv.Unquote`). A lone `"` or `\` is invalid.
fn unquote(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' => return None,
            '\\' => push_unescaped(&mut rest, &mut out)?,
            c => push_char(c, &mut out),
        }
    }
    String::from_utf8(out).ok()
}

fn push_unescaped(rest: &mut std::str::Chars<'_>, out: &mut Vec<u8>) -> Option<()> {
    let c = match rest.next()? {
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        c @ ('\\' | '"') => c,
        // The escape is one byte, maybe a part of a character.
        'x' => {
            out.push(u8::try_from(parse_hexadecimal(rest, 2)?).ok()?);
            return Some(());
        }
        'u' => char::from_u32(parse_hexadecimal(rest, 4)?)?,
        'U' => char::from_u32(parse_hexadecimal(rest, 8)?)?,
        _ => return None,
    };
    push_char(c, out);
    Some(())
}

fn parse_hexadecimal(rest: &mut std::str::Chars<'_>, digits: u32) -> Option<u32> {
    (0..digits).try_fold(0u32, |number, _| Some((number << 4) | rest.next()?.to_digit(16)?))
}

fn push_char(c: char, out: &mut Vec<u8>) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_file_of_kubelet_is_parsed() {
        let text = "app=\"demo\"\nctrlmesh.kusionstack.io/enable-proxy=\"true\"\nempty=\"\"\n";
        let labels = parse(text).unwrap();
        let expected = [
            ("app", "demo"),
            ("ctrlmesh.kusionstack.io/enable-proxy", "true"),
            ("empty", ""),
        ];
        assert_eq!(
            labels.into_iter().collect::<Vec<_>>(),
            expected.map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
        assert_eq!(parse("").unwrap(), BTreeMap::new());
    }

    #[test]
    fn labels_with_go_escapes_are_parsed() {
        let labels = parse(r#"a="\"\\\n\t\x41\u00fc\U0001f600\xc3\xbc""#).unwrap();
        assert_eq!(labels["a"], "\"\\\n\tAü😀ü");
    }

    #[test]
    fn labels_error_names_invalid_line() {
        for bad in [
            "a",
            "a=b",
            "a=\"b",
            "a=\"\"\"",
            "a=\"\\",
            "a=\"\\q\"",
            "a=\"\\x4\"",
            "a=\"\\ud800\"",
            "a=\"\\xff\"",
        ] {
            let error = parse(&format!("x=\"y\"\n{bad}\n")).unwrap_err();
            assert_eq!(error, "line 2 is not key=\"value\"", "{bad}");
        }
    }

    proptest! {
        #[test]
        fn labels_parser_never_panics(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}
