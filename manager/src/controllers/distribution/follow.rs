//! Follows sidecars: a task for each pod asks it again and again, and says which namespace has news.
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

use super::fleet::{Answer, Sidecar, UNASKED};
use super::news::News;
use super::poll::{NO_ADDRESS, Poller};

/// Sidecars that are asked at a time, over all namespaces.
const CONCURRENCY: usize = 64;
/// The same of those that did not answer last, which take as long as an answer may (`poll::DEADLINE`): they must not hold up those that
/// do.
/// That is 32 questions a second that lead to nothing: 96 pods can be asked as often as they may be waited for, each
/// [`AWAITED_SILENT`] after the one before has failed; of 400, say after the loss of some nodes, each is asked every 12.5 s.
const SILENT_CONCURRENCY: usize = 64;
/// Until a sidecar that had news is asked again.
const SOON: Duration = Duration::from_millis(150);
/// The same, if it answers and has yet to load the chain, or to end what began before it.
const AWAITED: Duration = Duration::from_millis(500);
/// The same, if it does not answer: one question that is lost must not look like a pod that is.
const AWAITED_SILENT: Duration = Duration::from_secs(1);
/// From so many questions in a row without an answer on, there is none. Before that the last one stands.
pub(super) const LOST: u32 = 2;

/// What was heard of a pod last.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    pub(super) answer: Answer,
    /// When it was asked: the answer is not older. `None`: it was not asked yet.
    pub(super) asked: Option<Instant>,
    /// Questions in a row that had no answer.
    pub(super) failures: u32,
    /// It was asked since the chain lies there, and since its pod has the labels that it has.
    pub(super) is_fresh: bool,
}

/// Follows.
pub(super) struct Follower {
    poller: Poller,
    /// Longest pause between two questions.
    longest: Duration,
    turns: Arc<Turns>,
    news: Arc<News>,
    counts: Arc<crate::metrics::Metrics>,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    of: HashMap<String, BTreeMap<String, Line>>,
    tasks: JoinSet<()>,
}

/// A pod that is followed.
struct Line {
    sidecar: Sidecar,
    /// Since when the chain and the pod's labels are as they are.
    since: Instant,
    shared: Arc<Shared>,
    task: AbortHandle,
}

impl Line {
    /// What was heard last of a sidecar that is this now.
    fn hear(&mut self, sidecar: &Sidecar, is_new: bool) -> Heard {
        let heard = self.shared.heard();
        let is_other = is_new || self.sidecar.labels != sidecar.labels;
        if is_other {
            self.since = Instant::now();
        }
        // A sidecar that starts, or starts again, changes its pod.
        let is_lost = heard.failures > 0 || matches!(heard.answer, Answer::None(_));
        let is_changed = self.sidecar.version != sidecar.version && is_lost;
        if is_other || is_changed {
            self.shared.wake.notify_one();
        }
        self.shared.is_changed.fetch_or(is_changed, Ordering::Relaxed);
        self.sidecar.clone_from(sidecar);
        let is_fresh = heard.is_fresh && heard.asked.is_some_and(|asked| asked >= self.since);
        Heard { is_fresh, ..heard }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a task and passes share.
struct Shared {
    heard: Mutex<Heard>,
    wake: Notify,
    /// The chain waits for it.
    is_awaited: AtomicBool,
    /// Its pod has changed since it was asked last, and it had not answered.
    is_changed: AtomicBool,
}

/// Who may be asked now.
struct Turns {
    answering: Semaphore,
    silent: Semaphore,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            answering: Semaphore::new(CONCURRENCY),
            silent: Semaphore::new(SILENT_CONCURRENCY),
        }
    }
}

impl Turns {
    async fn take(&self, shared: &Shared) -> Result<SemaphorePermit<'_>, AcquireError> {
        let turn = loop {
            tokio::select! {
                turn = self.of(shared).acquire() => break turn,
                // Perhaps it is among others now.
                () = shared.wake.notified() => {}
            }
        };
        shared.is_changed.store(false, Ordering::Relaxed);
        turn
    }

    /// Who starts has not answered, and changes its pod: it does not wait for those that are lost.
    fn of(&self, shared: &Shared) -> &Semaphore {
        let heard = shared.heard();
        let is_silent = heard.asked.is_some() && matches!(heard.answer, Answer::None(_));
        if is_silent && !shared.is_changed.load(Ordering::Relaxed) {
            &self.silent
        } else {
            &self.answering
        }
    }
}

