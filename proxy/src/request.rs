//! One request to the API server, from its head to its response.
//!
//! | file | what is in it |
//! |---|---|
//! | `handler` | **start here**: parse, match, and pass a request that no plugin wants |
//! | `selection` | selects the requests that plugins see |
//! | `filtered` | a request that plugins want: from the first call of a plugin to the response body |
//! | `next_pages` | lists with a limit: further pages, if the first one has nothing for the client |
//! | `object_filter` | requests whose responses are filtered object by object, and these responses |
//! | `collection_delete` | deletes of collections of which plugins keep only some objects |
//! | `required_object` | requests that are sent only if their object matches |
//! | `object_lookup` | the metadata of one object, read with the identity of a client's request |
//! | `view_check` | whether a resource version belongs to the view that the client gets |
//! | `recheck` | whether an open watch may continue under a new chain |
//! | `upgrade` | exec, port-forward and WebSockets |
//! | `edit_body` | edits in bodies: options of a DELETE, object names |
//! | `exchange` | operations of every request: add credentials, send, record the response |
//! | `hidden_objects` | creates of objects that exist and that a shard hides |
//! | `edit` | edits of the request head: query, selectors, headers, object name |
//! | `earlier_lock` | hides a shard's objects from a controller that may lead by the lock of another shard, and refuses its writes |
//! | `early_response` | requests that end early |
//! | `headers` | header fields that do not pass from one connection to the other |
//! | `worker` | the state with which one worker thread serves requests, and the state that all threads share |
//! | `narrowed_lists` | edited targets of lists that clients repeat |
//! | `parsed_targets` | parsed and checked targets of requests that clients repeat |

mod collection_delete;
mod earlier_lock;
pub(crate) mod early_response;
mod edit;
mod edit_body;
pub(crate) mod exchange;
mod filtered;
pub(crate) mod handler;
pub(crate) mod headers;
mod hidden_objects;
mod narrowed_lists;
mod next_pages;
mod object_filter;
mod object_lookup;
mod parsed_targets;
mod recheck;
mod required_object;
mod selection;
mod upgrade;
mod view_check;
pub(crate) mod worker;

/// Maximum length of a path and query that are parsed, in bytes. The API server's Go library accepts 1 MiB of headers; selectors of
/// thousands of values fit here.
pub(crate) const MAX_URI: usize = 32 << 10;
