//! The input and output of plugins, as plain types that are independent of the WIT version.
//!
//! | file | what is in it |
//! |---|---|
//! | `request_view` | input: a request and its response |
//! | `verdict` | output: edits, refusals, faults, subscriptions, how outcomes are counted |
//! | `object_metadata` | what a plugin is told about objects of a response, and the edit that asks about them |
//! | `object_predicate` | the predicate of an edit, shared by its copies |
//! | `dropped_fields` | the paths of fields of an edit, parsed once for all repetitions of a verdict |
//! | `label_selector` | the label selector of an edit, parsed once for all repetitions of a verdict |
//! | `tally` | counts outcomes |
//! | `held_place` | a place among the requests in flight |

pub mod dropped_fields;
pub(crate) mod held_place;
pub mod label_selector;
pub mod object_metadata;
pub mod object_predicate;
pub mod request_view;
pub(crate) mod tally;
pub mod verdict;
