//! Schemas of CustomResourceDefinitions: made fit for an API server, and asked what is wrong with an object.

mod check;
mod null;
mod tidy;

pub(crate) use check::check;
pub(crate) use null::prune_nulls;
pub(crate) use tidy::tidy;
