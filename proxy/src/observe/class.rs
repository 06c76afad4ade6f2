//! The classes that requests are counted and logged by.

use ctrlmesh_wire::Verb;

/// The class of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// To the API server.
    Api(Verb),
    External(Way),
}

/// How an external request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// A whole URL as its target: `HTTP_PROXY`.
    Absolute,
    /// A whole URL in the header `Mesh-Real-Endpoint`.
    Header,
    /// CONNECT: `HTTPS_PROXY`.
    Connect,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Absolute, Self::Header, Self::Connect];

    /// Its place in [`Self::ALL`].
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Absolute => 0,
            Self::Header => 1,
            Self::Connect => 2,
        }
    }

    /// As metrics and logs call it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Absolute => "absolute",
            Self::Header => "header",
            Self::Connect => "connect",
        }
    }
}
