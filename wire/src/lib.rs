//! The Kubernetes API on the wire: parses requests and selectors, edits queries, paths and bodies without touching the
//! rest, and writes a Status.
//!
//! Everything here is pure: text and bytes in, values and bytes out. Sockets, HTTP and decisions belong to the proxy.
//! Where upstream has a parser (k8s.io/apiserver and k8s.io/apimachinery v0.36.3), ours agrees with it; the golden files
//! under `tests/golden` hold what upstream says.
//!
//! | module | holds |
//! |---|---|
//! | `error` | the error of the crate |
//! | [`objects`] | the objects in responses: leaves out those that are not kept, as the bytes come in |
//! | [`rename`] | calls one object by another name |
//! | `request_info` | verb, resource, namespace and name of a request, from its method and URL |
//! | `field_selector` | field selectors |
//! | `label_selector` | label selectors |
//! | `delete_options` | `DeleteOptions` in the body of a DELETE |
//! | `query` | query strings, and edits of them |
//! | `names` | rules for names and labels |
//! | `object_name` | the name of the object in a request body |
//! | `object_uid` | the UID of the object in a request body |
//! | `lock_record` | the record of a leader-election lock: holder, duration, renewal |
//! | `watch_event` | media types, encodings of a watch, and the event that ends one with an error |
//! | `status` | the `Status` object |
//! | `percent` | percent-encoding |
//! | [`protobuf`] | the protobuf wire format |

#![warn(missing_docs)]

mod delete_options;
mod error;
mod field_selector;
mod label_selector;
mod lock_record;
mod names;
mod object_name;
mod object_uid;
pub mod objects;
mod percent;
pub mod protobuf;
mod query;
pub mod rename;
mod request_info;
mod status;
mod watch_event;

pub use delete_options::{
    DeleteOption, DeleteOptionEdit, DeleteOptionsError, delete_options_of_query, edit_delete_options,
};
pub use error::Error;
pub use field_selector::{FieldOperator, FieldRequirement, FieldSelector};
pub use label_selector::{LabelSelector, MAX_REQUIREMENTS, MAX_SELECTOR_BYTES, Operator, Requirement, SelectorError};
pub use lock_record::{LOCK_ANNOTATION, LockRecord, lock_record, names_holder, watched_lock_record};
pub use names::{is_dns_label, is_dns_subdomain, is_label_key, is_label_value};
pub use object_name::object_name;
pub use object_uid::{UidError, UidPlace, bind_to_uid, object_uid};
pub use query::{MAX_QUERY_BYTES, MAX_QUERY_PAIRS, Pairs, ParsedQuery, Query, QueryEditor, QueryError};
pub use request_info::{RequestInfo, RequestInfoError, UncleanPath, Verb};
pub use status::{Status, StatusCause, StatusDetails, default_reason};
pub use watch_event::{WatchEncoding, watch_error_event};
