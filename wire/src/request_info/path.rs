//! Splits a decoded path into the parts of an API URL.

use super::{RequestInfoError, Verb};

/// The parts of a decoded path; empty where the path has none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PathParts<'p> {
    pub(super) is_resource_request: bool,
    pub(super) api_prefix: &'p str,
    pub(super) group: &'p str,
    pub(super) version: &'p str,
    pub(super) namespace: &'p str,
    /// `resource/name/subresource/...`
    pub(super) rest: &'p str,
    /// The verb of a deprecated path prefix.
    pub(super) special_verb: Option<Verb>,
}

impl<'p> PathParts<'p> {
    /// Follows `NewRequestInfo` step by step; what it leaves out of a request about no resource is left out here too.
    pub(super) fn parse(path: &'p str) -> Result<Self, RequestInfoError> {
        let mut parts = Self::default();
        let path = path.trim_matches('/');
        let (prefix @ ("api" | "apis"), Some(rest)) = split_segment(path) else {
            return Ok(parts);
        };
        let (second, Some(behind)) = split_segment(rest) else {
            return Ok(parts);
        };
        parts.api_prefix = prefix;
        let (version, rest) = if prefix == "apis" {
            let (version, Some(rest)) = split_segment(behind) else {
                return Ok(parts);
            };
            parts.group = second;
            (version, rest)
        } else {
            (second, behind)
        };
        parts.is_resource_request = true;
        parts.version = version;
        parts.rest = parts.take_special_verb(rest)?;
        parts.take_namespace();
        Ok(parts)
    }

    fn take_special_verb(&mut self, rest: &'p str) -> Result<&'p str, RequestInfoError> {
        let (first, behind) = split_segment(rest);
        self.special_verb = match first {
            "watch" => Some(Verb::Watch),
            "proxy" => Some(Verb::Proxy),
            _ => return Ok(rest),
        };
        behind.ok_or(RequestInfoError::NoResource)
    }

    /// `namespaces/{namespace}/{resource}/...`, unless the third part is a subresource of the namespace itself.
    fn take_namespace(&mut self) {
        let Some(behind) = self.rest.strip_prefix("namespaces/") else {
            return;
        };
        let (namespace, inner) = split_segment(behind);
        self.namespace = namespace;
        if let Some(inner) = inner
            && !matches!(split_segment(inner).0, "status" | "finalize")
        {
            self.rest = inner;
        }
    }
}

/// The first segment of a path, and what is behind its slash. Segments are so short that comparing bytes is several times
/// cheaper than the searcher of [`str::split`].
pub(super) fn split_segment(path: &str) -> (&str, Option<&str>) {
    let slash = path.bytes().position(|byte| byte == b'/');
    match slash.and_then(|slash| path.get(..slash).zip(path.get(slash + 1..))) {
        Some((first, behind)) => (first, Some(behind)),
        None => (path, None),
    }
}
