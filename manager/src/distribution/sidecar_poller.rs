//! Follows sidecars: a task for each pod asks it again and again, and says which namespace has dirty.
//!
//! Guarantees: a pass never waits for a pod; at most [`CONCURRENCY`] are asked at a time; a pod that says nothing new, or
//! nothing, is asked less and less often, unless it is waited for. One lost answer is none: [`LOST`]. Tasks are owned here, and end with their pod or with this.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ctrlmesh_contract::status::{EntryStatus, LeaderElection, StaleCache, Status};
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit};
use tokio::task::{AbortHandle, JoinSet};

use super::Metrics;
use super::dirty_namespaces::DirtyNamespaces;
use super::fleet::{Report, Sidecar, UNASKED};
use super::status_client::{NO_ADDRESS, StatusClient};

/// Sidecars that are asked at a time, over all namespaces.
const CONCURRENCY: usize = 64;
/// The same of those that did not answer last, which take as long as an answer may (`poll::DEADLINE`): they must not hold up those that
/// do.
/// That is 32 questions a second that lead to nothing: 96 pods can be asked as often as they may be waited for, each
/// [`AWAITED_SILENT`] after the one before has failed; of 400, say after the loss of some nodes, each is asked every 12.5 s.
const SILENT_CONCURRENCY: usize = 64;
/// Until a sidecar that had dirty is asked again.
const SOON: Duration = Duration::from_millis(150);
/// The same, if it answers and has yet to load the chain, or to end what began before it.
const AWAITED: Duration = Duration::from_millis(500);
/// The same, if it does not answer: one question that is lost must not look like a pod that is.
const AWAITED_SILENT: Duration = Duration::from_secs(1);
/// From so many questions in a row without an answer on, there is none. Before that the last one stands.
pub(super) const LOST: u32 = 2;

/// What was report of a pod last.
#[derive(Clone, Debug)]
pub(super) struct LastReport {
    pub(super) answer: Report,
    /// When it was asked: the answer is not older. `None`: it was not asked yet.
    pub(super) asked: Option<Instant>,
    /// Questions in a row that had no answer.
    pub(super) failures: u32,
    /// It was asked since the chain lies there, and since its pod has the labels that it has.
    pub(super) is_fresh: bool,
}

/// Follows.
pub(super) struct SidecarPoller {
    client: StatusClient,
    /// Longest pause between two questions.
    longest: Duration,
    permits: Arc<PollPermits>,
    dirty: Arc<DirtyNamespaces>,
    metrics: Arc<crate::metrics::Metrics>,
    tasks_of: Mutex<PollTasks>,
}

#[derive(Default)]
struct PollTasks {
    of: HashMap<String, BTreeMap<String, PollTask>>,
    tasks: JoinSet<()>,
}

/// A pod that is followed.
struct PollTask {
    sidecar: Sidecar,
    /// Since when the chain and the pod's labels are as they are.
    since: Instant,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl PollTask {
    /// What was report last of a sidecar that is this now.
    fn last_report(&mut self, sidecar: &Sidecar, is_new: bool) -> LastReport {
        let report = self.shared.report();
        let is_other = is_new || self.sidecar.labels != sidecar.labels;
        if is_other {
            self.since = Instant::now();
        }
        // A sidecar that starts, or starts again, changes its pod.
        let is_lost = report.failures > 0 || matches!(report.answer, Report::Unavailable(_));
        let is_changed = self.sidecar.version != sidecar.version && is_lost;
        if is_other || is_changed {
            self.shared.wake.notify_one();
        }
        self.shared.is_changed.fetch_or(is_changed, Ordering::Relaxed);
        self.sidecar.clone_from(sidecar);
        let is_fresh = report.is_fresh && report.asked.is_some_and(|asked| asked >= self.since);
        LastReport { is_fresh, ..report }
    }
}

impl Drop for PollTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a task and passes share.
struct Shared {
    report: Mutex<LastReport>,
    wake: Notify,
    /// The chain waits for it.
    is_awaited: AtomicBool,
    /// Its pod has changed since it was asked last, and it had not answered.
    is_changed: AtomicBool,
}

/// Who may be asked now.
struct PollPermits {
    answering: Semaphore,
    silent: Semaphore,
}

impl Default for PollPermits {
    fn default() -> Self {
        Self {
            answering: Semaphore::new(CONCURRENCY),
            silent: Semaphore::new(SILENT_CONCURRENCY),
        }
    }
}

impl PollPermits {
    async fn acquire(&self, shared: &Shared) -> Result<SemaphorePermit<'_>, AcquireError> {
        let permit = loop {
            tokio::select! {
                permit = self.for_sidecar(shared).acquire() => break permit,
                // Perhaps it is among others now.
                () = shared.wake.notified() => {}
            }
        };
        shared.is_changed.store(false, Ordering::Relaxed);
        permit
    }

