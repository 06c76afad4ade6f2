//! What one worker thread serves requests with: its own upstream connections, plugin instances and streams.
//!
//! What the threads share on the request path is what docs/adr/0002 names: counters, what plugins remember and, behind short
//! locks, `client::list_views` for lists and watches while a plugin shapes them, and `client::leadership` for exchanges about
//! locks that a plugin renames. Leaves running the threads to `listen::threads`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::chain::instances::Instances;
use crate::chain::{ChainHandle, Counter, Kind, Snapshot, Ticket};
use crate::client::leader_locks::LeaderLocks;
use crate::client::leadership::Leadership;
use crate::client::list_views::ListViews;
use crate::connection::StreamNotifier;
use crate::observe::metrics::Metrics;
use crate::upstream::{Credentials, Limits, Target, UnreadAnswers, Upstream};
use crate::wasm::Engine;

/// What all worker threads serve requests with.
pub(crate) struct Shared {
    pub(crate) target: Arc<Target>,
    pub(crate) chain: Arc<ChainHandle>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) list_views: Arc<ListViews>,
    pub(crate) leader_locks: LeaderLocks,
    pub(crate) leadership: Arc<Leadership>,
    /// How long a response head may take for a request that is not long-running.
    pub(crate) head_timeout: Duration,
    /// Bounds the connections to the API server.
    pub(crate) sockets: Arc<Semaphore>,
    /// Graceful end: connections finish what they have and take no more.
    pub(crate) drain: CancellationToken,
    /// Forced end: everything is cut off.
    pub(crate) stop: CancellationToken,
}

/// One worker thread's state.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) instances: Rc<Instances>,
    pub(crate) notifier: Rc<StreamNotifier>,
    upstream: Rc<Upstream>,
    /// For requests that bring credentials of their own: connections without the sidecar's client certificate, which would
    /// make them the sidecar's. The same connections if it has none.
    client_identity_upstream: Rc<Upstream>,
    counter: Counter,
    tasks: TaskTracker,
}

impl Worker {
    /// `unread`: bounds the answers that nobody reads, on this thread.
    pub(crate) fn new(number: usize, shared: Arc<Shared>, unread: Rc<UnreadAnswers>) -> Rc<Self> {
        let limits = Limits {
            unread,
            head_timeout: Some(shared.head_timeout),
            sockets: Some(Arc::clone(&shared.sockets)),
            ..Limits::default()
        };
        let target = &shared.target;
        let upstream = Upstream::new(Arc::clone(target), limits.clone());
        let client_identity_upstream = match target.for_client_identity() {
            same if Arc::ptr_eq(same, target) => Rc::clone(&upstream),
            other => Upstream::new(Arc::clone(other), limits),
        };
        Rc::new(Self {
            instances: Rc::new(Instances::new(Arc::clone(&shared.engine), Arc::clone(&shared.chain))),
            notifier: StreamNotifier::new(),
            upstream,
            client_identity_upstream,
            counter: Counter::new(number),
            tasks: TaskTracker::new(),
            shared,
        })
    }

    /// The sidecar's own credentials, for requests that bring none.
    pub(crate) fn credentials(&self) -> &Credentials {
        self.shared.target.credentials()
    }

    /// The connections for a request. `is_lent`: it carries the sidecar's credentials.
    pub(crate) fn upstream(&self, is_lent: bool) -> &Rc<Upstream> {
        if is_lent {
            &self.upstream
        } else {
            &self.client_identity_upstream
        }
    }

    /// Host name of the API server.
    pub(crate) fn host(&self) -> &str {
        self.shared.target.authority().host()
    }

    /// Port of the API server.
    pub(crate) fn port(&self) -> u16 {
        self.shared.target.port()
    }

    /// The chain in force, for a request that `/status` counts as long as the ticket lives.
    pub(crate) fn enter(&self, kind: Kind) -> (Guard<Arc<Snapshot>>, Ticket) {
        self.shared.chain.enter(&self.counter, kind)
    }

    /// Runs a task on this thread. [`Self::wait_for_tasks`] waits for it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn_local(task);
    }

    /// For hyper's own tasks.
    pub(crate) fn executor(&self) -> LocalExecutor {
        LocalExecutor(self.tasks.clone())
    }

    /// Waits until all tasks have ended.
    pub(crate) async fn wait_for_tasks(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Spawns on the worker's own thread.
#[derive(Debug, Clone)]
pub(crate) struct LocalExecutor(TaskTracker);

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, task: F) {
        self.0.spawn_local(task);
    }
}