impl Follower {
    pub(super) fn new(
        poller: Poller,
        longest: Duration,
        news: Arc<News>,
        counts: Arc<crate::metrics::Metrics>,
    ) -> Self {
        Self {
            poller,
            longest,
            turns: Arc::default(),
            news,
            counts,
            lines: Mutex::default(),
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows these sidecars of a namespace and no others, and says what was heard last. `is_new`: the chain is another one,
    /// they are asked now. Those that are awaited are asked more often.
    pub(super) fn follow(&self, namespace: &str, sidecars: &[Sidecar], is_new: bool) -> BTreeMap<String, Heard> {
        let mut lines = self.lines();
        let Lines { of, tasks } = &mut *lines;
        while tasks.try_join_next().is_some() {}
        let lines = of.entry(namespace.to_owned()).or_default();
        let mut before = std::mem::take(lines);
        let mut all = BTreeMap::new();
        for sidecar in sidecars {
            if sidecar.ip.is_none() {
                let answer = Answer::None(NO_ADDRESS.to_owned());
                let heard = Heard {
                    answer,
                    asked: Some(Instant::now()),
                    failures: 0,
                    is_fresh: true,
                };
                all.insert(sidecar.pod.clone(), heard);
                continue;
            }
            let is_it = |line: &Line| line.sidecar.is_same_process(sidecar) && !line.task.is_finished();
            let mut line = match before.remove(&sidecar.pod).filter(is_it) {
                Some(line) => line,
                None => self.line(namespace, sidecar, tasks),
            };
            all.insert(sidecar.pod.clone(), line.hear(sidecar, is_new));
            lines.insert(sidecar.pod.clone(), line);
        }
        all
    }

    /// Says which pods of a namespace the chain waits for.
    pub(super) fn awaits(&self, namespace: &str, pods: &BTreeSet<&str>) {
        let lines = self.lines();
        for (pod, line) in lines.of.get(namespace).into_iter().flatten() {
            let is_awaited = pods.contains(pod.as_str());
            if !line.shared.is_awaited.swap(is_awaited, Ordering::Relaxed) && is_awaited {
                line.shared.wake.notify_one();
            }
        }
    }

    /// Keeps following pods of these namespaces alone.
    pub(super) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.lines().of.retain(|namespace, _| is_there(namespace));
    }

    fn line(&self, namespace: &str, sidecar: &Sidecar, tasks: &mut JoinSet<()>) -> Line {
        let shared = Arc::new(Shared::new());
        let asking = Asking {
            namespace: namespace.to_owned(),
            sidecar: sidecar.clone(),
            poller: self.poller.clone(),
            longest: self.longest,
            turns: Arc::clone(&self.turns),
            news: Arc::clone(&self.news),
            counts: Arc::clone(&self.counts),
            shared: Arc::clone(&shared),
        };
        Line {
            sidecar: sidecar.clone(),
            since: Instant::now(),
            shared,
            task: tasks.spawn(asking.run()),
        }
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            heard: Mutex::new(Heard {
                answer: Answer::None(UNASKED.to_owned()),
                asked: None,
                failures: 0,
                is_fresh: false,
            }),
            wake: Notify::new(),
            is_awaited: AtomicBool::new(false),
            is_changed: AtomicBool::new(false),
        }
    }

    fn heard(&self) -> Heard {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what came of a question. Whether it is something new.
    fn note(&self, asked: Instant, answer: Answer) -> bool {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.failures = match answer {
            Answer::Status(_) => 0,
            Answer::None(_) => heard.failures.saturating_add(1),
        };
        if heard.failures < LOST && matches!((&heard.answer, &answer), (Answer::Status(_), Answer::None(_))) {
            heard.is_fresh = false;
            return false;
        }
        let is_news = is_news(&heard.answer, &answer);
        *heard = Heard {
            answer,
            asked: Some(asked),
            failures: heard.failures,
            is_fresh: true,
        };
        is_news
    }
}

/// The task of one pod.
struct Asking {
    namespace: String,
    sidecar: Sidecar,
    poller: Poller,
    longest: Duration,
    turns: Arc<Turns>,
    news: Arc<News>,
    counts: Arc<crate::metrics::Metrics>,
    shared: Arc<Shared>,
}

impl Asking {
    async fn run(self) {
        let mut pause = SOON;
        loop {
            let is_news = self.ask().await;
            let heard = self.shared.heard();
            pause = next_pause(pause, is_news, &heard, self.longest);
            let is_awaited = self.shared.is_awaited.load(Ordering::Relaxed);
            tokio::select! {
                () = tokio::time::sleep(pause_now(pause, is_awaited, &heard.answer)) => {}
                () = self.shared.wake.notified() => pause = SOON,
            }
        }
    }

    /// Whether there is something new.
    async fn ask(&self) -> bool {
        let Ok(_turn) = self.turns.take(&self.shared).await else {
            return false;
        };
        let asked = Instant::now();
        let answer = self.poller.ask(&self.namespace, &self.sidecar).await;
        let counts = &self.counts.distribution;
        counts.polls.inc();
        if matches!(answer, Answer::None(_)) {
            counts.polls_failed.inc();
        }
        let is_news = self.shared.note(asked, answer);
        if is_news {
            self.news.add(&self.namespace);
        }
        is_news
    }
}

/// Twice as long each time, unless a sidecar that answers had news, or did not answer for the first time.
fn next_pause(last: Duration, is_news: bool, heard: &Heard, longest: Duration) -> Duration {
    let is_soon = heard.failures == 1 || is_news && matches!(heard.answer, Answer::Status(_));
    if is_soon { SOON } else { last * 2 }.min(longest)
}

/// No longer than those who wait for it can bear.
fn pause_now(pause: Duration, is_awaited: bool, answer: &Answer) -> Duration {
    match answer {
        _ if !is_awaited => pause,
        Answer::Status(_) => pause.min(AWAITED),
        Answer::None(_) => pause.min(AWAITED_SILENT),
    }
}

/// Whether a pass could do something with it. What only counts up is told when the next pass comes.
fn is_news(before: &Answer, after: &Answer) -> bool {
    match (before, after) {
        (Answer::Status(before), Answer::Status(after)) => essence(before) != essence(after),
        (Answer::None(before), Answer::None(after)) => before != after,
        _ => true,
    }
}

fn essence(status: &Status) -> impl PartialEq + use<> {
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
