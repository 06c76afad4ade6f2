//! Ed25519 signatures over the exact bytes of a chain document.
//!
//! The bytes are signed, not their meaning: a verifier parses nothing before it knows who wrote it. Leaves key storage to
//! the manager, and when a signature is required to the sidecar.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::Error;

/// How a public key starts in text.
const PREFIX: &str = "ed25519:";

/// Bytes of an Ed25519 public key (RFC 8032 §5.1.5).
const PUBLIC_KEY_BYTES: usize = 32;

/// Bytes of an Ed25519 signature (RFC 8032 §5.1.6).
const SIGNATURE_BYTES: usize = 64;

/// Keys that a sidecar trusts at a time: the one in use and its successor; the rest is slack.
const MAX_PUBLIC_KEYS: usize = 8;

/// Largest signature file: 88 characters of base64 and some line ends.
pub const MAX_SIGNATURE_FILE_BYTES: usize = 256;

/// Signs chains. `Debug` shows the public half alone.
pub struct SigningKey(Ed25519KeyPair);

impl SigningKey {
    /// Generates a new key.
    ///
    /// # Errors
    /// [`Error::Random`] if the system has no random numbers.
    pub fn generate() -> Result<Self, Error> {
        Ed25519KeyPair::generate().map(Self).map_err(|_| Error::Random)
    }

    /// Reads a key from PKCS #8 DER (RFC 5958), version 1 or 2.
    ///
    /// # Errors
    /// [`Error::PrivateKey`].
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, Error> {
        Ed25519KeyPair::from_pkcs8(der).map(Self).map_err(|_| Error::PrivateKey)
    }

    /// The key as PKCS #8 DER. A secret.
    ///
    /// # Errors
    /// [`Error::PrivateKey`] if it can't be encoded.
    pub fn to_pkcs8(&self) -> Result<Vec<u8>, Error> {
        self.0
            .to_pkcs8()
            .map(|der| der.as_ref().to_vec())
            .map_err(|_| Error::PrivateKey)
    }

    /// The public key that verifies signatures of this key.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        let mut bytes = [0; PUBLIC_KEY_BYTES];
        // Both sides are 32 bytes for Ed25519; `zip` says so without a panic.
        for (to, from) in bytes.iter_mut().zip(self.0.public_key().as_ref()) {
            *to = *from;
        }
        PublicKey(bytes)
    }

    /// Signs a document: the content of the signature file.
    #[must_use]
    pub fn sign(&self, document: &[u8]) -> String {
        let mut text = STANDARD.encode(self.0.sign(document).as_ref());
        text.push('\n');
        text
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public_key()).finish()
    }
}

/// A public key. Text form: `ed25519:` and the base64 of its 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; PUBLIC_KEY_BYTES]);

impl FromStr for PublicKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let problem = |problem| Error::PublicKey { problem };
        let encoded = text
            .strip_prefix(PREFIX)
            .ok_or_else(|| problem("it does not start with ed25519:"))?;
        let bytes = STANDARD.decode(encoded).map_err(|_| problem("it is not base64"))?;
        bytes.try_into().map(Self).map_err(|_| problem("it has not 32 bytes"))
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The keys that a sidecar trusts; one is enough for a document. More than one only while keys are changed: pods get the
/// new key beside the old one before the manager signs with it. Text form: keys separated by white space or commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKeys(Vec<PublicKey>);

impl PublicKeys {
    /// Checks the signature file against the document.
    ///
    /// # Errors
    /// [`Error::SignatureForm`] or [`Error::SignatureMismatch`].
    pub fn verify(&self, document: &[u8], signature_file: &[u8]) -> Result<(), Error> {
        let problem = |problem| Error::SignatureForm { problem };
        if signature_file.len() > MAX_SIGNATURE_FILE_BYTES {
            return Err(problem("the file is too long"));
        }
        let signature = STANDARD
            .decode(signature_file.trim_ascii())
            .map_err(|_| problem("it is not base64"))?;
        if signature.len() != SIGNATURE_BYTES {
            return Err(problem("it has another length"));
        }
        let fits = |key: &PublicKey| {
            UnparsedPublicKey::new(&ED25519, key.0)
                .verify(document, &signature)
                .is_ok()
        };
        if self.0.iter().any(fits) {
            Ok(())
        } else {
            Err(Error::SignatureMismatch)
        }
    }
}

