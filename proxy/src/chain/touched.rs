//! Records what plugins did to requests: for one request while it lives, and for the last ones in `/status`.
//!
//! Guarantees: the words come from a closed set, and nothing secret is kept: no query, no header and no body. Paths of external requests
//! are not kept either, because some services carry tokens in them.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use ctrlmesh_contract::status;

use crate::chain::EntryId;
use crate::plugin::request_view::{RequestView, printable};
use crate::plugin::verdict::Traffic;
use crate::timestamp::rfc3339;

/// Maximum number of rows in `/status`. A request that is repeated takes one.
const MAX_ROWS: usize = 32;
/// Maximum length of a request's name, in bytes.
const MAX_REQUEST_BYTES: usize = 256;

/// Effect of plugins on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The request's target, its headers or the response's headers were changed.
    Edited,
    /// The request or its response was delayed.
    Delayed,
    /// A plugin answered in place of the API server.
    Refused,
    /// A plugin broke off the request or its response.
    Faulted,
    /// The request was carried out, and its response withheld.
    Lost,
    /// A watch, or a page of a list, was ended with 410.
    Expired,
    /// The plugin itself failed, and its entry fails closed.
    Failed,
}

impl Effect {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Edited => "edited",
            Self::Delayed => "delayed",
            Self::Refused => "refused",
            Self::Faulted => "faulted",
            Self::Lost => "lost",
            Self::Expired => "expired",
            Self::Failed => "failed",
        }
    }
}

/// One effect on a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Touch {
    /// `None` stands for a new chain as a whole.
    pub(crate) entry: Option<EntryId>,
    /// The entry's rule; empty if the plugin names none.
    pub(crate) rule: String,
    pub(crate) effect: Effect,
}

/// The same with the entry's name, for display.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedTouch<'a> {
    pub(crate) entry: &'a str,
    pub(crate) rule: &'a str,
    pub(crate) effect: Effect,
}

/// For the access log: `refused by rate-limit/writes (rule a), delayed by …`.
pub(crate) fn describe<'a>(touches: impl Iterator<Item = NamedTouch<'a>>) -> String {
    let mut text = String::new();
    for NamedTouch { entry, rule, effect } in touches {
        let comma = if text.is_empty() { "" } else { ", " };
        // Writing to a string can't fail.
        let _ = write!(text, "{comma}{} by {entry}", effect.as_str());
        if !rule.is_empty() {
            let _ = write!(text, " (rule {rule})");
        }
    }
    text
}

/// The last requests that plugins had an effect on. Each of those requests, and each reader, locks it for a moment.
#[derive(Debug, Default)]
pub(crate) struct TouchedRequests(Mutex<VecDeque<Row>>);

#[derive(Debug)]
struct Row {
    entry: String,
    rule: String,
    effect: Effect,
    request: String,
    status: u16,
    count: u64,
    last: SystemTime,
}

impl TouchedRequests {
    /// Notes the effects on a request. Equal effects are counted in one row. All edits of an entry share a row whatever they change,
    /// because a shard edits every list; an edit of a request and one of its response count once.
    pub(crate) fn note<'a>(&self, touches: impl Iterator<Item = NamedTouch<'a>>, view: &RequestView, status: u16) {
        let request = request(view);
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut edited: Vec<(&str, &str)> = Vec::new();
        for NamedTouch { entry, rule, effect } in touches {
            if effect == Effect::Edited {
                if edited.contains(&(entry, rule)) {
                    continue;
                }
                edited.push((entry, rule));
            }
            let is_same = |row: &Row| {
                let is_rule = row.effect == effect && row.entry == entry && row.rule == rule;
                is_rule && (effect == Effect::Edited || row.status == status && row.request == request)
            };
            let known = rows.iter().position(is_same).and_then(|at| rows.remove(at));
            let row = Row {
                entry: entry.to_owned(),
                rule: rule.to_owned(),
                effect,
                request: request.clone(),
                status,
                count: known.map_or(1, |known| known.count.saturating_add(1)),
                last: SystemTime::now(),
            };
            if rows.len() >= MAX_ROWS {
                rows.pop_front();
            }
            rows.push_back(row);
        }
    }

    pub(crate) fn status_rows(&self) -> Vec<status::Touched> {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let touches = rows.iter().rev().map(|row| status::Touched {
            entry: row.entry.clone(),
            rule: row.rule.clone(),
            did: row.effect.as_str().to_owned(),
            request: row.request.clone(),
            status: row.status,
            count: row.count,
            last: rfc3339(row.last),
        });
        touches.collect()
    }
}

