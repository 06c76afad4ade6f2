//! The decisions of the manager, without a cluster, a file or a clock: each function gets all that it needs and returns a value.
//!
//! | module | decides |
//! |---|---|
//! | [`mod@overlap`] | which objects two shards see, and which none does |
//! | [`mod@compile`] | the chain of a namespace from its objects |
//! | [`mod@validate`] | whether a document is a valid object, and which fields are wrong |
//! | [`switches`] | whether an object is held back until somebody activates it |
//! | [`mod@hand_over`] | the next chain on the way to the desired one |
//! | [`labels`] | which labels namespaces and objects carry |
//! | [`mod@auto_shard`] | the shards of a root |
//! | `divide_ranges` | how many virtual ranges each shard of a root has, and which |
//! | [`view`], [`object_set`], [`label_set`], [`range_set`] | what limits show, what selectors select, and virtual ranges, as sets |
//! | `settings`, [`built_in`] | the settings of built-in plugins, and whether they are valid; the order of these plugins |
//! | `origin` | the object that an entry is made from |
//! | [`mod@shard_hash`] | the hash bucket of a namespace |

pub mod auto_shard;
pub mod built_in;
pub mod compile;
mod divide_ranges;
pub mod hand_over;
pub mod label_set;
pub mod labels;
pub mod object_set;
mod origin;
pub mod overlap;
pub mod range_set;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
mod settings;
pub mod shard_hash;
pub mod switches;
pub mod validate;
pub mod view;

pub use auto_shard::{LabelKeys, auto_shard};
pub use built_in::BuiltIn;
pub use compile::{Compiled, Objects, Resolved, compile};
pub use divide_ranges::divide_ranges;
pub use overlap::find_overlaps;
pub use shard_hash::shard_hash;
pub use validate::{Findings, validate};
