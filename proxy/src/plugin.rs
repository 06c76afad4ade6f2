//! What plugins are shown and what they answer, as plain types that are independent of the WIT version.
//!
//! | file | what is in it |
//! |---|---|
//! | `verdict` | what plugins say: edits, refusals, faults, subscriptions |
//! | `view` | what they are shown of a request and its response |

pub mod verdict;
pub mod view;
