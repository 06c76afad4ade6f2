//! SHA-256 of a plugin's bytes: how the chain names a plugin.
//!
//! Leaves open what the bytes are; everywhere in this project they are the unpacked WebAssembly component.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// How a digest starts in text, as in OCI descriptors.
const PREFIX: &str = "sha256:";

/// A SHA-256 digest. Text form: `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Digest of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The 64 hexadecimal digits alone.
    #[must_use]
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Reads the 64 hexadecimal digits alone. Upper case is refused: a digest has one spelling, so that names of files
    /// made from it are unique.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || text.bytes().any(|b| b.is_ascii_uppercase()) {
            return None;
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).ok()?;
        Some(Self(bytes))
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        text.strip_prefix(PREFIX)
            .and_then(Self::from_hex)
            .ok_or_else(|| Error::digest(text))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-4, the digest of the empty message.
    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn text_form_round_trips() {
        assert_eq!(Digest::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse::<Digest>().unwrap(), Digest::of(b""));
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "",
            "sha256:",
            "sha512:00",
            &EMPTY.to_uppercase(),
            &EMPTY[7..],
            &format!("{EMPTY}00"),
            "sha256:zz",
        ] {
            let error = text.parse::<Digest>().unwrap_err().to_string();
            assert!(error.contains("64 lower-case hexadecimal digits"), "{error}");
        }
        assert_eq!(Digest::from_hex(&Digest::of(b"a").hex().to_uppercase()), None);
    }
}
