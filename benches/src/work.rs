//! The requests that are measured. Their responses are small; [`crate::origin`] has the large ones and the watches.

#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) method: &'static str,
    pub(crate) target: &'static str,
    /// Content type of the body, if there is one.
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: &'static str,
}

/// The HTTP version that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    Http1,
    /// With prior knowledge, as sidecars accept it on their plaintext port.
    Http2,
}

impl HttpVersion {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::Http2 => "HTTP/2",
        }
    }
}

/// shard-selector is not called for it: it only limits lists, watches and deletions of collections.
pub(crate) const GET: Work = Work {
    name: "get",
    method: "GET",
    target: "/api/v1/namespaces/default/configmaps/a",
    content_type: None,
    body: "",
};

/// A list with one item. All four plugins are called for it.
pub(crate) const LIST: Work = Work {
    name: "small list",
    method: "GET",
    target: "/api/v1/namespaces/default/configmaps?limit=500",
    content_type: None,
    body: "",
};

pub(crate) const CREATE: Work = Work {
    name: "create",
    method: "POST",
    target: "/api/v1/namespaces/default/configmaps",
    content_type: Some("application/json"),
    body: r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","labels":{"shard":"a"}},"data":{"key":"value"}}"#,
};

pub(crate) const PATCH: Work = Work {
    name: "patch",
    method: "PATCH",
    target: "/api/v1/namespaces/default/configmaps/a",
    content_type: Some("application/merge-patch+json"),
    body: r#"{"metadata":{"annotations":{"seen":"1"}}}"#,
};
