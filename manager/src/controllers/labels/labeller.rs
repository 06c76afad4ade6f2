//! Labels the objects of one kind, and keeps account of a pass over them.
//!
//! Reading does not wait for writing: a list that is read as slowly as a cluster may be written would expire, and its watch with
//! it. Pending writes are queued, without the objects. If the queue is full, the rest is left to another pass.
//!
//! Failed writes are kept for a while and retried. Only if there are too many, all objects are checked again. A kind that may not
//! be written is reported once, and retried after as long a pause.
//!
//! An object has one write in flight at most. However often it changes meanwhile, one more follows.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::OptionFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::discovery::ApiResource;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::progress::{Report, Tally};
use super::queue::Queue;
use super::write::{Object, Outcome, Work, write_labels};
use super::write_limiter::WriteLimiter;
use super::{MAX_WRITES, Shared};
use crate::cluster::error_text;
use crate::metrics::labels::Kind;
use ctrlmesh_manager_planner::labels::rules::Changes;

/// Consecutive forbidden writes after which the kind counts as one that may not be written.
const MAX_FORBIDDEN: u32 = 16;

/// The state of one kind.
pub(super) struct Labeller {
    shared: Shared,
    kind: ApiResource,
    name: String,
    todo: Queue,
    writes: JoinSet<(Work, Outcome)>,
    under_way: HashMap<Id, String>,
    failed: Queue,
    /// Forbidden writes since the last one that was not.
    forbidden: u32,
    limiter: WriteLimiter,
    counters: Counters,
    tally: Tally,
    stage: Stage,
    /// `todo` had no room for everything in the list.
    is_short: bool,
    /// Something was written since all objects were listed.
    is_moving: bool,
    /// There were more failures than are kept, so all objects have to be checked again.
    is_lost: bool,
    /// When failed writes are retried.
    again: Option<Instant>,
    delay: Duration,
    /// Whether unreadable objects were reported.
    is_unreadable: bool,
}

