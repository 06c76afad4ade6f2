//! Whether a resource version that a client sends belongs to the view that it gets now (`controller_state::list_views`).

use ctrlmesh_wire::{ParsedQuery, RequestInfo, Verb};

use super::exchange::{Exchange, user_agent};
use crate::chain::phases::{Attributed, Plugins, shaping_entries};
use crate::controller_state::list_views::{KnownView, NotedList, Position, Reader, Representation};
use crate::respond::Reply;

const OTHER_VIEW_MESSAGE: &str =
    "the rules of this controller's shard have changed since this resource version: list again";

/// The result of [`check_view`].
#[derive(Default)]
pub(super) struct CheckedView {
    /// The position that a watch leaves when it ends.
    pub(super) position: Option<Position>,
    /// The note of a list, except of its later pages.
    pub(super) noted: Option<NotedList>,
}

/// Notes the view of a list. A watch, or a later page of a list, must have the same view. `query` is the client's.
///
/// # Errors
/// 410 `Expired`: the client must list again.
pub(super) fn check_view(
    exchange: &Exchange<'_>,
    plugins: &Plugins,
    query: &ParsedQuery<'_>,
    edits: &[Attributed],
) -> Result<CheckedView, Reply> {
    let info = exchange.info;
    if !matches!(info.verb, Verb::List | Verb::Watch) || info.resource.is_empty() {
        return Ok(CheckedView::default());
    }
    let headers = plugins.view.headers.borrow();
    let reader = Reader {
        user_agent: user_agent(&headers).as_bytes(),
        representation: Representation::from_headers(&headers),
        group: &info.group,
        version: &info.version,
        resource: &info.resource,
        namespace: &info.namespace,
        label_selector: query.get("labelSelector").unwrap_or_default(),
        field_selector: query.get("fieldSelector").unwrap_or_default(),
    };
    let list_views = &exchange.worker.shared.list_views;
    let view = || edits.iter().map(|(_, edit)| edit);
    let is_right = |known| match known {
        KnownView::Same => true,
        KnownView::Other => false,
        // A watch of one object by name starts from a get, which leaves no note.
        KnownView::Nothing => {
            let is_unshaped = || !list_views.has_predecessor() && view().all(|edit| !edit.shapes_view());
            !info.name.is_empty() || plugins.is_of_first_chain() || is_unshaped()
        }
    };
    let expired = || {
        plugins.expired(shaping_entries(edits));
        Reply::expired(OTHER_VIEW_MESSAGE)
    };
    let mut checked = CheckedView::default();
    match (info.verb, starts_anew(info, query)) {
        (Verb::List, true) => checked.noted = list_views.list(&reader, view(), plugins.is_of_first_chain()),
        (Verb::List, false) if is_right(list_views.compare_page(&reader, view())) => {}
        (Verb::List, false) => return Err(expired()),
        (_, true) => checked.position = Some(list_views.start_anew(&reader, view())),
        (_, false) => {
            let position = list_views.resume(&reader, view(), is_right);
            checked.position = Some(position.ok_or_else(expired)?);
        }
    }
    Ok(checked)
}

/// Whether the client starts without a version: a first page, or a watch that begins with the current objects.
fn starts_anew(info: &RequestInfo<'_>, query: &ParsedQuery<'_>) -> bool {
    let text = |key: &str| query.get(key).unwrap_or_default();
    match info.verb {
        Verb::List => text("continue").is_empty(),
        _ => is_unset_or_zero(text("resourceVersion")) || asks_for_initial_events(query),
    }
}

/// Whether there is no version, or 0 in any spelling that the API server accepts as a number (apiserver
/// `pkg/storage/api_object_versioner.go`, `ParseResourceVersion`).
pub(super) fn is_unset_or_zero(version: &str) -> bool {
    version.bytes().all(|digit| digit == b'0')
}

fn asks_for_initial_events(query: &ParsedQuery<'_>) -> bool {
    query.get("sendInitialEvents").is_some_and(is_true_flag)
}

/// Parses a flag that is set as apimachinery does (`pkg/runtime/conversion.go`, `Convert_Slice_string_To_bool`).
pub(super) fn is_true_flag(flag: &str) -> bool {
    flag != "0" && !flag.eq_ignore_ascii_case("false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_starts_anew_without_a_version_or_with_zero_in_any_spelling() {
        let path = "/api/v1/configmaps";
        let starts = |query: &str| {
            let query = format!("watch=1&{query}");
            let info = RequestInfo::parse("GET", path, Some(&query)).unwrap();
            assert_eq!(info.verb, Verb::Watch);
            starts_anew(&info, &ParsedQuery::new(&query))
        };
        for query in ["", "resourceVersion=", "resourceVersion=0", "resourceVersion=00"] {
            assert!(starts(query), "{query}");
        }
        for query in ["resourceVersion=1", "resourceVersion=10", "resourceVersion=007"] {
            assert!(!starts(query), "{query}");
        }
        assert!(starts("resourceVersion=7&sendInitialEvents=true"));
        assert!(!starts("resourceVersion=7&sendInitialEvents=false"));
    }
}
