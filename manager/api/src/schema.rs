//! Schemas of CustomResourceDefinitions: makes them acceptable to an API server, and checks objects against them.

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
pub(crate) use tidy::tidy_schema;
pub use tolerate::{Tolerated, has_type, tolerate_mistakes};
