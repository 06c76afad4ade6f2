//! The input and output of plugins, as plain types that are independent of the WIT version.
//!
//! | file | what is in it |
//! |---|---|
//! | `verdict` | output: edits, refusals, faults, subscriptions |
//! | `view` | input: a request and its response |

pub mod verdict;
pub mod view;