impl From<PublicKey> for PublicKeys {
    fn from(key: PublicKey) -> Self {
        Self(vec![key])
    }
}

impl FromStr for PublicKeys {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let words = text
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|word| !word.is_empty());
        let keys = words.map(str::parse).collect::<Result<Vec<_>, _>>()?;
        match keys.len() {
            0 => Err(Error::PublicKey { problem: "it is empty" }),
            1..=MAX_PUBLIC_KEYS => Ok(Self(keys)),
            _ => Err(Error::PublicKey {
                problem: "there are more than 8 keys",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &[u8] = b"apiVersion: chain.ctrlmesh.kusionstack.io/v1\n";

    #[test]
    fn signature_is_valid_only_for_its_document_and_key() {
        let key = SigningKey::generate().unwrap();
        let keys = PublicKeys::from(key.public_key());
        let signature = key.sign(DOCUMENT);
        assert_eq!(keys.verify(DOCUMENT, signature.as_bytes()), Ok(()));
        assert_eq!(
            keys.verify(b"other", signature.as_bytes()),
            Err(Error::SignatureMismatch)
        );
        let other = PublicKeys::from(SigningKey::generate().unwrap().public_key());
        assert_eq!(
            other.verify(DOCUMENT, signature.as_bytes()),
            Err(Error::SignatureMismatch)
        );
    }

    #[test]
    fn any_of_several_keys_is_enough() {
        let (old, new) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
        let keys: PublicKeys = format!("{}, {}\n", old.public_key(), new.public_key()).parse().unwrap();
        for key in [old, new] {
            assert_eq!(keys.verify(DOCUMENT, key.sign(DOCUMENT).as_bytes()), Ok(()));
        }
    }

    /// RFC 8032 §7.1, test 2: keeps us compatible with every other implementation (`openssl pkeyutl -sign -rawin`).
    #[test]
    fn signatures_match_rfc_8032() {
        let public = hex::decode("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c").unwrap();
        let signature = hex::decode(concat!(
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da",
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ))
        .unwrap();
        let keys: PublicKeys = format!("ed25519:{}", STANDARD.encode(public)).parse().unwrap();
        assert_eq!(keys.verify(&[0x72], STANDARD.encode(signature).as_bytes()), Ok(()));
    }

    #[test]
    fn malformed_signatures_and_keys_are_distinguished() {
        let keys = PublicKeys::from(SigningKey::generate().unwrap().public_key());
        for signature in [&b""[..], b"!", b"AAAA", &[b'A'; 300]] {
            assert!(
                matches!(keys.verify(DOCUMENT, signature), Err(Error::SignatureForm { .. })),
                "{signature:?}"
            );
        }
        for text in ["", "abc", "ed25519:", "ed25519:AAAA", "ed25519:!", "rsa:AAAA"] {
            let error = text.parse::<PublicKeys>().unwrap_err();
            assert!(matches!(error, Error::PublicKey { .. }), "{text}: {error}");
        }
        let nine = [keys.0[0].to_string().as_str(); 9].join(",");
        assert!(nine.parse::<PublicKeys>().is_err());
    }

    #[test]
    fn key_round_trips_through_pkcs8_and_debug_hides_it() {
        let key = SigningKey::generate().unwrap();
        let der = key.to_pkcs8().unwrap();
        let again = SigningKey::from_pkcs8(&der).unwrap();
        assert_eq!(again.public_key(), key.public_key());
        assert_eq!(format!("{key:?}"), format!("SigningKey({})", key.public_key()));
        assert_eq!(SigningKey::from_pkcs8(b"nonsense").unwrap_err(), Error::PrivateKey);
    }
}
