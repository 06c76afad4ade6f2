//! The error of the crate: one variant per part of a request that can be wrong. The caller picks the status code of its
//! response.

use crate::rename::RenameError;
use crate::{QueryError, RequestInfoError, SelectorError};

/// Why a request, a selector or a body was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL names no request that the API could serve.
    #[error(transparent)]
    RequestInfo(#[from] RequestInfoError),
    /// The query is larger than a server would read.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A label or field selector does not parse.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// An object can't be renamed in a request or a response.
    #[error(transparent)]
    Rename(#[from] RenameError),
}
