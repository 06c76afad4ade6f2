//! The requests that are measured. Their responses are small; [`crate::origin`] has the large ones and the watches.

#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) method: &'static str,
    pub(crate) target: &'static str,
    /// Content type of the body, if there is one.
    pub(crate) content_type: Option<&'static str>,
    pub(crate) body: &'static str,
    /// Length of the bearer token in bytes, if the request has one.
    pub(crate) token_length: Option<usize>,
}

impl Work {
    /// The field `authorization`. Tokens of service accounts are signed base64, which Huffman codes of HTTP/2 hardly shorten.
    pub(crate) fn authorization(&self) -> Option<String> {
        const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let token = |length| ALPHABET.iter().cycle().take(length).copied().map(char::from);
        self.token_length
            .map(|length| "Bearer ".chars().chain(token(length)).collect())
    }
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
    token_length: None,
};

/// A list with one item. All four plugins are called for it.
pub(crate) const LIST: Work = Work {
    name: "small list",
    method: "GET",
    target: "/api/v1/namespaces/default/configmaps?limit=500",
    content_type: None,
    body: "",
    token_length: None,
};

/// The same with a token as long as those that kubelet mounts for service accounts.
pub(crate) const LIST_WITH_TOKEN: Work = Work {
    name: "small list with a token of 1,000 bytes",
    token_length: Some(1_000),
    ..LIST
};

pub(crate) const CREATE: Work = Work {
    name: "create",
    method: "POST",
    target: "/api/v1/namespaces/default/configmaps",
    content_type: Some("application/json"),
    body: r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","labels":{"shard":"a"}},"data":{"key":"value"}}"#,
    token_length: None,
};

pub(crate) const PATCH: Work = Work {
    name: "patch",
    method: "PATCH",
    target: "/api/v1/namespaces/default/configmaps/a",
    content_type: Some("application/merge-patch+json"),
    body: r#"{"metadata":{"annotations":{"seen":"1"}}}"#,
    token_length: None,
};
