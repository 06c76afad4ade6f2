//! The decisions of the manager, without a cluster, a file or a clock: each function gets all that it needs and returns a value.
//!
//! | module | answers |
//! |---|---|
//! | [`mod@overlap`] | which objects do two shards see, or none |
//! | [`mod@compile`] | which chain do objects make |
//! | [`mod@validate`] | is a document an object |
//! | [`switches`] | is an object inert, as long as nobody activates it |
//! | [`mod@hand_over`] | what is the next chain on the way to the desired one |
//! | [`labels`] | which labels do namespaces and objects carry |
//! | [`mod@auto_shard`] | which shards does a root make |
//! | [`view`], [`label_set`] | what do limits show, and selectors select, as sets |
//! | `settings`, [`built_in`] | are the settings of built-in plugins valid; what are these plugins |
//! | `origin` | from which object is an entry made |
//! | [`mod@shard_hash`] | in which bucket is a namespace |

pub mod auto_shard;
pub mod built_in;
pub mod compile;
pub mod hand_over;
pub mod label_set;
pub mod labels;
mod origin;
pub mod overlap;
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
pub use overlap::find_overlaps;
pub use shard_hash::shard_hash;
pub use validate::{Findings, validate};
