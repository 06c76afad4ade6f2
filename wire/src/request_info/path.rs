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
        let Some((prefix @ ("api" | "apis"), rest)) = path.split_once('/') else {
            return Ok(parts);
        };
        if path.split('/').nth(2).is_none() {
            return Ok(parts);
        }
        parts.api_prefix = prefix;
        let rest = if prefix == "apis" {
            let Some((group, rest)) = rest.split_once('/').filter(|(_, rest)| rest.contains('/')) else {
                return Ok(parts);
            };
            parts.group = group;
            rest
        } else {
            rest
        };
        let Some((version, rest)) = rest.split_once('/') else {
            return Ok(parts);
        };
        parts.is_resource_request = true;
        parts.version = version;
        parts.rest = parts.take_special_verb(rest)?;
        parts.take_namespace();
        Ok(parts)
    }

    fn take_special_verb(&mut self, rest: &'p str) -> Result<&'p str, RequestInfoError> {
        let (first, behind) = rest
            .split_once('/')
            .map_or((rest, None), |(first, behind)| (first, Some(behind)));
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
        let Some((namespace, inner)) = behind.split_once('/') else {
            self.namespace = behind;
            return;
        };
        self.namespace = namespace;
        if !matches!(inner.split('/').next(), Some("status" | "finalize")) {
            self.rest = inner;
        }
    }
}
