//! Polls sidecars in the background: a task per pod fetches its status again and again ([`SidecarPoller`]), and marks the
//! namespace for a pass when something has changed ([`DirtyNamespaces`]).
//!
//! Guarantees: a pass never waits for a pod. At most [`CONCURRENCY`] sidecars are polled at a time. A pod whose report is unchanged, or
//! without one, is polled less and less often, unless the rollout waits for it. A single failed poll does not replace the
//! last report ([`FAILED_POLLS_UNTIL_VOID`]). A task ends with its pod, and all end with the poller.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ctrlmesh_contract::status::{EntryStatus, LeaderElection, StaleCache, Status};
use futures_util::{Stream, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{AcquireError, Notify, Semaphore, SemaphorePermit};
use tokio::task::{AbortHandle, JoinSet};

use crate::cluster::lock_unpoisoned;
use crate::metrics::Metrics;
use ctrlmesh_manager_rollout::fleet::{FAILED_POLLS_UNTIL_VOID, LastReport, NOT_POLLED, Report, Sidecar};

/// Sidecars that are polled at a time, over all namespaces.
const CONCURRENCY: usize = 64;
/// The same for those that did not answer last. They take as long as [`POLL_TIMEOUT`] allows, and must not hold up those that
/// answer. This makes 32 failing polls a second: 96 pods can be polled as often as they may be waited for, each
/// [`AWAITED_SILENT_PAUSE`] after the poll before has failed; of 400, say after the loss of some nodes, each is polled every 12.5 s.
const SILENT_CONCURRENCY: usize = 64;
/// Pause after a status that has changed.
const PAUSE_AFTER_CHANGE: Duration = Duration::from_millis(150);
/// Longest pause for a sidecar that answers, but has yet to load the chain or to end what began before it.
const AWAITED_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause for a sidecar that is waited for and does not answer: one lost poll must not look like a lost pod.
const AWAITED_SILENT_PAUSE: Duration = Duration::from_secs(1);
/// Limit for one poll. A sidecar that takes longer is polled again.
pub(crate) const POLL_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest status that is read. 64 entries take some 30 KiB; the rest is for reports of plugins.
pub(crate) const MAX_STATUS_BYTES: usize = 256 * 1024;
/// Time for which changes are collected, so that the reports of many sidecars lead to few passes.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Polls the sidecars of all namespaces.
pub(crate) struct SidecarPoller {
    client: StatusClient,
    /// Longest pause between two polls of a sidecar.
    longest: Duration,
    permits: Arc<PollPermits>,
    dirty: Arc<DirtyNamespaces>,
    metrics: Arc<Metrics>,
    tasks: Mutex<PollTasks>,
}

#[derive(Default)]
struct PollTasks {
    by_namespace: HashMap<String, BTreeMap<String, PollTask>>,
    join_set: JoinSet<()>,
}

/// A pod that is polled. Its task ends when this is dropped.
struct PollTask {
    sidecar: Sidecar,
    /// When the chain or the pod's labels last changed.
    since: Instant,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl PollTask {
    /// The last report, of a sidecar that is observed like this now.
    fn last_report(&mut self, sidecar: &Sidecar, is_new_chain: bool) -> LastReport {
        let last = self.shared.last_report();
        let is_other = is_new_chain || self.sidecar.labels != sidecar.labels;
        if is_other {
            self.since = Instant::now();
        }
        // A sidecar that starts or restarts changes its pod's status.
        let is_lost = last.failures > 0 || matches!(last.report, Report::Unavailable(_));
        let is_changed = self.sidecar.version != sidecar.version && is_lost;
        if is_other || is_changed {
            self.shared.wake.notify_one();
        }
        self.shared.is_changed.fetch_or(is_changed, Ordering::Relaxed);
        self.sidecar.clone_from(sidecar);
        let is_fresh = last.is_fresh && last.polled_at.is_some_and(|polled_at| polled_at >= self.since);
        LastReport { is_fresh, ..last }
    }
}

impl Drop for PollTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State that a poll task shares with passes.
struct Shared {
    last: Mutex<LastReport>,
    wake: Notify,
    /// The rollout waits for it.
    is_awaited: AtomicBool,
    /// The sidecar did not answer, and its pod has changed since.
    is_changed: AtomicBool,
}

/// Limits how many sidecars are polled at a time.
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
                // The task may need the other kind of permit now.
                () = shared.wake.notified() => {}
            }
        };
        shared.is_changed.store(false, Ordering::Relaxed);
        permit
    }

    /// A starting sidecar has not answered yet, but its pod changes: it does not wait among those that are lost.
    fn for_sidecar(&self, shared: &Shared) -> &Semaphore {
        let last = shared.last_report();
        let is_silent = last.polled_at.is_some() && matches!(last.report, Report::Unavailable(_));
        if is_silent && !shared.is_changed.load(Ordering::Relaxed) {
            &self.silent
        } else {
            &self.answering
        }
    }
}

