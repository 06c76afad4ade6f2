//! The image that `spec.plugins[].image` names.

use oci_client::Reference;

use super::failure::{Failure, FailureReason};

/// A manifest of a repository in a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Image {
    /// The host as written: `docker.io`.
    pub(super) host: String,
    /// The host that requests go to: `index.docker.io`.
    pub(super) registry: String,
    /// Such as `you/plugin`.
    pub(super) repository: String,
    /// A tag, or a digest with `sha256:`.
    pub(super) target: String,
}

impl Image {
    /// Reads `oci://host/repository:tag` or `oci://host/repository@sha256:...`. If both are given, the tag is ignored.
    pub(super) fn parse(image: &str) -> Result<Self, Failure> {
        let wrong = |problem: String| {
            let message = format!("{problem}; write it like oci://ghcr.io/you/plugin:1.0");
            Failure::new(FailureReason::InvalidReference, message)
        };
        let Some(text) = image.strip_prefix("oci://") else {
            return Err(wrong("the image does not start with oci://".to_owned()));
        };
        let reference: Reference = text
            .parse()
            .map_err(|error| wrong(format!("the image is no reference: {error}")))?;
        let target = reference.digest().or(reference.tag());
        Ok(Self {
            host: reference.registry().to_owned(),
            registry: reference.resolve_registry().to_owned(),
            repository: reference.repository().to_owned(),
            target: target.unwrap_or("latest").to_owned(),
        })
    }

    /// The manifest with this digest in the same repository.
    pub(super) fn with_digest(self, manifest: &str) -> Self {
        Self {
            target: manifest.to_owned(),
            ..self
        }
    }

    /// Whether the image names a digest, so that its content never changes.
    pub(super) fn is_pinned(&self) -> bool {
        self.target.contains(':')
    }

    pub(super) fn manifest_reference(&self, manifest: &str) -> String {
        format!("oci://{}/{}@{manifest}", self.host, self.repository)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_wins_over_tag() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let image = Image::parse(&format!("oci://ghcr.io:443/you/plugin:1.0@{digest}")).unwrap();
        assert_eq!(
            (image.host.as_str(), image.repository.as_str()),
            ("ghcr.io:443", "you/plugin")
        );
        assert_eq!(image.target, digest);
        assert!(image.is_pinned());
        let image = Image::parse("oci://127.0.0.1:5000/plugin:1.0").unwrap();
        assert_eq!(
            (image.registry.as_str(), image.target.as_str()),
            ("127.0.0.1:5000", "1.0")
        );
        assert!(!image.is_pinned());
        assert_eq!(image.clone().with_digest(&digest).target, digest);
    }

    #[test]
    fn docker_hub_has_separate_name_for_requests() {
        let image = Image::parse("oci://docker.io/you/plugin:1.0").unwrap();
        assert_eq!(
            (image.host.as_str(), image.registry.as_str()),
            ("docker.io", "index.docker.io")
        );
    }

    #[test]
    fn invalid_reference_error_shows_valid_form() {
        for image in ["ghcr.io/you/plugin:1", "oci://ghcr.io/You/plugin:1"] {
            let failure = Image::parse(image).unwrap_err();
            assert_eq!(failure.reason, FailureReason::InvalidReference);
            assert!(failure.message.contains("write it like oci://"), "{}", failure.message);
        }
    }
}
