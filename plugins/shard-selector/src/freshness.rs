//! How old a response may be. With `resourceVersion`, a client allows the API server to answer from a cache; without it, the response is
//! consistent: no older than the request (Kubernetes documentation, "Resource versions in GET, LIST and WATCH").
//!
//! A shard that has just gained objects needs consistent lists: client-go lists again at the last version that it knows itself, and the
//! shard that has just lost the objects may have written since.

use ctrlmesh_sdk::{Request, RequestEdit, Verb};

const VERSION: &str = "resourceVersion";
const MATCH: &str = "resourceVersionMatch";

/// The edits that make the response consistent if the client allows an older one. Not changed:
/// - lists at exactly one version: the watch that follows brings the later changes;
/// - later pages: they show the state of the first page, which was consistent, or began under another view and gets 410 from the host;
/// - watches from a version: they show all changes since then, and the host rejects versions from another view.
pub(crate) fn no_older_than_now(req: &dyn Request) -> Vec<RequestEdit> {
    let text = |name| req.query(name).unwrap_or_default();
    // The version is read last, because it has the most values.
    match req.verb() {
        Verb::List
            if text("continue").is_empty()
                && matches!(&*text(MATCH), "" | "NotOlderThan")
                && !text(VERSION).is_empty() =>
        {
            // The API server rejects a match without a version.
            vec![RequestEdit::remove_query(VERSION), RequestEdit::remove_query(MATCH)]
        }
        Verb::Watch if begins_with_state(req) => {
            // The match stays: here the API server requires it, with or without a version.
            vec![RequestEdit::remove_query(VERSION)]
        }
        _ => Vec::new(),
    }
}

/// Whether a watch has a version and begins with a list: it asks for initial events, or comes from version 0, which means any
/// state.
fn begins_with_state(req: &dyn Request) -> bool {
    let version = || req.query(VERSION).unwrap_or_default();
    match req.query("sendInitialEvents").as_deref() {
        // As apimachinery reads a boolean (`pkg/runtime/conversion.go`, `Convert_Slice_string_To_bool`).
        Some(flag) => flag != "0" && !flag.eq_ignore_ascii_case("false") && !version().is_empty(),
        None => {
            let version = version();
            // In any spelling: the API server parses a number (apiserver `pkg/storage/api_object_versioner.go`).
            !version.is_empty() && version.bytes().all(|digit| digit == b'0')
        }
    }
}
