use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    RSA_PKCS1_SHA256, RsaKeyPair,
};
use ctrlmesh_contract::Digest;
use ctrlmesh_testkit::registry::signature_payload;
use serde_json::json;

use super::*;

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).unwrap())
        .collect();
    format!(
        "-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n",
        lines.join("\n")
    )
}

fn spki(key: &impl AsDer<PublicKeyX509Der<'static>>) -> String {
    pem(key.as_der().unwrap().as_ref())
}

fn manifest() -> String {
    Digest::of(b"manifest").to_string()
}

fn one_signature(text: &[u8], signature: &[u8]) -> Vec<Signed> {
    let manifest = json!({
        "schemaVersion": 2,
        "config": {"mediaType": "", "digest": "", "size": 0},
        "layers": [
            {"mediaType": "text/plain", "digest": Digest::of(b"").to_string(), "size": 0},
            {"mediaType": TEXT, "digest": Digest::of(text).to_string(), "size": text.len(), "annotations": {ANNOTATION: STANDARD.encode(signature)}},
        ],
    });
    signed_layers(&serde_json::from_value(manifest).unwrap())
}

#[test]
fn signatures_by_every_key_type_of_cosign_verify() {
    let text = signature_payload("example.com/you/plugin", &manifest());
    let random = SystemRandom::new();
    let p256 = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
    let p384 = EcdsaKeyPair::generate(&ECDSA_P384_SHA384_ASN1_SIGNING).unwrap();
    let ed25519 = Ed25519KeyPair::generate().unwrap();
    let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    let mut by_rsa = vec![0; rsa.public_modulus_len()];
    rsa.sign(&RSA_PKCS1_SHA256, &random, &text, &mut by_rsa).unwrap();
    let signatures = [
        (
            spki(p256.public_key()),
            p256.sign(&random, &text).unwrap().as_ref().to_vec(),
        ),
        (
            spki(p384.public_key()),
            p384.sign(&random, &text).unwrap().as_ref().to_vec(),
        ),
        (spki(ed25519.public_key()), ed25519.sign(&text).as_ref().to_vec()),
        (spki(rsa.public_key()), by_rsa),
    ];
    for (index, (key, signature)) in signatures.iter().enumerate() {
        let signed = one_signature(&text, signature);
        assert_eq!(signed.len(), 1);
        for (other, (key_of_other, _)) in signatures.iter().enumerate() {
            let key_of_other = VerificationKey::parse(key_of_other).unwrap();
            assert_eq!(signed[0].is_of(&manifest(), &text, &key_of_other), index == other);
        }
        let key = VerificationKey::parse(key).unwrap();
        let mut changed = text.clone();
        changed.push(b' ');
        assert!(!signed[0].is_of(&manifest(), &changed, &key));
    }
}

#[test]
fn signature_of_other_manifest_or_type_is_refused() {
    let key = Ed25519KeyPair::generate().unwrap();
    let public = VerificationKey::parse(&spki(key.public_key())).unwrap();
    let counts = |text: &[u8]| one_signature(text, key.sign(text).as_ref())[0].is_of(&manifest(), text, &public);
    assert!(counts(&signature_payload("a/b", &manifest())));
    assert!(!counts(&signature_payload("a/b", &Digest::of(b"other").to_string())));
    let other = String::from_utf8(signature_payload("a/b", &manifest()))
        .unwrap()
        .replace(KIND, "a receipt");
    assert!(!counts(other.as_bytes()));
    assert!(!counts(b"{}"));
}

#[test]
fn invalid_key_error_shows_valid_form() {
    let private = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAA=\n-----END PRIVATE KEY-----\n";
    for (text, expected) in [
        ("", "no PEM block"),
        ("MFkw", "no PEM block"),
        (private, "no PEM block"),
        (pem(b"nonsense").as_str(), "none of ECDSA"),
    ] {
        let problem = VerificationKey::parse(text).map(drop).unwrap_err();
        assert!(
            problem.contains(expected) && problem.contains("cosign.pub"),
            "{problem}"
        );
    }
}

#[test]
fn signature_tag_is_that_of_cosign() {
    assert_eq!(signature_tag("sha256:0a"), "sha256-0a.sig");
}
