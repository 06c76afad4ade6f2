//! A CA and the server certificate that it signed: issues and checks them.

use std::fmt;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use rustls::RootCertStore;
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

use super::Error;
use super::plan::{Leaf, Schedule};
use super::validity::{common_name, not_after};

/// What certificates are for. Nobody looks at it but people.
const SERVER: &str = "ctrlmesh server";

/// A certificate holds from this long before it was made: clocks differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// All in PEM. `Debug` prints no keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credential {
    /// Certificate of the CA.
    pub(crate) ca: String,
    /// Its key. The webhooks' is never used again, and kept because KusionStack's manager looks for it.
    pub(crate) ca_key: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

impl Credential {
    /// A new CA and its first certificate, ECDSA P-256.
    ///
    /// # Errors
    /// Nobody could call by a name, or there are no random numbers.
    pub(crate) fn issue(names: &[String], now: SystemTime, schedule: &Schedule) -> Result<Self, Error> {
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut ca = CertificateParams::default();
        dates(&mut ca, now, now + schedule.life);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Two CAs lie in one bundle: the name tells clients which of them to try.
        ca.distinguished_name
            .push(DnType::CommonName, format!("ctrlmesh-ca {seconds}"));
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let end = now + schedule.leaf.map_or(schedule.life, |leaf| leaf.life.min(schedule.life));
        let key = KeyPair::generate()?;
        let issued = Self {
            ca: ca.pem(),
            ca_key: ca.key().serialize_pem(),
            certificate: sign(names, now, end, &key, &ca)?,
            key: key.serialize_pem(),
        };
        issued.checked(names, now)
    }

    /// The same CA, and another certificate of it.
    ///
    /// # Errors
    /// As [`Self::issue`], or the CA's key is not that of its certificate.
    pub(super) fn signed_again(&self, names: &[String], now: SystemTime, leaf: &Leaf) -> Result<Self, Error> {
        let authority = certificates(&self.ca);
        let (Some(name), Some(end)) = (
            authority.first().and_then(|der| common_name(der)),
            authority.first().and_then(|der| not_after(der)),
        ) else {
            return Err(Error::NotPem("CA"));
        };
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = Issuer::new(params, KeyPair::from_pem(&self.ca_key)?);
        let key = KeyPair::generate()?;
        let signed = Self {
            certificate: sign(names, now, end.min(now + leaf.life), &key, &issuer)?,
            key: key.serialize_pem(),
            ..self.clone()
        };
        signed.checked(names, now)
    }

    /// Otherwise it would be made again and again.
    fn checked(self, names: &[String], now: SystemTime) -> Result<Self, Error> {
        if self.is_accepted(names, now) {
            Ok(self)
        } else {
            Err(Error::Names(names.join(", ")))
        }
    }

    /// Whether the CA should, and can, sign another certificate.
    pub(super) fn is_due(&self, leaf: &Leaf, names: &[String], now: SystemTime) -> bool {
        let (Some(ca), end) = (expiry(&self.ca), expiry(&self.certificate)) else {
            return false;
        };
        // One that ends with its CA is its last.
        let ends_soon = end.is_none_or(|end| end < ca && end <= now + leaf.renew_before);
        now < ca && self.can_sign() && (ends_soon || !self.is_accepted(names, now))
    }

    /// Whether it has its CA's key.
    fn can_sign(&self) -> bool {
        let authority = certificates(&self.ca);
        let (Some(authority), Ok(key)) = (authority.first(), KeyPair::from_pem(&self.ca_key)) else {
            return false;
        };
        let key = key.subject_public_key_info();
        authority.windows(key.len()).any(|part| part == key)
    }

    /// When something must have come in its place.
    pub(super) fn lives_until(&self, schedule: &Schedule) -> Option<SystemTime> {
        if schedule.leaf.is_some() && self.can_sign() {
            expiry(&self.ca)
        } else {
            self.expires()
        }
    }

    /// When the first of its certificates ends.
    pub(crate) fn expires(&self) -> Option<SystemTime> {
        [&self.ca, &self.certificate].into_iter().map(|pem| expiry(pem)).min()?
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

fn expiry(pem: &str) -> Option<SystemTime> {
    not_after(certificates(pem).first()?)
}

fn dates(params: &mut CertificateParams, now: SystemTime, end: SystemTime) {
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = end.into();
}

/// A server's certificate, PEM.
fn sign(
    names: &[String],
    now: SystemTime,
    end: SystemTime,
    key: &KeyPair,
    ca: &Issuer<'_, KeyPair>,
) -> Result<String, Error> {
    let mut leaf = CertificateParams::new(names)?;
    dates(&mut leaf, now, end);
    leaf.distinguished_name.push(DnType::CommonName, SERVER);
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    Ok(leaf.signed_by(key, ca)?.pem())
}

/// Whether someone who trusts some CAs accepts a certificate, by each of the names.
pub(crate) fn verify(certificate: &str, authorities: &[CertificateDer<'_>], names: &[String], now: SystemTime) -> bool {
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
pub(crate) fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .filter_map(Result::ok)
        .collect()
}
