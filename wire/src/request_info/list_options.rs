//! The two list options that decide what a collection request is: `watch` and a name in the field selector.

use crate::{FieldSelector, LabelSelector, ParsedQuery};

pub(super) struct ListOptions {
    pub(super) watch: bool,
    /// The name that `fieldSelector=metadata.name=...` asks for; empty for none.
    pub(super) name: String,
}

/// Reads them as upstream decodes `ListOptions`. If any option is undecodable, upstream forgets them all, and looks at
/// `watch` once more.
pub(super) fn read(query: &ParsedQuery<'_>) -> ListOptions {
    let watch = query.get("watch");
    let selected = query.get("fieldSelector").filter(|_| is_decodable(query));
    let name = selected
        .and_then(|text| FieldSelector::parse(text).ok())
        .and_then(|s| s.exact("metadata.name"));
    let is_watch = |value: &str| match value {
        "0" => false,
        // Only here the two readings of upstream differ: the decoder folds case by Unicode's rules, the second look
        // does not.
        value if is_false_with_long_s(value) => !is_decodable(query),
        value => !value.eq_ignore_ascii_case("false"),
    };
    ListOptions {
        watch: watch.is_some_and(is_watch),
        name: name.filter(|name| is_path_segment(name)).unwrap_or_default(),
    }
}

fn is_decodable(query: &ParsedQuery<'_>) -> bool {
    let is_integer = |key| query.get(key).is_none_or(|value| value.parse::<i64>().is_ok());
    is_integer("limit")
        && is_integer("timeoutSeconds")
        && query
            .get("labelSelector")
            .is_none_or(|text| LabelSelector::validate(text).is_ok())
        && query
            .get("fieldSelector")
            .is_none_or(|text| FieldSelector::parse(text).is_ok())
}

/// U+017F folds to `s` in Go's `strings.EqualFold`.
fn is_false_with_long_s(value: &str) -> bool {
    value.contains('\u{17f}') && value.replace('\u{17f}', "s").eq_ignore_ascii_case("false")
}

/// apimachinery `content.IsPathSegmentName`.
fn is_path_segment(name: &str) -> bool {
    !matches!(name, "." | "..") && !name.contains(['/', '%'])
}
