//! The state with which one worker thread serves requests: its own upstream connections, plugin instances and streams.
//!
//! docs/adr/0002 names the state that the threads share on the request path: counters, the state of plugins and, behind short locks,
//! `controller_state::list_views` for lists and watches while a plugin shapes them, and `controller_state::leadership` for exchanges about
//! renamed locks. Leaves running the threads to `listen::threads`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::Guard;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::narrowed_lists::NarrowedLists;
use super::parsed_targets::ParsedTargets;
use crate::chain::instances::Instances;
use crate::chain::{ChainHandle, Counter, InFlightGuard, Kind, ReuseSettings, Snapshot};
use crate::connection::StreamNotifier;
use crate::controller_state::leader_locks::LeaderLocks;
use crate::controller_state::leadership::Leadership;
use crate::controller_state::list_views::ListViews;
use crate::observe::metrics::Metrics;
use crate::upstream::{Credentials, Limits, Target, UnreadResponses, Upstream};
use crate::wasm::Engine;

/// State that all worker threads need to serve requests.
pub(crate) struct Shared {
    pub(crate) target: Arc<Target>,
    pub(crate) chain: Arc<ChainHandle>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) list_views: Arc<ListViews>,
    pub(crate) leader_locks: LeaderLocks,
    pub(crate) leadership: Arc<Leadership>,
    /// Whether verdicts of plugins are repeated.
    pub(crate) reuse: ReuseSettings,
    /// Maximum time for a response head, for requests that are not long-running.
    pub(crate) head_timeout: Duration,
    /// Bounds the connections to the API server.
    pub(crate) sockets: Arc<Semaphore>,
    /// Graceful shutdown: connections finish their requests and take no more.
    pub(crate) drain: CancellationToken,
    /// Forced shutdown: all connections are closed.
    pub(crate) stop: CancellationToken,
}

/// One worker thread's state.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) instances: Rc<Instances>,
    pub(crate) notifier: Rc<StreamNotifier>,
    /// Lists that this thread's clients may repeat.
    pub(super) narrowed_lists: RefCell<NarrowedLists>,
    /// Targets that this thread's clients may repeat.
    pub(super) parsed_targets: RefCell<ParsedTargets>,
    upstream: Rc<Upstream>,
    /// Connections for requests with credentials of their own. They lack the sidecar's client certificate, which would turn such requests
    /// into the sidecar's. If there is no certificate, these are the same connections.
    client_identity_upstream: Rc<Upstream>,
    /// Host name of the API server; an authority searches for it each time.
    host: Rc<str>,
    counter: Counter,
    tasks: TaskTracker,
}

impl Worker {
    /// `unread` bounds the unread responses on this thread.
    pub(crate) fn new(number: usize, shared: Arc<Shared>, unread: Rc<UnreadResponses>) -> Rc<Self> {
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
            instances: Rc::new(Instances::new(
                Arc::clone(&shared.engine),
                Arc::clone(&shared.chain),
                shared.reuse,
            )),
            notifier: StreamNotifier::new(),
            narrowed_lists: RefCell::default(),
            parsed_targets: RefCell::default(),
            upstream,
            client_identity_upstream,
            host: Rc::from(shared.target.authority().host()),
            counter: Counter::new(number),
            tasks: TaskTracker::new(),
            shared,
        })
    }

    /// The sidecar's own credentials, for requests that have none.
    pub(crate) fn credentials(&self) -> &Credentials {
        self.shared.target.credentials()
    }

    /// The connections for a request. `uses_sidecar_credentials`: it carries the sidecar's credentials.
    pub(crate) fn upstream(&self, uses_sidecar_credentials: bool) -> &Rc<Upstream> {
        if uses_sidecar_credentials {
            &self.upstream
        } else {
            &self.client_identity_upstream
        }
    }

    /// Host name of the API server.
    pub(crate) fn host(&self) -> &Rc<str> {
        &self.host
    }

    /// Port of the API server.
    pub(crate) fn port(&self) -> u16 {
        self.shared.target.port()
    }

    /// The chain in force, for a request that `/status` counts as long as the guard lives.
    pub(crate) fn begin_request(&self, kind: Kind) -> (Guard<Arc<Snapshot>>, InFlightGuard) {
        self.shared.chain.begin_request(&self.counter, kind)
    }

    /// Runs a task on this thread. [`Self::wait_for_tasks`] waits for it.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn_local(task);
    }

    /// Executor for hyper's own tasks.
    pub(crate) fn executor(&self) -> LocalExecutor {
        LocalExecutor(self.tasks.clone())
    }

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
