//! The key of a rule: one limit or breaker for each namespace, resource, host or user agent.

use ctrlmesh_sdk::{Request, Traffic};
use serde::Deserialize;

/// Maximum length of a value. Longer ones are cut, and those with the same beginning share a key. The host's keys have at most 640 bytes.
const MAX_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Key {
    /// No key: one limit or breaker for the whole sidecar.
    #[default]
    Sidecar,
    /// By namespace. Cluster scope and lists over all namespaces share one value; calls to external services share another.
    Namespace,
    /// By group and resource, without subresource; for calls to external services like `Host`.
    Resource,
    /// By host and port. All requests to the API server share one value.
    Host,
    /// By the `User-Agent` header, which clients choose: no protection against one that lies.
    UserAgent,
}

impl Key {
    /// The value for this request; at most 256 bytes.
    #[must_use]
    pub fn value(self, req: &dyn Request) -> String {
        let facts = req.facts();
        let is_external = facts.traffic == Traffic::External;
        let mut value = match self {
            Self::Sidecar => String::new(),
            Self::Namespace => facts.namespace.clone(),
            Self::Resource if !is_external => format!("{}/{}", facts.group, facts.resource),
            Self::Resource | Self::Host if is_external => format!("{}:{}", req.host(), req.port()),
            Self::Resource | Self::Host => String::new(),
            Self::UserAgent => req.user_agent(),
        };
        let end = value.floor_char_boundary(MAX_BYTES);
        value.truncate(end);
        value
    }
}
