//! A CA and the certificate that it signed for the webhook server: made, and judged.

use std::fmt;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::Error;
use super::validity::not_after;

/// A certificate holds from this long before it was made: clocks differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// All in PEM. `Debug` prints no keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credential {
    /// Certificate of the CA.
    pub(crate) ca: String,
    /// Its key. Never used again; kept because KusionStack's manager looks for it.
    pub(crate) ca_key: String,
    /// What is served.
    pub(crate) certificate: String,
    /// Its key.
    pub(crate) key: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

impl Credential {
    /// A new CA and its only certificate, ECDSA P-256.
    ///
    /// # Errors
    /// Nobody could call by a name, or there are no random numbers.
    pub(crate) fn issue(names: &[String], now: SystemTime, life: Duration) -> Result<Self, Error> {
        let dates = |params: &mut CertificateParams| {
            params.not_before = (now - CLOCK_SKEW).into();
            params.not_after = (now + life).into();
        };
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut ca = CertificateParams::default();
        dates(&mut ca);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Two CAs lie in one bundle: the name tells clients which of them to try.
        ca.distinguished_name
            .push(DnType::CommonName, format!("webhook-cert-ca {seconds}"));
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

        let mut leaf = CertificateParams::new(names)?;
        dates(&mut leaf);
        leaf.distinguished_name
            .push(DnType::CommonName, "ctrlmesh webhook server");
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &ca)?;
        let issued = Self {
            ca: ca.pem(),
            ca_key: ca.key().serialize_pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        };
        // Otherwise it would be made again and again.
        if issued.is_accepted(names, now) {
            Ok(issued)
        } else {
            Err(Error::Names(names.join(", ")))
        }
    }

    /// When the first of its certificates ends.
    pub(crate) fn expires(&self) -> Option<SystemTime> {
        [&self.ca, &self.certificate]
            .into_iter()
            .map(|pem| certificates(pem).first().and_then(|der| not_after(der)))
            .min()?
    }

    /// For rustls to serve.
    ///
    /// # Errors
    /// Something is no PEM, or the key is another certificate's.
    pub(crate) fn certified_key(&self) -> Result<CertifiedKey, Error> {
        let chain = certificates(&self.certificate);
        if chain.is_empty() {
            return Err(Error::NotPem("certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| Error::NotPem("private key"))?;
        CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).map_err(Error::Pair)
    }

    /// Whether someone who trusts its CA accepts it at a time, by each of the names; by none: by some name.
    pub(crate) fn is_accepted(&self, names: &[String], now: SystemTime) -> bool {
        // rustls takes the word of a CA that has ended; API servers don't.
        self.expires().is_some_and(|end| now < end)
            && self.certified_key().is_ok()
            && verify(&self.certificate, &certificates(&self.ca), names, now)
    }
}

/// Whether someone who trusts some CAs accepts a certificate, by each of the names.
pub(super) fn verify(certificate: &str, authorities: &[CertificateDer<'_>], names: &[String], now: SystemTime) -> bool {
    let mut roots = RootCertStore::empty();
    for authority in authorities
        .iter()
        .filter(|der| not_after(der).is_some_and(|end| now < end))
    {
        if roots.add(authority.clone().into_owned()).is_err() {
            return false;
        }
    }
    let chain = certificates(certificate);
    let Some((leaf, intermediates)) = chain.split_first() else {
        return false;
    };
    let Ok(leaf) = ParsedCertificate::try_from(leaf) else {
        return false;
    };
    let now = UnixTime::since_unix_epoch(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&leaf, &roots, intermediates, now, algorithms).is_ok()
        && names
            .iter()
            .all(|name| ServerName::try_from(name.as_str()).is_ok_and(|name| verify_server_name(&leaf, &name).is_ok()))
}

/// The certificates of a PEM text; what is none is left out.
pub(super) fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .filter_map(Result::ok)
        .collect()
}
