//! What one rule keeps apart: a limit or a breaker for each namespace, resource, host or user agent that it meets.

use ctrlmesh_sdk::{Request, Traffic};
use serde::Deserialize;

/// Longest value; longer ones are cut, and those that begin alike share. Keys of the host's state have 640 bytes.
const MAX_BYTES: usize = 256;

/// By what a rule keeps its requests apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Key {
    /// Not at all: one for the whole sidecar.
    #[default]
    Sidecar,
    /// By namespace; cluster scope and lists over all namespaces are one of their own. Calls to other services are together.
    Namespace,
    /// By group and resource, without subresource; for calls to other services as `Host`.
    Resource,
    /// By host and port. All requests to the API server are together.
    Host,
    /// By the `User-Agent` header. What a client says of itself: no protection against one that lies.
    UserAgent,
}

impl Key {
    /// The value that this request belongs to; at most 256 bytes.
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
