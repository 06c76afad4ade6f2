//! Records what plugins did to requests: for one request while it lives, and for the last ones in `/status`.
//!
//! Edits are counted without a lock and without allocating, because a shard edits every list. Other effects are rare and take a lock.
//!
//! Guarantees: the words come from a closed set, and nothing secret is kept: no query, no header and no body. Paths of external requests
//! are not kept either, because some services carry tokens in them.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use ctrlmesh_contract::status;
use tokio::time::Instant;

use crate::chain::EntryId;
use crate::lock::lock_unpoisoned;
use crate::plugin::request_view::{RequestView, printable};
use crate::plugin::verdict::Traffic;
use crate::timestamp::rfc3339;

/// Maximum number of rows in `/status`. A request that is repeated takes one.
const MAX_ROWS: usize = 32;
/// Maximum length of a request's name, in bytes.
const MAX_REQUEST_BYTES: usize = 256;
/// How long a row of edits shows the same request, in microseconds: a name costs more than the count.
const EXAMPLE_MICROS: u64 = 1_000_000;

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
    /// The request was carried out, and its response dropped.
    Lost,
    /// A watch, or a page of a list, was ended with 410.
    Expired,
    /// The plugin itself failed, and its entry fails closed; or it was asked about objects of the response.
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

/// A touch with the entry's name, for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedTouch<'a> {
    pub(crate) entry: &'a str,
    pub(crate) rule: &'a str,
    pub(crate) effect: Effect,
}

