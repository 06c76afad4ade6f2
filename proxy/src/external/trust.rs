//! The trust store for external targets: the certificate authorities of the system, and those of a file.

use std::path::Path;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::error::Error;
use crate::upstream::Trust;

/// Reads both once, so a changed file needs a restart.
///
/// # Errors
/// The file cannot be read or holds no certificate. A system without authorities only causes a warning, because plain HTTP needs none.
pub(super) fn load(file: Option<&Path>) -> Result<Trust, Error> {
    let mut roots = RootCertStore::empty();
    // This respects `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::debug!(%error, "failed to read a certificate authority of the system");
    }
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = file {
        let unusable = |why: String| Error::ExternalCa {
            path: path.to_owned(),
            why,
        };
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unusable(error.to_string()))?;
        if certificates.is_empty() {
            return Err(unusable("it holds no certificate".to_owned()));
        }
        for certificate in certificates {
            roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
        }
    }
    if roots.is_empty() {
        tracing::warn!(
            "no certificate authorities found: https targets will not be trusted; set --external-ca-file \
             (CTRLMESH_EXTERNAL_CA_FILE)"
        );
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let settings = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Settings(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Trust::new(settings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_certificates_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ca.crt");
        std::fs::write(&file, "nothing").unwrap();
        for path in [file.clone(), directory.path().join("none.crt")] {
            let error = load(Some(&path)).unwrap_err().to_string();
            assert!(
                error.contains(&path.display().to_string()) && error.contains("--external-ca-file"),
                "{error}"
            );
        }
        let issued = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        std::fs::write(&file, issued.cert.pem()).unwrap();
        load(Some(&file)).unwrap();
    }
}
