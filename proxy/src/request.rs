//! One request to the API server, from its head to its answer.
//!
//! | file | what is in it |
//! |---|---|
//! | `handler` | **start here**: parse, match, and the way of a request that no plugin wants |
//! | `filtered` | the way of a request that plugins want |
//! | `delete_options` | edits in the body of a DELETE |
//! | `edit` | edits of the request head: query, selectors, headers, object name |
//! | `ending` | requests that end early |
//! | `headers` | fields that do not pass from one connection to the other |
//! | `hidden` | creates of objects that exist and that a shard hides |
//! | `upgrade` | exec, port-forward and WebSockets |

pub(crate) mod delete_options;
pub(crate) mod edit;
pub(crate) mod ending;
pub(crate) mod filtered;
pub(crate) mod handler;
pub(crate) mod headers;
pub(crate) mod hidden;
pub(crate) mod upgrade;