/// For the access log: `refused by rate-limit/writes (rule a), delayed by …`.
pub(crate) fn describe_touches<'a>(touches: impl Iterator<Item = NamedTouch<'a>>) -> String {
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

/// The last requests that plugins had an effect on.
#[derive(Debug)]
pub(crate) struct TouchedRequests {
    created: Instant,
    /// One row for all edits of an entry by one rule, whatever they change.
    edits: ArcSwap<Vec<Arc<EditRow>>>,
    /// All other effects, the oldest first.
    others: Mutex<VecDeque<Row>>,
}

/// Edits by one rule of an entry.
#[derive(Debug)]
struct EditRow {
    entry: String,
    rule: String,
    count: AtomicU64,
    /// Microseconds since [`TouchedRequests::created`].
    last: AtomicU64,
    /// When the example was last replaced, in the same microseconds; [`u64::MAX`] before the first one.
    example_since: AtomicU64,
    example: Mutex<Example>,
}

/// A request that was edited, and its status.
#[derive(Debug, Default)]
struct Example {
    request: String,
    status: u16,
}

#[derive(Debug)]
struct Row {
    entry: String,
    rule: String,
    effect: Effect,
    request: String,
    status: u16,
    count: u64,
    last: Instant,
}

impl Default for TouchedRequests {
    fn default() -> Self {
        Self {
            created: Instant::now(),
            edits: ArcSwap::default(),
            others: Mutex::default(),
        }
    }
}

impl TouchedRequests {
    /// Records the effects on a request that ends at `now`. Equal effects are counted in one row; an edit of a request and one of its
    /// response count once.
    pub(crate) fn record<'a>(
        &self,
        touches: impl Iterator<Item = NamedTouch<'a>> + Clone,
        view: &RequestView,
        status: u16,
        now: Instant,
    ) {
        for (index, touch) in touches.clone().enumerate() {
            if touch.effect != Effect::Edited {
                self.record_other(touch, view, status, now);
            } else if !touches.clone().take(index).any(|earlier| earlier == touch) {
                self.record_edit(touch, view, status, now);
            }
        }
    }

    fn record_edit(&self, touch: NamedTouch<'_>, view: &RequestView, status: u16, now: Instant) {
        let now = now.saturating_duration_since(self.created).as_micros();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let is_same = |row: &&Arc<EditRow>| row.entry == touch.entry && row.rule == touch.rule;
        if let Some(row) = self.edits.load().iter().find(is_same) {
            return row.count(view, status, now);
        }
        let _adding = lock_unpoisoned(&self.others);
        let mut rows = Vec::clone(&self.edits.load());
        // Another thread may have been quicker.
        if let Some(row) = rows.iter().find(is_same) {
            return row.count(view, status, now);
        }
        if rows.len() >= MAX_ROWS {
            rows.sort_by_cached_key(|row| Reverse(row.last.load(Ordering::Relaxed)));
            rows.truncate(MAX_ROWS - 1);
        }
        let row = EditRow::new(touch);
        row.count(view, status, now);
        rows.push(Arc::new(row));
        self.edits.store(Arc::new(rows));
    }

    fn record_other(&self, touch: NamedTouch<'_>, view: &RequestView, status: u16, now: Instant) {
        let NamedTouch { entry, rule, effect } = touch;
        let request = request_name(view);
        let mut rows = lock_unpoisoned(&self.others);
        let is_same = |row: &Row| {
            let is_rule = row.effect == effect && row.entry == entry && row.rule == rule;
            is_rule && row.status == status && row.request == request
        };
        let known = rows.iter().position(is_same).and_then(|at| rows.remove(at));
        let row = Row {
            entry: entry.to_owned(),
            rule: rule.to_owned(),
            effect,
            request,
            status,
            count: known.map_or(1, |known| known.count.saturating_add(1)),
            last: now,
        };
        if rows.len() >= MAX_ROWS {
            rows.pop_front();
        }
        rows.push_back(row);
    }

    /// The rows, the latest first. `wall` and `now` are the current time by both clocks.
    pub(crate) fn status_rows(&self, wall: SystemTime, now: Instant) -> Vec<status::Touched> {
        let time_of = |last: Instant| {
            let time = wall.checked_sub(now.saturating_duration_since(last));
            rfc3339(time.unwrap_or(SystemTime::UNIX_EPOCH))
        };
        let others = lock_unpoisoned(&self.others);
        let others = others.iter().rev();
        let others = others.map(|row| (row.last, row.status_row(time_of(row.last))));
        let mut rows: Vec<_> = others.collect();
        rows.extend(self.edits.load().iter().map(|row| {
            let last = self.created + Duration::from_micros(row.last.load(Ordering::Relaxed));
            (last, row.status_row(time_of(last)))
        }));
        rows.sort_by_key(|(last, _)| Reverse(*last));
        rows.truncate(MAX_ROWS);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}

impl EditRow {
    fn new(touch: NamedTouch<'_>) -> Self {
        Self {
            entry: touch.entry.to_owned(),
            rule: touch.rule.to_owned(),
            count: AtomicU64::default(),
            last: AtomicU64::default(),
            example_since: AtomicU64::new(u64::MAX),
            example: Mutex::default(),
        }
    }

    /// `now`: microseconds since [`TouchedRequests::created`].
    fn count(&self, view: &RequestView, status: u16, now: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.last.store(now, Ordering::Relaxed);
        let since = self.example_since.load(Ordering::Relaxed);
        // The difference is absolute, because there may be no example yet.
        let is_old = now.abs_diff(since) >= EXAMPLE_MICROS;
        if is_old
            && self
                .example_since
                .compare_exchange(since, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            let request = request_name(view);
            *lock_unpoisoned(&self.example) = Example { request, status };
        }
    }

    fn status_row(&self, last: String) -> status::Touched {
        let example = lock_unpoisoned(&self.example);
        status::Touched {
            entry: self.entry.clone(),
            rule: self.rule.clone(),
            did: Effect::Edited.as_str().to_owned(),
            request: example.request.clone(),
            status: example.status,
            count: self.count.load(Ordering::Relaxed),
            last,
        }
    }
}

impl Row {
    fn status_row(&self, last: String) -> status::Touched {
        status::Touched {
            entry: self.entry.clone(),
            rule: self.rule.clone(),
            did: self.effect.as_str().to_owned(),
            request: self.request.clone(),
            status: self.status,
            count: self.count,
            last,
        }
    }
}

/// Examples: `update deployments.apps/status shop/web`, `get /healthz`, `CONNECT example.com:443`.
fn request_name(view: &RequestView) -> String {
    if view.traffic == Traffic::External {
        return printable(
            &format!("{} {}:{}", view.method, view.host, view.port),
            MAX_REQUEST_BYTES,
        );
    }
    let facts = &*view.facts;
    if facts.resource.is_empty() {
        return printable(&format!("{} {}", view.method, view.uri.path()), MAX_REQUEST_BYTES);
    }
    let mut text = format!("{} {}", facts.verb, facts.resource);
    for (before, part) in [(".", &facts.group), ("/", &facts.subresource)] {
        if !part.is_empty() {
            text.push_str(before);
            text.push_str(part);
        }
    }
    match (&*facts.namespace, &*facts.name) {
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
    use std::rc::Rc;

    use ctrlmesh_wire::Verb;

    use super::*;
    use crate::plugin::request_view::{ClientHeaders, Facts, RequestState};

    fn view_of(name: &str) -> RequestView {
        let facts = Facts {
            verb: Verb::Update,
            group: "apps".to_owned(),
            version: "v1".to_owned(),
            resource: "deployments".to_owned(),
            subresource: "status".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
        };
        RequestView {
            traffic: Traffic::Api,
            facts: Rc::new(facts),
            method: http::Method::PUT,
            uri: http::Uri::from_static("/apis/apps/v1/secret?token=x"),
            host: "api".into(),
            port: 443,
            is_leader_lock: Cell::new(false),
            headers: ClientHeaders::default(),
            state: RequestState::default(),
        }
    }

    fn named_touches(rule: &str, effect: Effect) -> impl Iterator<Item = NamedTouch<'_>> + Clone {
        let entry = "fault-inject/try";
        std::iter::once(NamedTouch { entry, rule, effect })
    }

    fn at(touched: &TouchedRequests, millis: u64) -> Instant {
        touched.created + Duration::from_millis(millis)
    }

    /// The wall clock's time then.
    fn wall(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + millis)
    }

    fn status_rows(touched: &TouchedRequests) -> Vec<status::Touched> {
        touched.status_rows(wall(60_000), at(touched, 60_000))
    }

    #[test]
    fn repeated_touch_is_counted_and_oldest_rows_go_first() {
        let touched = TouchedRequests::default();
        let refuse = |name: &str, status: u16, millis: u64| {
            let now = at(&touched, millis);
            touched.record(named_touches("a", Effect::Refused), &view_of(name), status, now);
        };
        refuse("old", 409, 0);
        for number in 0..MAX_ROWS as u64 - 1 {
            refuse(&number.to_string(), 409, number);
        }
        refuse("0", 409, 100);
        let rows = status_rows(&touched);
        assert_eq!(rows.len(), MAX_ROWS);
        assert_eq!(
            (rows[0].count, &*rows[0].request),
            (2, "update deployments.apps/status shop/0")
        );
        assert_eq!((rows[0].status, &*rows[0].did, &*rows[0].rule), (409, "refused", "a"));
        refuse("0", 500, 101);
        let rows = status_rows(&touched);
        assert_eq!(
            (rows.len(), rows[0].count),
            (MAX_ROWS, 1),
            "it was answered in another way"
        );
        assert!(!rows.iter().any(|row| row.request.ends_with("old")));
        let now = at(&touched, 102);
        touched.record(named_touches("a", Effect::Edited), &view_of("0"), 200, now);
        let rows = status_rows(&touched);
        assert_eq!(
            (rows.len(), &*rows[0].did, &*rows[1].did),
            (MAX_ROWS, "edited", "refused")
        );
    }

    #[test]
    fn all_edits_of_entry_are_one_row_with_the_request_of_the_last_second() {
        let touched = TouchedRequests::default();
        let edit = |rule: &str, name: &str, status: u16, millis: u64| {
            let now = at(&touched, millis);
            touched.record(named_touches(rule, Effect::Edited), &view_of(name), status, now);
            let row = status_rows(&touched).swap_remove(0);
            (
                row.count,
                row.request.rsplit('/').next().unwrap().to_owned(),
                row.status,
            )
        };
        assert_eq!(edit("", "a", 200, 0), (1, "a".to_owned(), 200));
        assert_eq!(edit("", "b", 404, 999), (2, "a".to_owned(), 200));
        assert_eq!(edit("", "c", 404, 1000), (3, "c".to_owned(), 404));
        assert_eq!(edit("other rule", "e", 200, 1001), (1, "e".to_owned(), 200));
        let both = named_touches("", Effect::Edited).chain(named_touches("", Effect::Edited));
        touched.record(both, &view_of("f"), 200, at(&touched, 2500));
        let rows = status_rows(&touched);
        assert_eq!((rows.len(), rows[0].count), (2, 4), "the request and its response");
        assert_eq!(rows[0].last, rfc3339(wall(2500)));
        let rows = touched.status_rows(wall(120_000), at(&touched, 60_000));
        assert_eq!(rows[0].last, rfc3339(wall(62_500)), "the clock was set");
    }

    #[test]
    fn rows_of_edits_are_bounded_and_oldest_go_first() {
        let touched = TouchedRequests::default();
        let edit = |rule: u64, millis: u64| {
            let rule = rule.to_string();
            let now = at(&touched, millis);
            touched.record(named_touches(&rule, Effect::Edited), &view_of("a"), 200, now);
        };
        let rows = MAX_ROWS as u64;
        (0..rows).for_each(|rule| edit(rule, rule));
        edit(0, rows);
        edit(rows, rows + 1);
        let rules: Vec<String> = status_rows(&touched).into_iter().map(|row| row.rule).collect();
        assert_eq!(rules.len(), MAX_ROWS);
        assert_eq!(rules[..2], [rows.to_string(), "0".to_owned()]);
        assert!(!rules.contains(&"1".to_owned()));
    }

    #[test]
    fn external_requests_are_named_without_path_and_query() {
        let mut external = view_of("");
        external.traffic = Traffic::External;
        external.host = "hooks.example.com".into();
        assert_eq!(request_name(&external), "PUT hooks.example.com:443");
        external.traffic = Traffic::Api;
        external.facts = Rc::new(Facts::without_resource());
        assert_eq!(request_name(&external), "PUT /apis/apps/v1/secret");
    }

    #[test]
    fn touches_are_described_for_access_log() {
        let both = named_touches("a", Effect::Delayed).chain(named_touches("", Effect::Lost));
        assert_eq!(
            describe_touches(both),
            "delayed by fault-inject/try (rule a), lost by fault-inject/try"
        );
        assert_eq!(describe_touches(std::iter::empty()), "");
    }
}
