//! Schemas of CustomResourceDefinitions: made fit for an API server, and asked what is wrong with an object.

mod check;
mod duration;
mod metadata;
mod null;
mod tidy;
mod tolerate;

pub use check::check;
pub use duration::is_duration;
pub use metadata::{check_metadata, check_metadata_fields, metadata};
pub use null::prune_nulls;
pub(crate) use tidy::tidy;
pub use tolerate::{Tolerated, has_type, tolerated};