    /// Who starts has not answered, and changes its pod: it does not wait for those that are lost.
    fn for_sidecar(&self, shared: &Shared) -> &Semaphore {
        let report = shared.report();
        let is_silent = report.asked.is_some() && matches!(report.answer, Report::Unavailable(_));
        if is_silent && !shared.is_changed.load(Ordering::Relaxed) {
            &self.silent
        } else {
            &self.answering
        }
    }
}

impl SidecarPoller {
    pub(super) fn new(
        client: StatusClient,
        longest: Duration,
        dirty: Arc<DirtyNamespaces>,
        metrics: Arc<crate::metrics::Metrics>,
    ) -> Self {
        Self {
            client,
            longest,
            permits: Arc::default(),
            dirty,
            metrics,
            tasks_of: Mutex::default(),
        }
    }

    fn tasks_of(&self) -> MutexGuard<'_, PollTasks> {
        self.tasks_of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows these sidecars of a namespace and no others, and says what was report last. `is_new`: the chain is another one,
    /// they are asked now. Those that are awaited are asked more often.
    pub(super) fn track(&self, namespace: &str, sidecars: &[Sidecar], is_new: bool) -> BTreeMap<String, LastReport> {
        let mut tasks_of = self.tasks_of();
        let PollTasks { of, tasks } = &mut *tasks_of;
        while tasks.try_join_next().is_some() {}
        let tasks_of = of.entry(namespace.to_owned()).or_default();
        let mut before = std::mem::take(tasks_of);
        let mut all = BTreeMap::new();
        for sidecar in sidecars {
            if sidecar.ip.is_none() {
                let answer = Report::Unavailable(NO_ADDRESS.to_owned());
                let report = LastReport {
                    answer,
                    asked: Some(Instant::now()),
                    failures: 0,
                    is_fresh: true,
                };
                all.insert(sidecar.pod.clone(), report);
                continue;
            }
            let is_it = |poll: &PollTask| poll.sidecar.is_same_process(sidecar) && !poll.task.is_finished();
            let mut poll = match before.remove(&sidecar.pod).filter(is_it) {
                Some(poll) => poll,
                None => self.start_task(namespace, sidecar, tasks),
            };
            all.insert(sidecar.pod.clone(), poll.last_report(sidecar, is_new));
            tasks_of.insert(sidecar.pod.clone(), poll);
        }
        all
    }

    /// Says which pods of a namespace the chain waits for.
    pub(super) fn prioritize(&self, namespace: &str, pods: &BTreeSet<&str>) {
        let tasks_of = self.tasks_of();
        for (pod, poll) in tasks_of.of.get(namespace).into_iter().flatten() {
            let is_awaited = pods.contains(pod.as_str());
            if !poll.shared.is_awaited.swap(is_awaited, Ordering::Relaxed) && is_awaited {
                poll.shared.wake.notify_one();
            }
        }
    }

    /// Keeps following pods of these namespaces alone.
    pub(super) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.tasks_of().of.retain(|namespace, _| is_there(namespace));
    }

    fn start_task(&self, namespace: &str, sidecar: &Sidecar, tasks: &mut JoinSet<()>) -> PollTask {
        let shared = Arc::new(Shared::new());
        let task = PollLoop {
            namespace: namespace.to_owned(),
            sidecar: sidecar.clone(),
            client: self.client.clone(),
            longest: self.longest,
            permits: Arc::clone(&self.permits),
            dirty: Arc::clone(&self.dirty),
            metrics: Arc::clone(&self.metrics),
            shared: Arc::clone(&shared),
        };
        PollTask {
            sidecar: sidecar.clone(),
            since: Instant::now(),
            shared,
            task: tasks.spawn(task.run()),
        }
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            report: Mutex::new(LastReport {
                answer: Report::Unavailable(UNASKED.to_owned()),
                asked: None,
                failures: 0,
                is_fresh: false,
            }),
            wake: Notify::new(),
            is_awaited: AtomicBool::new(false),
            is_changed: AtomicBool::new(false),
        }
    }

    fn report(&self) -> LastReport {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what came of a question. Whether it is something new.
    fn record(&self, asked: Instant, answer: Report) -> bool {
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.failures = match answer {
            Report::Status(_) => 0,
            Report::Unavailable(_) => report.failures.saturating_add(1),
        };
        if report.failures < LOST && matches!((&report.answer, &answer), (Report::Status(_), Report::Unavailable(_))) {
            report.is_fresh = false;
            return false;
        }
        let is_change = is_change(&report.answer, &answer);
        *report = LastReport {
            answer,
            asked: Some(asked),
            failures: report.failures,
            is_fresh: true,
        };
        is_change
    }
}