/// The stage of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Listing,
    /// All objects were seen, but not all are written.
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
            delay: shared.limits.repeat,
            todo: Queue::new(shared.limits.todo),
            failed: Queue::new(shared.limits.failed),
            shared,
            kind,
            name,
            writes: JoinSet::new(),
            under_way: HashMap::new(),
            forbidden: 0,
            limiter: WriteLimiter::new(Instant::now()),
            tally: Tally::default(),
            stage: Stage::Listing,
            is_short: false,
            is_moving: false,
            is_lost: false,
            again: None,
            is_unreadable: false,
        }
    }

    /// All objects of the kind.
    pub(super) fn all_objects(&self) -> Api<Object> {
        Api::all_with(self.shared.context.background.clone(), &self.kind)
    }

    /// Objects of the kind in one namespace.
    pub(super) fn objects_in(&self, namespace: &str) -> Api<Object> {
        Api::namespaced_with(self.shared.context.background.clone(), namespace, &self.kind)
    }

    /// A list begins. It includes everything that was still to be done.
    pub(super) fn begin_list(&mut self) {
        self.counters.is_done.set(0);
        // Failed objects are in the list again.
        self.tally = Tally {
            written: if self.is_short { self.tally.written } else { 0 },
            ..Tally::default()
        };
        self.stage = Stage::Listing;
        self.todo.clear();
        self.failed.clear();
        // One more forbidden write will be enough.
        self.forbidden = self.forbidden.min(MAX_FORBIDDEN - 1);
        self.is_short = false;
        self.is_moving = false;
        self.is_lost = false;
        self.again = None;
    }

    /// A list was read to its end.
    pub(super) fn finish_list(&mut self) {
        self.stage = Stage::Writing;
        self.is_unreadable = false;
    }

    /// The objects can't be read.
    pub(super) async fn report_unreadable(&mut self, error: &kube::runtime::watcher::Error) {
        tracing::warn!(
            kind = self.name,
            error = error_text(error),
            "watch of objects failed; retrying"
        );
        if !self.is_unreadable {
            self.report(Report::Unreadable(self.name.clone(), error_text(error)))
                .await;
            self.is_unreadable = true;
        }
    }

    /// An object was checked.
    pub(super) fn queue_changes(&mut self, object: &ObjectMeta, changes: Option<&Changes>) {
        self.counters.seen.inc();
        self.tally.seen += 1;
        if changes.is_none() {
            return;
        }
        let Some(work) = Work::new(object) else { return };
        let uid = uid_or_name(object);
        if !self.is_writable() {
            self.tally.failed += 1;
            self.queue_failed(&uid, work);
        } else if self.todo.put(&uid, work) {
            self.start_writes();
        } else {
            self.is_short = true;
        }
    }

    /// An object could not be checked.
    pub(super) fn retry_unchecked(&mut self, object: &ObjectMeta) {
        match Work::new(object) {
            Some(work) => self.record_failed(&uid_or_name(object), work),
            None => self.lose_track(),
        }
    }

    /// Objects could not be checked, and it is not known which.
    pub(super) fn lose_track(&mut self) {
        self.is_lost = true;
        self.count_failed();
    }

    const fn is_writable(&self) -> bool {
        self.forbidden < MAX_FORBIDDEN
    }

    /// The next object to write. Objects with a write in flight are skipped.
    fn next(&mut self) -> Option<(String, Work)> {
        let is_free = |uid: &str| self.under_way.values().all(|other| other != uid);
        self.todo.pop_if(is_free)
    }

    /// Starts as many writes as are allowed.
    fn start_writes(&mut self) {
        while self.writes.len() < MAX_WRITES
            && let Some((uid, work)) = self.next()
        {
            if !self.limiter.admits_write(&uid, Instant::now()) {
                tracing::warn!(
                    kind = self.name,
                    ?work,
                    "another writer keeps reverting the labels; backing off"
                );
                self.counters.contested.inc();
                self.record_failed(&uid, work);
                continue;
            }
            let objects = match &work {
                Work::Object { namespace, .. } => self.objects_in(namespace),
                Work::Namespace(_) => self.all_objects(),
            };
            let (shared, mut work) = (self.shared.clone(), work);
            let task = self.writes.spawn(async move {
                // The semaphore is never closed.
                let _permit = shared.permits.acquire().await;
                let outcome = write_labels(&objects, &shared.namespaces, &shared.keys, &mut work).await;
                (work, outcome)
            });
            self.under_way.insert(task.id(), uid);
        }
    }

    /// Writes until all objects have to be checked again. Cancel-safe.
    pub(super) async fn write_queued(&mut self) {
        loop {
            if self.todo.is_empty() && self.writes.is_empty() && self.stage != Stage::Listing {
                if self.is_short && self.is_moving {
                    self.stage = Stage::Listing;
                    return;
                }
                if std::mem::take(&mut self.is_short) {
                    // If listed at once, the same objects would fail again, and so on without a pause.
                    self.lose_track();
                }
                self.finish_pass().await;
            }
            // A list that has begun is read to its end first.
            let again = self.again.filter(|_| self.stage == Stage::Done);
            tokio::select! {
                Some(ended) = self.writes.join_next_with_id() => {
                    self.record_outcome(ended);
                    self.start_writes();
                }
                Some(()) = OptionFuture::from(again.map(sleep_until)) => {
                    self.again = None;
                    if self.is_lost {
                        return;
                    }
                    self.try_failed();
                }
                else => std::future::pending().await,
            }
        }
    }

    fn try_failed(&mut self) {
        self.stage = Stage::Writing;
        self.tally.failed = 0;
        self.forbidden = 0;
        while let Some((uid, work)) = self.failed.pop() {
            self.is_short |= !self.todo.put(&uid, work);
        }
        self.start_writes();
    }

    async fn finish_pass(&mut self) {
        if self.stage == Stage::Done {
            return;
        }
        let name = self.name.clone();
        if self.is_writable() {
            self.report(Report::Done(name, self.tally)).await;
        } else {
            self.report(Report::Unwritable(name)).await;
        }
        tracing::info!(kind = self.name, tally = %self.tally, "back-fill of labels finished");
        self.stage = Stage::Done;
        if self.tally.failed == 0 {
            self.delay = self.shared.limits.repeat;
            self.counters.is_done.set(1);
        }
    }

    async fn report(&self, report: Report) {
        // The receiver is dropped when the manager stops.
        let _ = self.shared.reports.send(report).await;
    }

    /// Records the outcome of a write.
    fn record_outcome(&mut self, ended: Result<(Id, (Work, Outcome)), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let uid = self.under_way.remove(&id).unwrap_or_default();
        let Ok((_, (work, outcome))) = ended else {
            return self.lose_track();
        };
        if outcome != Outcome::Written {
            self.limiter.take_back(&uid);
        }
        self.is_moving |= matches!(outcome, Outcome::Gone | Outcome::Written);
        match outcome {
            Outcome::Gone => {}
            Outcome::Written => {
                self.counters.written.inc();
                self.tally.written += 1;
                self.forbidden = 0;
            }
            Outcome::Failed => self.record_failed(&uid, work),
            Outcome::Forbidden => self.record_forbidden(&uid, work),
        }
    }

    fn record_forbidden(&mut self, uid: &str, work: Work) {
        let was_writable = self.is_writable();
        self.forbidden = self.forbidden.saturating_add(1);
        if self.is_writable() {
            tracing::warn!(kind = self.name, ?work, "not permitted to write labels; retrying later");
        }
        self.record_failed(uid, work);
        if was_writable && !self.is_writable() {
            tracing::warn!(
                kind = self.name,
                "not permitted to write any labels of this kind; grant the manager patch on it"
            );
            while let Some((uid, work)) = self.todo.pop() {
                self.tally.failed += 1;
                self.queue_failed(&uid, work);
            }
        }
    }

    fn record_failed(&mut self, uid: &str, work: Work) {
        self.queue_failed(uid, work);
        self.count_failed();
    }

    fn queue_failed(&mut self, uid: &str, work: Work) {
        self.is_lost |= !self.failed.put(uid, work);
    }

    fn count_failed(&mut self) {
        self.counters.failed.inc();
        self.counters.is_done.set(0);
        self.tally.failed += 1;
        if self.again.is_none() {
            self.again = Some(Instant::now() + self.delay);
            self.delay = (self.delay * 2).min(self.shared.limits.longest_repeat);
        }
    }
}

fn uid_or_name(object: &ObjectMeta) -> String {
    let by_name = || format!("{:?}/{:?}", object.namespace, object.name);
    object.uid.clone().unwrap_or_else(by_name)
}

/// `deployments.apps`, `pods`.
pub(super) fn name_of(kind: &ApiResource) -> String {
    if kind.group.is_empty() {
        kind.plural.clone()
    } else {
        format!("{}.{}", kind.plural, kind.group)
    }
}
