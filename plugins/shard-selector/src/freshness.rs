//! How old an answer may be. A client allows the API server to answer from a cache by the `resourceVersion` that it sends;
//! without one the answer is consistent: no older than the request (Kubernetes documentation, "Resource versions in GET,
//! LIST and WATCH").
//!
//! A shard that has just gained objects needs that: client-go lists again at the last version that it knows itself, and the
//! shard that has just lost them may have written since.

use ctrlmesh_sdk::{Request, RequestEdit, Verb};

const VERSION: &str = "resourceVersion";
const MATCH: &str = "resourceVersionMatch";

/// What makes the answer consistent where the client would take an older one. Left alone:
/// - lists at exactly one version: the watch that follows brings what has happened since;
/// - later pages: they are of the state that the first page was, and the first was consistent, or began under another view
///   and is answered 410 by the host;
/// - watches from a version: they show all changes since, and the host lets none begin from another view's.
pub(crate) fn no_older_than_now(req: &dyn Request) -> Vec<RequestEdit> {
    let text = |name| req.query(name).unwrap_or_default();
    let version = text(VERSION);
    if version.is_empty() {
        return Vec::new();
    }
    match req.facts().verb {
        Verb::List if text("continue").is_empty() && matches!(&*text(MATCH), "" | "NotOlderThan") => {
            // The API server refuses a match without a version.
            vec![RequestEdit::remove_query(VERSION), RequestEdit::remove_query(MATCH)]
        }
        Verb::Watch if begins_with_state(req, &version) => {
            // The match stays: here the API server demands it, version or not.
            vec![RequestEdit::remove_query(VERSION)]
        }
        _ => Vec::new(),
    }
}

/// Whether a watch is a list first: it asks for initial events, or comes from version 0, which means any state.
fn begins_with_state(req: &dyn Request, version: &str) -> bool {
    match req.query("sendInitialEvents").as_deref() {
        // As apimachinery reads a flag (`pkg/runtime/conversion.go`, `Convert_Slice_string_To_bool`).
        Some(flag) => flag != "0" && !flag.eq_ignore_ascii_case("false"),
        // In any spelling: the API server reads a number (apiserver `pkg/storage/api_object_versioner.go`).
        None => version.bytes().all(|digit| digit == b'0'),
    }
}
