//! `spec.plugins[].verificationKey`: a public key that cosign can sign with.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, VerificationAlgorithm,
};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;

/// Algorithms, by the keys that cosign makes or accepts: P-256 by default; the others by `cosign import-key-pair` and from key
/// management services. With P-384, older versions of cosign hash with SHA-256, newer ones with SHA-384.
const ALGORITHMS: [&dyn VerificationAlgorithm; 5] = [
    &ECDSA_P256_SHA256_ASN1,
    &ECDSA_P384_SHA256_ASN1,
    &ECDSA_P384_SHA384_ASN1,
    &ED25519,
    &RSA_PKCS1_2048_8192_SHA256,
];

/// A public key that images are signed with.
pub struct VerificationKey(Vec<ParsedPublicKey>);

impl VerificationKey {
    /// Parses a PEM text, as cosign writes it into `cosign.pub`.
    ///
    /// # Errors
    /// The mistake, and what to write instead.
    pub fn parse(pem: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            Err(format!(
                "is no public key: {what}; write the PEM text that `cosign generate-key-pair` has put into cosign.pub"
            ))
        };
        let Ok(key) = SubjectPublicKeyInfoDer::from_pem_slice(pem.as_bytes()) else {
            return wrong("there is no PEM block PUBLIC KEY in it");
        };
        let fits = |algorithm: &&'static dyn VerificationAlgorithm| ParsedPublicKey::new(*algorithm, key.as_ref()).ok();
        let keys: Vec<ParsedPublicKey> = ALGORITHMS.iter().filter_map(fits).collect();
        if keys.is_empty() {
            return wrong("it is none of ECDSA P-256, ECDSA P-384, Ed25519 and RSA with 2048 bits or more");
        }
        Ok(Self(keys))
    }

    /// Whether the signature over these bytes was made with this key.
    #[must_use]
    pub fn has_signed(&self, bytes: &[u8], signature: &[u8]) -> bool {
        self.0.iter().any(|key| key.verify_sig(bytes, signature).is_ok())
    }
}
