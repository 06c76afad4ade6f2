//! The classes by which requests are counted and logged.

use ctrlmesh_wire::Verb;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A request to the API server.
    Api(Verb),
    External(ProxyForm),
}

/// The form in which an external request names its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyForm {
    /// A whole URL as the request target: `HTTP_PROXY`.
    Absolute,
    /// A whole URL in the header `Mesh-Real-Endpoint`.
    Header,
    Connect,
}

impl ProxyForm {
    pub(crate) const ALL: [Self; 3] = [Self::Absolute, Self::Header, Self::Connect];

    /// Position in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Absolute => 0,
            Self::Header => 1,
            Self::Connect => 2,
        }
    }

    /// Name in metrics and logs.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Absolute => "absolute",
            Self::Header => "header",
            Self::Connect => "connect",
        }
    }
}
