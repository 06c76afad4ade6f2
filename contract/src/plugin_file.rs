//! Names of the files that carry plugin bytes: `<sha256>.wasm` and `<sha256>.wasm.zst`.
//!
//! The digest is always that of the unpacked bytes, so that packing a plugin anew does not make it another plugin.
//! Leaves reading and unpacking to the sidecar.

use crate::digest::Digest;

/// Largest plugin, unpacked. A component of the SDK is some 100 KiB; the largest in the wild (with a language runtime
/// inside) are below 12 MiB. Bounds what a sidecar reads, hashes and compiles.
pub const MAX_PLUGIN_BYTES: usize = 16 * 1024 * 1024;

/// How the bytes lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Uncompressed.
    Plain,
    /// One zstd stream.
    Zstd,
}

impl Encoding {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Plain => ".wasm",
            Self::Zstd => ".wasm.zst",
        }
    }
}

/// Name of the file (and of the key in a ConfigMap) that carries a plugin.
#[must_use]
pub fn file_name(digest: &Digest, encoding: Encoding) -> String {
    format!("{}{}", digest.hex(), encoding.suffix())
}

/// Reads such a name; `None` for any other.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<(Digest, Encoding)> {
    [Encoding::Zstd, Encoding::Plain]
        .into_iter()
        .find_map(|encoding| Some((Digest::from_hex(name.strip_suffix(encoding.suffix())?)?, encoding)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let digest = Digest::of(b"plugin");
        for encoding in [Encoding::Plain, Encoding::Zstd] {
            assert_eq!(parse_file_name(&file_name(&digest, encoding)), Some((digest, encoding)));
        }
        assert!(file_name(&digest, Encoding::Zstd).ends_with(".wasm.zst"));
    }

    #[test]
    fn other_names_are_not_plugins() {
        let hex = Digest::of(b"plugin").hex();
        for other in [
            "chain.yaml",
            "..data",
            ".wasm",
            &hex,
            &format!("{hex}.wat"),
            &format!("x{hex}.wasm"),
        ] {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }
}
