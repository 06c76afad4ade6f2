//! Schemas of CustomResourceDefinitions: made fit for an API server, and asked what is wrong with an object.

mod check;
mod null;
mod tidy;
mod tolerate;

pub(crate) use check::check;
pub(crate) use null::prune_nulls;
pub(crate) use tidy::tidy;
pub(crate) use tolerate::{has_type, tolerated};
