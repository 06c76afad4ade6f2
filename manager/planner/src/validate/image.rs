//! Validates references to components in OCI registries.

use ctrlmesh_contract::error::quote;

/// The mistake in a reference: `oci://host[:port]/repository[:tag][@sha256:digest]`. Names follow the OCI distribution
/// specification, "Pulling manifests".
pub(super) fn image_problem(image: &str) -> Option<String> {
    let wrong = |what: &str| {
        Some(format!(
            "{} {what}; write it like oci://ghcr.io/you/plugin:1.0 or oci://ghcr.io/you/plugin@sha256:...",
            quote(image)
        ))
    };
    let Some(reference) = image.strip_prefix("oci://") else {
        return wrong("does not start with oci://");
    };
    let (name, digest) = match reference.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (reference, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return wrong("has a digest that is none (sha256: and 64 hexadecimal digits)");
    }
    let Some((host, path)) = name.split_once('/') else {
        return wrong("names no repository");
    };
    if !is_host(host) {
        return wrong("names no registry");
    }
    let (repository, tag) = match path.rsplit_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (path, None),
    };
    if !repository.split('/').all(is_component) {
        return wrong("has a repository that is none (lower-case letters, digits, '.', '-' and '_')");
    }
    match (tag, digest) {
        (None, None) => wrong("has neither tag nor digest"),
        (Some(tag), _) if !is_tag(tag) => {
            wrong("has a tag that is none (at most 128 letters, digits, '.', '-' and '_')")
        }
        _ => None,
    }
}

fn is_digest(text: &str) -> bool {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}

fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, Some(port)),
        None => (text, None),
    };
    let is_name = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.'));
    is_name && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn is_component(text: &str) -> bool {
    let is_edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(a), Some(b)) if is_edge(*a) && is_edge(*b))
        && bytes.iter().all(|b| is_edge(*b) || matches!(b, b'.' | b'-' | b'_'))
}

fn is_tag(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|b| is_word(b) || matches!(b, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_follow_distribution_specification() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for image in [
            "oci://ghcr.io/you/plugin:1.0",
            "oci://localhost:5000/plugin:latest",
            "oci://127.0.0.1:5000/a/b_c/d.e:V1_2-x",
            &format!("oci://ghcr.io/you/plugin@{digest}"),
            &format!("oci://ghcr.io/you/plugin:1.0@{digest}"),
        ] {
            assert_eq!(image_problem(image), None, "{image}");
        }
        for (image, expected) in [
            ("ghcr.io/you/plugin:1.0", "does not start with oci://"),
            ("https://ghcr.io/you/plugin:1.0", "does not start with oci://"),
            ("oci://plugin:1.0", "names no repository"),
            ("oci:///plugin:1.0", "names no registry"),
            ("oci://ghcr.io:http/plugin:1.0", "names no registry"),
            ("oci://ghcr.io/you/plugin", "has neither tag nor digest"),
            ("oci://ghcr.io/You/plugin:1", "has a repository that is none"),
            ("oci://ghcr.io/you//plugin:1", "has a repository that is none"),
            ("oci://ghcr.io/you/plugin:", "has a tag that is none"),
            ("oci://ghcr.io/you/plugin:-1", "has a tag that is none"),
            ("oci://ghcr.io/you/plugin@sha256:00", "has a digest that is none"),
            (
                &format!("oci://ghcr.io/you/plugin@{}", digest.to_uppercase()),
                "has a digest that is none",
            ),
        ] {
            let problem = image_problem(image).unwrap_or_default();
            assert!(
                problem.contains(expected) && problem.contains("write it like"),
                "{image}: {problem}"
            );
        }
    }
}