/// Examples: `update deployments.apps/status shop/web`, `get /healthz`, `CONNECT example.com:443`.
fn request(view: &RequestView) -> String {
    if view.traffic == Traffic::External {
        return printable(
            &format!("{} {}:{}", view.method, view.host, view.port),
            MAX_REQUEST_BYTES,
        );
    }
    if view.resource.is_empty() {
        return printable(&format!("{} {}", view.method, view.uri.path()), MAX_REQUEST_BYTES);
    }
    let mut text = format!("{} {}", view.verb, view.resource);
    for (before, part) in [(".", &view.group), ("/", &view.subresource)] {
        if !part.is_empty() {
            text.push_str(before);
            text.push_str(part);
        }
    }
    match (&*view.namespace, &*view.name) {
        ("", "") => {}
        ("", name) => text.push_str(&format!(" {name}")),
        (namespace, "") => text.push_str(&format!(" in {namespace}")),
        (namespace, name) => text.push_str(&format!(" {namespace}/{name}")),
    }
    printable(&text, MAX_REQUEST_BYTES)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ctrlmesh_wire::Verb;

    use super::*;
    use crate::plugin::request_view::Memory;

    fn view_of(name: &str) -> RequestView {
        RequestView {
            traffic: Traffic::Api,
            verb: Verb::Update,
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            resource: "deployments".to_owned(),
            subresource: "status".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            method: http::Method::PUT,
            uri: http::Uri::from_static("/apis/apps/v1/secret?token=x"),
            host: "api".to_owned(),
            port: 443,
            is_leader_lock: Cell::new(false),
            headers: http::HeaderMap::new(),
            memory: Memory::default(),
        }
    }

    fn named_touches(rule: &str, effect: Effect) -> impl Iterator<Item = NamedTouch<'_>> {
        let entry = "fault-inject/try";
        std::iter::once(NamedTouch { entry, rule, effect })
    }

    #[test]
    fn repeated_touch_is_counted_and_oldest_rows_go_first() {
        let touched = TouchedRequests::default();
        touched.note(named_touches("a", Effect::Refused), &view_of("old"), 409);
        for number in 0..MAX_ROWS - 1 {
            touched.note(named_touches("a", Effect::Refused), &view_of(&number.to_string()), 409);
        }
        touched.note(named_touches("a", Effect::Refused), &view_of("0"), 409);
        let rows = touched.status_rows();
        assert_eq!(rows.len(), MAX_ROWS);
        assert_eq!(
            (rows[0].count, &*rows[0].request),
            (2, "update deployments.apps/status shop/0")
        );
        assert_eq!((rows[0].status, &*rows[0].did, &*rows[0].rule), (409, "refused", "a"));
        touched.note(named_touches("a", Effect::Refused), &view_of("0"), 500);
        let rows = touched.status_rows();
        assert_eq!(
            (rows.len(), rows[0].count),
            (MAX_ROWS, 1),
            "it was answered in another way"
        );
        assert!(!rows.iter().any(|row| row.request.ends_with("old")));
    }

    #[test]
    fn all_edits_of_entry_are_one_row() {
        let touched = TouchedRequests::default();
        touched.note(named_touches("", Effect::Edited), &view_of("a"), 200);
        touched.note(named_touches("", Effect::Edited), &view_of("b"), 200);
        let rows = touched.status_rows();
        assert_eq!((rows.len(), rows[0].count), (1, 2));
        assert!(rows[0].request.ends_with("shop/b"));
        let both = named_touches("", Effect::Edited).chain(named_touches("", Effect::Edited));
        touched.note(both, &view_of("c"), 200);
        assert_eq!(touched.status_rows()[0].count, 3, "the request and its response");
    }

    #[test]
    fn external_requests_are_named_without_path_and_query() {
        let mut external = view_of("");
        external.traffic = Traffic::External;
        external.host = "hooks.example.com".to_owned();
        assert_eq!(request(&external), "PUT hooks.example.com:443");
        external.traffic = Traffic::Api;
        external.resource = String::new();
        assert_eq!(request(&external), "PUT /apis/apps/v1/secret");
    }

    #[test]
    fn touches_are_described_for_access_log() {
        let both = named_touches("a", Effect::Delayed).chain(named_touches("", Effect::Lost));
        assert_eq!(
            describe(both),
            "delayed by fault-inject/try (rule a), lost by fault-inject/try"
        );
        assert_eq!(describe(std::iter::empty()), "");
    }
}
