//! What plugins are shown of a request and its response: owned, parsed once, shared with the guest by handle.
//!
//! Made only for requests that some entry wants (`guarded.rs`); leaves the parsing to `ctrlmesh-wire`.

use crate::verdict::Traffic;

/// A request as plugins see it (WIT `exchange.request`).
#[derive(Debug, Clone)]
pub struct RequestView {
    /// Kind of traffic.
    pub traffic: Traffic,
    /// What it does.
    pub verb: ctrlmesh_wire::Verb,
    /// API group; empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural resource name.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace; empty if there is none.
    pub namespace: String,
    /// Object name; empty if there is none.
    pub name: String,
    /// HTTP method.
    pub method: http::Method,
    /// Path and query as sent; `path()` and `query()` decode on demand.
    pub uri: http::Uri,
    /// Host name without port.
    pub host: String,
    /// Header fields as sent by the client. Credentials are filtered where a guest reads them.
    pub headers: http::HeaderMap,
}

/// A response head as plugins see it (WIT `exchange.response-head`).
#[derive(Debug, Clone)]
pub struct ResponseView {
    /// HTTP status.
    pub status: http::StatusCode,
    /// Header fields as sent by the upstream.
    pub headers: http::HeaderMap,
}

impl RequestView {
    /// The question that the matcher answers.
    #[must_use]
    pub fn query(&self) -> crate::chain::MatchQuery<'_> {
        crate::chain::MatchQuery {
            traffic: self.traffic,
            verb: self.verb,
            group: &self.group,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            path: self.uri.path(),
            host: &self.host,
            user_agent: self
                .headers
                .get(http::header::USER_AGENT)
                .and_then(|it| it.to_str().ok())
                .unwrap_or_default(),
        }
    }
}