impl SidecarPoller {
    pub(crate) fn new(
        client: StatusClient,
        longest: Duration,
        dirty: Arc<DirtyNamespaces>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            client,
            longest,
            permits: Arc::default(),
            dirty,
            metrics,
            tasks: Mutex::default(),
        }
    }

    fn poll_tasks(&self) -> MutexGuard<'_, PollTasks> {
        lock_unpoisoned(&self.tasks)
    }

    /// Polls exactly these sidecars of a namespace from now on, and returns their last reports. With `is_new_chain` all are
    /// polled at once.
    pub(crate) fn track(
        &self,
        namespace: &str,
        sidecars: &[Sidecar],
        is_new_chain: bool,
    ) -> BTreeMap<String, LastReport> {
        let mut all_tasks = self.poll_tasks();
        let PollTasks { by_namespace, join_set } = &mut *all_tasks;
        while join_set.try_join_next().is_some() {}
        let tasks = by_namespace.entry(namespace.to_owned()).or_default();
        let mut before = std::mem::take(tasks);
        let mut all = BTreeMap::new();
        for sidecar in sidecars {
            if sidecar.ip.is_none() {
                let last = LastReport {
                    report: Report::Unavailable(NO_ADDRESS.to_owned()),
                    polled_at: Some(Instant::now()),
                    failures: 0,
                    is_fresh: true,
                };
                all.insert(sidecar.pod.clone(), last);
                continue;
            }
            let is_it = |poll: &PollTask| poll.sidecar.is_same_process(sidecar) && !poll.task.is_finished();
            let mut poll = match before.remove(&sidecar.pod).filter(is_it) {
                Some(poll) => poll,
                None => self.start_task(namespace, sidecar, join_set),
            };
            all.insert(sidecar.pod.clone(), poll.last_report(sidecar, is_new_chain));
            tasks.insert(sidecar.pod.clone(), poll);
        }
        all
    }

    /// Polls these pods of a namespace more often, because the rollout waits for them.
    pub(crate) fn prioritize(&self, namespace: &str, pods: &BTreeSet<String>) {
        let all_tasks = self.poll_tasks();
        for (pod, poll) in all_tasks.by_namespace.get(namespace).into_iter().flatten() {
            let is_awaited = pods.contains(pod.as_str());
            if !poll.shared.is_awaited.swap(is_awaited, Ordering::Relaxed) && is_awaited {
                poll.shared.wake.notify_one();
            }
        }
    }

    /// Stops polling in all other namespaces.
    pub(crate) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.poll_tasks()
            .by_namespace
            .retain(|namespace, _| is_there(namespace));
    }

    fn start_task(&self, namespace: &str, sidecar: &Sidecar, join_set: &mut JoinSet<()>) -> PollTask {
        let shared = Arc::new(Shared::new());
        let poll_loop = PollLoop {
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
            task: join_set.spawn(poll_loop.run()),
        }
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            last: Mutex::new(LastReport {
                report: Report::Unavailable(NOT_POLLED.to_owned()),
                polled_at: None,
                failures: 0,
                is_fresh: false,
            }),
            wake: Notify::new(),
            is_awaited: AtomicBool::new(false),
            is_changed: AtomicBool::new(false),
        }
    }

    fn last_report(&self) -> LastReport {
        lock_unpoisoned(&self.last).clone()
    }

    /// Records the result of a poll. Returns whether a pass should look at it.
    fn record(&self, polled_at: Instant, report: Report) -> bool {
        let mut last = lock_unpoisoned(&self.last);
        last.failures = match report {
            Report::Status(_) => 0,
            Report::Unavailable(_) => last.failures.saturating_add(1),
        };
        if last.failures < FAILED_POLLS_UNTIL_VOID
            && matches!((&last.report, &report), (Report::Status(_), Report::Unavailable(_)))
        {
            last.is_fresh = false;
            return false;
        }
        let is_change = is_change(&last.report, &report);
        *last = LastReport {
            report,
            polled_at: Some(polled_at),
            failures: last.failures,
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
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
}

impl PollLoop {
    async fn run(self) {
        let mut pause = PAUSE_AFTER_CHANGE;
        loop {
            let is_change = self.poll_once().await;
            let last = self.shared.last_report();
            pause = next_pause(pause, is_change, &last, self.longest);
            let is_awaited = self.shared.is_awaited.load(Ordering::Relaxed);
            tokio::select! {
                () = tokio::time::sleep(awaited_pause(pause, is_awaited, &last.report)) => {}
                () = self.shared.wake.notified() => pause = PAUSE_AFTER_CHANGE,
            }
        }
    }

    /// Returns whether the result has changed for a pass.
    async fn poll_once(&self) -> bool {
        let Ok(_permit) = self.permits.acquire(&self.shared).await else {
            return false;
        };
        let polled_at = Instant::now();
        let report = self.client.fetch(&self.namespace, &self.sidecar).await;
        let metrics = &self.metrics.distribution;
        metrics.polls.inc();
        if matches!(report, Report::Unavailable(_)) {
            metrics.polls_failed.inc();
        }
        let is_change = self.shared.record(polled_at, report);
        if is_change {
            self.dirty.add(&self.namespace);
        }
        is_change
    }
}

/// Doubles the pause, unless the report has changed or a poll failed for the first time.
fn next_pause(pause: Duration, is_change: bool, last: &LastReport, longest: Duration) -> Duration {
    let is_soon = last.failures == 1 || is_change && matches!(last.report, Report::Status(_));
    if is_soon { PAUSE_AFTER_CHANGE } else { pause * 2 }.min(longest)
}

/// Shortens the pause for a sidecar that the rollout waits for.
fn awaited_pause(pause: Duration, is_awaited: bool, report: &Report) -> Duration {
    match report {
        _ if !is_awaited => pause,
        Report::Status(_) => pause.min(AWAITED_PAUSE),
        Report::Unavailable(_) => pause.min(AWAITED_SILENT_PAUSE),
    }
}

/// Whether a pass could act on the difference. Counters alone wait for the next pass.
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
    // A leader is reported by its own sidecar.
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

/// Fetches the status of one sidecar: bounded in time and size, and sure which pod answers.
#[derive(Clone, Debug)]
pub(crate) struct StatusClient {
    http: reqwest::Client,
    port: u16,
}

impl StatusClient {
    pub(crate) fn new(port: u16) -> reqwest::Result<Self> {
        // No proxy: sidecars are in the cluster.
        let http = reqwest::Client::builder()
            .no_proxy()
            // Plain HTTP only, so the image needs no CA certificates.
            .tls_certs_only([])
            .timeout(POLL_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .pool_idle_timeout(Duration::from_secs(30))
            .build()?;
        Ok(Self { http, port })
    }

    pub(crate) async fn fetch(&self, namespace: &str, sidecar: &Sidecar) -> Report {
        match self.status(namespace, sidecar).await {
            Ok(status) => Report::Status(Box::new(status)),
            Err(problem) => Report::Unavailable(problem),
        }
    }

    async fn status(&self, namespace: &str, sidecar: &Sidecar) -> Result<Status, String> {
        let ip = sidecar.ip.as_deref().ok_or(NO_ADDRESS)?;
        let host = if ip.contains(':') {
            format!("[{ip}]")
        } else {
            ip.to_owned()
        };
        let url = format!("http://{host}:{}/status", self.port);
        let response = self
            .http
            .get(&url)
            .send()
            .await
            .map_err(|error| connection_error(&error))?;
        if !response.status().is_success() {
            return Err(format!("{url} answers {}", response.status()));
        }
        let mut body = Vec::new();
        let mut chunks = response;
        while let Some(chunk) = chunks.chunk().await.map_err(|error| connection_error(&error))? {
            if body.len() + chunk.len() > MAX_STATUS_BYTES {
                return Err(format!("{url} answers with more than {MAX_STATUS_BYTES} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        let status: Status =
            serde_json::from_slice(&body).map_err(|error| format!("{url} returned no valid status: {error}"))?;
        let pod = &status.pod;
        if (pod.namespace.as_str(), pod.name.as_str()) == (namespace, sidecar.pod.as_str()) {
            Ok(status)
        } else {
            Err(format!(
                "{ip} answers as pod {:?} of namespace {:?}; are POD_NAME and POD_NAMESPACE set in its sidecar?",
                pod.name, pod.namespace
            ))
        }
    }
}

const NO_ADDRESS: &str = "the pod has no address yet";

fn connection_error(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "does not answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    format!("can't be reached: {cause}")
}

/// Namespaces in which a sidecar reported something new.
#[derive(Debug, Default)]
pub(crate) struct DirtyNamespaces {
    names: Mutex<BTreeSet<String>>,
    wake: Notify,
}

impl DirtyNamespaces {
    pub(crate) fn add(&self, namespace: &str) {
        let mut names = lock_unpoisoned(&self.names);
        names.insert(namespace.to_owned());
        self.wake.notify_one();
    }

    fn pop(&self) -> Option<String> {
        lock_unpoisoned(&self.names).pop_first()
    }

    /// The namespaces one by one, as they come. For one reader.
    pub(crate) fn namespaces(self: &Arc<Self>) -> impl Stream<Item = ObjectRef<Namespace>> + use<> {
        stream::unfold(Arc::clone(self), async |dirty| {
            loop {
                if let Some(namespace) = dirty.pop() {
                    return Some((ObjectRef::new(&namespace), dirty));
                }
                dirty.wake.notified().await;
                tokio::time::sleep(DEBOUNCE).await;
            }
        })
    }
}

#[cfg(test)]
mod tests;
