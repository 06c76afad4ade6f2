//! Schemas of CustomResourceDefinitions: made fit for an API server, and asked what is wrong with an object.

mod check;
mod duration;
mod metadata;
mod null;
mod tidy;
mod tolerate;

pub(crate) use check::check;
pub(crate) use duration::is_duration;
pub(crate) use metadata::{check_metadata, check_metadata_fields, metadata};
pub(crate) use null::prune_nulls;
pub(crate) use tidy::tidy;
pub(crate) use tolerate::{Tolerated, has_type, tolerated};
