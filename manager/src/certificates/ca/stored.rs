//! The content of the Secret: the served credential, the next one, and CAs whose certificates may still be served somewhere. Its
//! first keys are those of KusionStack's manager.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::credential::{Credential, parse_certificates};
use super::validity::not_after;

const CA: &str = "ca-cert.pem";
const CA_KEY: &str = "ca-key.pem";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Copies of both under the names that KusionStack's manager reads, so that a cluster can go back to it.
const COPIES: [(&str, &str); 2] = [(CERTIFICATE, "cert.pem"), (KEY, "key.pem")];
/// Prefix of the keys of the next credential.
const NEXT: &str = "next-";
const RETIRED: &str = "retired-ca-certs.pem";

/// The content of the Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) current: Option<Credential>,
    /// The next credential, which is served once every client trusts its CA.
    pub(crate) next: Option<Credential>,
    /// CAs of earlier credentials, PEM. A replica that has not seen the Secret's last change still serves one.
    pub(crate) retired: Vec<String>,
}

impl Stored {
    /// Reads the Secret. Missing or invalid keys count as not created yet.
    pub(crate) fn from_secret(secret: &Secret) -> Self {
        let text = |key: &str| {
            let bytes = &secret.data.as_ref()?.get(key)?.0;
            Some(std::str::from_utf8(bytes).ok()?.to_owned())
        };
        let credential = |prefix: &str| {
            let text = |key: &str| text(&format!("{prefix}{key}"));
            Some(Credential {
                ca: text(CA)?,
                ca_key: text(CA_KEY).unwrap_or_default(),
                certificate: text(CERTIFICATE)?,
                key: text(KEY)?,
            })
        };
        Self {
            current: credential(""),
            next: credential(NEXT),
            retired: text(RETIRED).map(|pem| split_certificates(&pem)).unwrap_or_default(),
        }
    }

    /// Writes the content into a Secret's data, which may have other keys.
    pub(crate) fn write(&self, data: &mut BTreeMap<String, ByteString>) {
        let mut set = |key: String, value: Option<&str>| match value {
            Some(value) => drop(data.insert(key, ByteString(value.as_bytes().to_vec()))),
            None => drop(data.remove(&key)),
        };
        for (prefix, credential) in [("", &self.current), (NEXT, &self.next)] {
            let credential = credential.as_ref();
            set(format!("{prefix}{CA}"), credential.map(|it| it.ca.as_str()));
            set(format!("{prefix}{CA_KEY}"), credential.map(|it| it.ca_key.as_str()));
            set(
                format!("{prefix}{CERTIFICATE}"),
                credential.map(|it| it.certificate.as_str()),
            );
            set(format!("{prefix}{KEY}"), credential.map(|it| it.key.as_str()));
        }
        let retired = self.retired.concat();
        set(RETIRED.to_owned(), (!retired.is_empty()).then_some(retired.as_str()));
        for (key, copy) in COPIES {
            if let Some(value) = data.get(key).cloned() {
                data.insert(copy.to_owned(), value);
            }
        }
    }

    pub(super) fn credentials(&self) -> impl Iterator<Item = &Credential> {
        self.current.iter().chain(&self.next)
    }

    pub(super) fn credentials_mut(&mut self) -> impl Iterator<Item = &mut Credential> {
        self.current.iter_mut().chain(&mut self.next)
    }

    /// Every CA that clients must trust, PEM.
    pub(crate) fn trust_bundle(&self) -> String {
        let served = [&self.current, &self.next].into_iter().flatten();
        served
            .map(|it| it.ca.as_str())
            .chain(self.retired.iter().map(String::as_str))
            .collect()
    }

    /// Adds a CA to the retired ones, unless it has expired or is invalid.
    pub(super) fn retire_ca(&mut self, credential: Option<Credential>, now: SystemTime) {
        self.retired
            .extend(credential.iter().flat_map(|it| split_certificates(&it.ca)));
        self.forget_ended(now);
    }

    /// Removes retired CAs that have expired.
    pub(super) fn forget_ended(&mut self, now: SystemTime) {
        self.retired.retain(|pem| expiry_of(pem).is_some_and(|end| now < end));
    }

    /// When the next of the retired CAs expires.
    pub(super) fn retired_until(&self) -> Option<SystemTime> {
        self.retired.iter().filter_map(|pem| expiry_of(pem)).min()
    }
}

fn expiry_of(pem: &str) -> Option<SystemTime> {
    not_after(parse_certificates(pem).first()?)
}

/// Splits a PEM text into its certificates.
pub(crate) fn split_certificates(pem: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    pem.split_inclusive(END)
        .filter(|block| block.ends_with(END))
        .map(|block| format!("{}\n", block.trim_start()))
        .collect()
}
