//! The decisions of the manager, without a cluster, a file or a clock: each function gets all that it needs and returns a value.
//!
//! | module | answers |
//! |---|---|
//! | [`mod@validate`] | is this document an object, and what is wrong with it; what can `lint --fix` correct |
//! | [`mod@auto_shard`] | which shards does a root make |
//! | [`mod@overlap`] | which objects do two shards see, or none |
//! | [`mod@compile`] | which chain do the objects of a namespace make |
//! | [`mod@hand_over`] | what is the next chain on the way to the desired one |
//! | [`labels`] | which labels do namespaces and objects carry |
//! | [`switches`] | which objects does a switch of KusionStack keep inert |
//! | [`built_in`], `settings` | what are the built-in plugins, and are their settings valid |
//! | [`label_set`], [`view`] | what do selectors select, and limits show, as sets |
//! | [`mod@shard_hash`] | in which bucket is a namespace |

pub mod auto_shard;
pub mod built_in;
pub mod compile;
pub mod hand_over;
pub mod label_set;
pub mod labels;
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