/// The task of one pod.
struct PollLoop {
    namespace: String,
    sidecar: Sidecar,
    client: StatusClient,
    longest: Duration,
    permits: Arc<PollPermits>,
    dirty: Arc<DirtyNamespaces>,
    metrics: Arc<crate::metrics::Metrics>,
    shared: Arc<Shared>,
}

impl PollLoop {
    async fn run(self) {
        let mut pause = SOON;
        loop {
            let is_change = self.poll_once().await;
            let report = self.shared.report();
            pause = next_pause(pause, is_change, &report, self.longest);
            let is_awaited = self.shared.is_awaited.load(Ordering::Relaxed);
            tokio::select! {
                () = tokio::time::sleep(awaited_pause(pause, is_awaited, &report.answer)) => {}
                () = self.shared.wake.notified() => pause = SOON,
            }
        }
    }

    /// Whether there is something new.
    async fn poll_once(&self) -> bool {
        let Ok(_permit) = self.permits.acquire(&self.shared).await else {
            return false;
        };
        let asked = Instant::now();
        let answer = self.client.fetch(&self.namespace, &self.sidecar).await;
        let metrics: &Metrics = &self.metrics.distribution;
        metrics.polls.inc();
        if matches!(answer, Report::Unavailable(_)) {
            metrics.polls_failed.inc();
        }
        let is_change = self.shared.record(asked, answer);
        if is_change {
            self.dirty.add(&self.namespace);
        }
        is_change
    }
}

/// Twice as long each time, unless a sidecar that answers had dirty, or did not answer for the first time.
fn next_pause(last: Duration, is_change: bool, report: &LastReport, longest: Duration) -> Duration {
    let is_soon = report.failures == 1 || is_change && matches!(report.answer, Report::Status(_));
    if is_soon { SOON } else { last * 2 }.min(longest)
}

/// No longer than those who wait for it can bear.
fn awaited_pause(pause: Duration, is_awaited: bool, answer: &Report) -> Duration {
    match answer {
        _ if !is_awaited => pause,
        Report::Status(_) => pause.min(AWAITED),
        Report::Unavailable(_) => pause.min(AWAITED_SILENT),
    }
}

/// Whether a pass could do something with it. What only metrics up is told when the next pass comes.
fn is_change(before: &Report, after: &Report) -> bool {
    match (before, after) {
        (Report::Status(before), Report::Status(after)) => significant_fields(before) != significant_fields(after),
        (Report::Unavailable(before), Report::Unavailable(after)) => before != after,
        _ => true,
    }
}

fn significant_fields(status: &Status) -> impl PartialEq + use<> {
    let entry = |entry: &EntryStatus| {
        let reports = entry.reports.iter();
        let states = reports.filter_map(|(key, report)| Some((key.clone(), report.get("state")?.clone())));
        let states: Vec<_> = states.collect();
        (
            entry.name.clone(),
            entry.plugin,
            entry.settings_hash.clone(),
            entry.state,
            states,
        )
    };
    let earlier = status.chain.earlier;
    let cache = |cache: &StaleCache| {
        let is_repeated = cache.refused_watches > 1;
        (
            cache.client.clone(),
            cache.resource.clone(),
            is_repeated,
            cache.given_up,
        )
    };
    // Who leads elsewhere its own sidecar tells.
    let leads = |election: &LeaderElection| {
        let of = || (election.lock.clone(), election.holder.clone(), election.since.clone());
        election.leads.then(of)
    };
    (
        (status.chain.generation, status.chain.digest),
        status.chain.entries.iter().map(entry).collect::<Vec<_>>(),
        [earlier.writes, earlier.lists, earlier.watches, earlier.caches].map(|count| count == 0),
        status.chain.stale_caches.iter().map(cache).collect::<Vec<_>>(),
        status
            .refused
            .as_ref()
            .map(|refused| (refused.generation, refused.reason.clone())),
        status.leader_elections.iter().filter_map(leads).collect::<Vec<_>>(),
        status
            .api_traffic
            .as_ref()
            .is_some_and(|traffic| traffic.last.is_some()),
        status.supports.clone(),
    )
}

#[cfg(test)]
mod tests;
