//! Has the labels of one kind written, and keeps the books of a pass over its objects.
//!
//! Reading does not wait for writing: a list that is read as slowly as a cluster may be written would expire, and its watch with
//! it. What is to be written is queued, without the object; if that is too much, the rest is left to another pass.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::OptionFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::discovery::ApiResource;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::contest::Contest;
use super::metrics::Kind;
use super::progress::{Report, Tally};
use super::rules::Changes;
use super::write::{Object, Outcome, Work, write};
use super::{MAX_WRITES, Shared};

/// Objects of one kind that wait to be written. Some two hundred bytes each.
const MAX_TODO: usize = 8192;

/// The books of one kind.
pub(super) struct Labeller {
    shared: Shared,
    kind: ApiResource,
    name: String,
    todo: VecDeque<Work>,
    writes: JoinSet<Outcome>,
    contest: Contest,
    counters: Counters,
    tally: Tally,
    stage: Stage,
    /// Not all that the list had found a place in `todo`.
    is_short: bool,
    /// When to look at all objects again, because something failed.
    again: Option<Instant>,
    delay: Duration,
    /// It was said that they can't be read.
    is_unreadable: bool,
}

/// How far a pass is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Listing,
    /// All was seen; not all is written.
    Writing,
    Done,
}

struct Counters {
    seen: Counter,
    written: Counter,
    failed: Counter,
    contested: Counter,
    is_done: Gauge,
}

impl Counters {
    fn new(shared: &Shared, name: &str) -> Self {
        let (metrics, kind) = (&shared.context.metrics.labels, Kind { kind: name.to_owned() });
        Self {
            seen: metrics.seen.get_or_create(&kind).clone(),
            written: metrics.written.get_or_create(&kind).clone(),
            failed: metrics.failed.get_or_create(&kind).clone(),
            contested: metrics.contested.get_or_create(&kind).clone(),
            is_done: metrics.is_done.get_or_create(&kind).clone(),
        }
    }
}

impl Labeller {
    pub(super) fn new(shared: Shared, kind: ApiResource) -> Self {
        let name = name_of(&kind);
        Self {
            counters: Counters::new(&shared, &name),
            delay: shared.pace.repeat,
            shared,
            kind,
            name,
            todo: VecDeque::new(),
            writes: JoinSet::new(),
            contest: Contest::new(Instant::now()),
            tally: Tally::default(),
            stage: Stage::Listing,
            is_short: false,
            again: None,
            is_unreadable: false,
        }
    }

    /// All objects of the kind.
    pub(super) fn objects(&self) -> Api<Object> {
        Api::all_with(self.shared.context.background.clone(), &self.kind)
    }

    /// Those of one namespace.
    pub(super) fn objects_in(&self, namespace: &str) -> Api<Object> {
        Api::namespaced_with(self.shared.context.background.clone(), namespace, &self.kind)
    }

    /// A list begins. It has all that was still to be done, too.
    pub(super) fn begin(&mut self) {
        self.counters.is_done.set(0);
        self.tally = match self.is_short {
            true => Tally { seen: 0, ..self.tally },
            false => Tally::default(),
        };
        self.stage = Stage::Listing;
        self.todo.clear();
        self.is_short = false;
        self.again = None;
    }

    /// A list was read to its end.
    pub(super) fn listed(&mut self) {
        self.stage = Stage::Writing;
        self.is_unreadable = false;
    }

    /// The objects can't be read.
    pub(super) async fn fail(&mut self, error: &kube::runtime::watcher::Error) {
        tracing::warn!(kind = self.name, %error, "objects can't be watched; trying again");
        if !self.is_unreadable {
            self.report(Report::Unreadable(self.name.clone(), error.to_string()))
                .await;
            self.is_unreadable = true;
        }
    }

    /// An object was looked at.
    pub(super) fn label(&mut self, object: &ObjectMeta, changes: Option<&Changes>) {
        self.counters.seen.inc();
        self.tally.seen += 1;
        if changes.is_none() {
            return;
        }
        if self.todo.len() >= MAX_TODO {
            self.is_short = true;
            return;
        }
        if !self
            .contest
            .admits(object.uid.as_deref().unwrap_or_default(), Instant::now())
        {
            let (namespace, name) = (object.namespace.as_deref(), object.name.as_deref());
            tracing::warn!(
                kind = self.name,
                namespace,
                name,
                "somebody undoes its labels; putting it off"
            );
            self.counters.contested.inc();
            return self.failed();
        }
        self.todo.extend(Work::new(object));
        self.fill();
    }

    /// Has as much written at once as may be.
    fn fill(&mut self) {
        while self.writes.len() < MAX_WRITES
            && let Some(work) = self.todo.pop_front()
        {
            let objects = match &work {
                Work::Object { namespace, .. } => self.objects_in(namespace),
                Work::Namespace(_) => self.objects(),
            };
            let shared = self.shared.clone();
            self.writes.spawn(async move {
                // Never closed.
                let _permit = shared.permits.acquire().await;
                write(&objects, &shared.namespaces, &shared.keys, work).await
            });
        }
    }

    /// Writes until all objects are to be looked at again. Loses nothing if it is dropped.
    pub(super) async fn work(&mut self) {
        loop {
            if self.todo.is_empty() && self.writes.is_empty() && self.stage != Stage::Listing {
                if self.is_short {
                    self.stage = Stage::Listing;
                    return;
                }
                self.end().await;
            }
            let again = self.again;
            tokio::select! {
                Some(outcome) = self.writes.join_next() => {
                    self.book(outcome.unwrap_or(Outcome::Failed));
                    self.fill();
                }
                Some(()) = OptionFuture::from(again.map(sleep_until)) => {
                    self.again = None;
                    return;
                }
                else => std::future::pending().await,
            }
        }
    }

    async fn end(&mut self) {
        if self.stage == Stage::Done {
            return;
        }
        self.report(Report::Done(self.name.clone(), self.tally)).await;
        tracing::info!(kind = self.name, tally = %self.tally, "looked at every object");
        self.stage = Stage::Done;
        if self.tally.failed == 0 {
            self.delay = self.shared.pace.repeat;
            self.counters.is_done.set(1);
        }
    }

    async fn report(&self, report: Report) {
        // The receiver is gone when all stops.
        let _ = self.shared.reports.send(report).await;
    }

    /// Something failed that can be mended by looking at all objects again.
    pub(super) fn failed(&mut self) {
        self.book(Outcome::Failed);
    }

    fn book(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Gone => {}
            Outcome::Written => {
                self.counters.written.inc();
                self.tally.written += 1;
            }
            Outcome::Failed => {
                self.counters.failed.inc();
                self.counters.is_done.set(0);
                self.tally.failed += 1;
                if self.again.is_none() {
                    self.again = Some(Instant::now() + self.delay);
                    self.delay = (self.delay * 2).min(self.shared.pace.longest_repeat);
                }
            }
        }
    }
}

/// `deployments.apps`, `pods`.
pub(super) fn name_of(kind: &ApiResource) -> String {
    if kind.group.is_empty() {
        kind.plural.clone()
    } else {
        format!("{}.{}", kind.plural, kind.group)
    }
}
