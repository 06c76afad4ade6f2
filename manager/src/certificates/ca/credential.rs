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
use super::validity::{common_name, not_after};
use crate::certificates::lifetimes::{Leaf, Schedule};

/// Common name of server certificates. Only people read it.
const SERVER: &str = "ctrlmesh server";

/// Certificates are valid from this long before they were issued, because clocks differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// All in PEM. `Debug` prints no keys.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credential {
    /// Certificate of the CA.
    pub(crate) ca: String,
    /// Key of the CA. The webhooks' is never used again, but kept because KusionStack's manager looks for it.
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
    /// Issues a new CA and its first certificate, ECDSA P-256.
    ///
    /// # Errors
    /// A name is invalid, or there are no random numbers.
    pub(crate) fn issue(names: &[String], now: SystemTime, schedule: &Schedule) -> Result<Self, Error> {
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut ca = CertificateParams::default();
        set_dates(&mut ca, now, now + schedule.life);
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        // Two CAs are in one bundle. By the name, clients know which of them to try.
        ca.distinguished_name
            .push(DnType::CommonName, format!("ctrlmesh-ca {seconds}"));
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
        let end = now + schedule.leaf.map_or(schedule.life, |leaf| leaf.life.min(schedule.life));
        let key = KeyPair::generate()?;
        let issued = Self {
            ca: ca.pem(),
            ca_key: ca.key().serialize_pem(),
            certificate: sign_certificate(names, now, end, &key, &ca)?,
            key: key.serialize_pem(),
        };
        issued.ensure_valid(names, now)
    }

    /// Issues another certificate of the same CA.
    ///
    /// # Errors
    /// As [`Self::issue`], or the CA's key does not match its certificate.
    pub(super) fn signed_again(&self, names: &[String], now: SystemTime, leaf: &Leaf) -> Result<Self, Error> {
        let authority = parse_certificates(&self.ca);
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
            certificate: sign_certificate(names, now, end.min(now + leaf.life), &key, &issuer)?,
            key: key.serialize_pem(),
            ..self.clone()
        };
        signed.ensure_valid(names, now)
    }

    /// Fails if the certificate would be refused; otherwise it would be issued again and again.
    fn ensure_valid(self, names: &[String], now: SystemTime) -> Result<Self, Error> {
        if self.is_accepted(names, now) {
            Ok(self)
        } else {
            Err(Error::Names(names.join(", ")))
        }
    }

    /// Whether the CA should sign another certificate, and can.
    pub(super) fn is_due(&self, leaf: &Leaf, names: &[String], now: SystemTime) -> bool {
        let (Some(ca), end) = (expiry_of(&self.ca), expiry_of(&self.certificate)) else {
            return false;
        };
        // A certificate that expires with its CA is its last.
        let ends_soon = end.is_none_or(|end| end < ca && end <= now + leaf.renew_before);
        now < ca && self.can_sign() && (ends_soon || !self.is_accepted(names, now))
    }

    /// Whether the CA's key is there.
    fn can_sign(&self) -> bool {
        let authority = parse_certificates(&self.ca);
        let (Some(authority), Ok(key)) = (authority.first(), KeyPair::from_pem(&self.ca_key)) else {
            return false;
        };
        let key = key.subject_public_key_info();
        authority.windows(key.len()).any(|part| part == key)
    }

    /// When a replacement must be in place.
    pub(super) fn lives_until(&self, schedule: &Schedule) -> Option<SystemTime> {
        if schedule.leaf.is_some() && self.can_sign() {
            expiry_of(&self.ca)
        } else {
            self.first_expiry()
        }
    }

    /// When the first of its certificates expires.
    pub(crate) fn first_expiry(&self) -> Option<SystemTime> {
        [&self.ca, &self.certificate]
            .into_iter()
            .map(|pem| expiry_of(pem))
            .min()?
    }

    /// The certificate and key in rustls's form.
    ///
    /// # Errors
    /// Something is not PEM, or the key does not match the certificate.
    pub(crate) fn certified_key(&self) -> Result<CertifiedKey, Error> {
        let chain = parse_certificates(&self.certificate);
        if chain.is_empty() {
            return Err(Error::NotPem("certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| Error::NotPem("private key"))?;
        CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).map_err(Error::Pair)
    }

    /// Whether a client that trusts the CA accepts the certificate for each of the names. Without names, any name will do.
    pub(crate) fn is_accepted(&self, names: &[String], now: SystemTime) -> bool {
        // rustls accepts a CA that has expired; API servers do not.
        self.first_expiry().is_some_and(|end| now < end)
            && self.certified_key().is_ok()
            && verify_certificate(&self.certificate, &parse_certificates(&self.ca), names, now)
    }
}

fn expiry_of(pem: &str) -> Option<SystemTime> {
    not_after(parse_certificates(pem).first()?)
}

fn set_dates(params: &mut CertificateParams, now: SystemTime, end: SystemTime) {
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = end.into();
}

/// Signs a server certificate, PEM.
fn sign_certificate(
    names: &[String],
    now: SystemTime,
    end: SystemTime,
    key: &KeyPair,
    ca: &Issuer<'_, KeyPair>,
) -> Result<String, Error> {
    let mut leaf = CertificateParams::new(names)?;
    set_dates(&mut leaf, now, end);
    leaf.distinguished_name.push(DnType::CommonName, SERVER);
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    Ok(leaf.signed_by(key, ca)?.pem())
}

/// Whether a client that trusts these CAs accepts a certificate for each of the names.
pub(crate) fn verify_certificate(
    certificate: &str,
    authorities: &[CertificateDer<'_>],
    names: &[String],
    now: SystemTime,
) -> bool {
    let mut roots = RootCertStore::empty();
    for authority in authorities
        .iter()
        .filter(|der| not_after(der).is_some_and(|end| now < end))
    {
        if roots.add(authority.clone().into_owned()).is_err() {
            return false;
        }
    }
    let chain = parse_certificates(certificate);
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

/// The certificates in a PEM text. Invalid ones are left out.
pub(crate) fn parse_certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .filter_map(Result::ok)
        .collect()
}
