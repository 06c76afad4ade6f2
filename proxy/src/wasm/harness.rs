//! Runs a plugin's bytes in the production engine, without a sidecar: for the tests of plugin authors.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ctrlmesh_proxy::harness::{Harness, get};
//!
//! let wasm = std::fs::read("target/wasm32-wasip2/plugin/hello.wasm")?;
//! let mut plugin = Harness::new(&wasm, r#"{"greeting": "hello"}"#)?;
//! let verdict = plugin.request(&get("/api/v1/pods").user_agent("my-controller/1.0"))?;
//! # Ok(()) }
//! ```
//!
//! Differences from a sidecar: the clock stands still until the test moves it, compiling happens in this process, and no edit is applied:
//! verdicts are returned as the chain would get them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use tokio::time::Instant;

use crate::lock::lock_unpoisoned;
use crate::plugin::object_metadata::PluginObjectMetadata;
use crate::plugin::request_view::{ClientHeaders, Facts, RequestState, RequestView, ResponseView};
use crate::plugin::verdict::{Outcome, RequestVerdict, ResponseVerdict, Subscription, Traffic};
use crate::wasm::{
    self, Clock, CompileMode, Compiler, Engine, EntryConfig, EntryState, Fault, Instance, InstanceInfo, LogLine,
    Plugin, Series, StateStore,
};

/// Deadline of a call: long enough for a busy build machine; a sidecar's default is 10 ms.
const TIMEOUT: Duration = Duration::from_millis(200);
/// Same as a sidecar's default.
const MEMORY_BYTES: usize = 16 * 1024 * 1024;
/// Number of plugins that stay loaded between tests.
const RECENT_PLUGINS: usize = 16;
/// The entry id for outcome rules: a harness keeps its plugin, settings and limits.
const ONLY_ENTRY_ID: u64 = 0;

/// Why a plugin does not run.
#[derive(Debug, thiserror::Error)]
pub enum HarnessError {
    /// A sidecar would refuse the plugin's bytes.
    #[error(transparent)]
    Load(#[from] wasm::Error),
    /// A sidecar would refuse the chain: the plugin failed in `configure`, or refused its settings.
    #[error(transparent)]
    Start(#[from] Fault),
}

/// A running plugin.
pub struct Harness {
    engine: Arc<Engine>,
    plugin: Arc<Plugin>,
    entry: Arc<EntryConfig>,
    state: Arc<EntryState>,
    clock: Clock,
    live: Option<Instance>,
    subscription: Subscription,
}

impl Harness {
    /// Loads the plugin and configures it with these settings (JSON).
    ///
    /// # Errors
    /// A sidecar would refuse the plugin or its settings.
    pub fn new(wasm: &[u8], settings_json: &str) -> Result<Self, HarnessError> {
        Self::with_limits(wasm, settings_json, TIMEOUT, MEMORY_BYTES)
    }

    /// Like [`Harness::new`], with the limits of a chain entry.
    ///
    /// # Errors
    /// As [`Harness::new`].
    pub fn with_limits(
        wasm: &[u8],
        settings_json: &str,
        timeout: Duration,
        memory_bytes: usize,
    ) -> Result<Self, HarnessError> {
        let engine = shared_engine()?;
        let plugin = load_plugin(&engine, wasm)?;
        Ok(Self::start(engine, plugin, settings_json, timeout, memory_bytes)?)
    }

    /// Configures a plugin that this engine has loaded, with these settings (JSON).
    ///
    /// # Errors
    /// A sidecar would refuse the settings.
    pub fn of_plugin(engine: Arc<Engine>, plugin: Arc<Plugin>, settings_json: &str) -> Result<Self, Fault> {
        Self::start(engine, plugin, settings_json, TIMEOUT, MEMORY_BYTES)
    }

    fn start(
        engine: Arc<Engine>,
        plugin: Arc<Plugin>,
        settings_json: &str,
        timeout: Duration,
        memory_bytes: usize,
    ) -> Result<Self, Fault> {
        let entry = Arc::new(EntryConfig {
            name: "harness".into(),
            settings_json: settings_json.to_owned(),
            timeout,
            memory_bytes,
            info: InstanceInfo {
                pod_namespace: "harness".into(),
                pod_name: "harness-0".into(),
                host_version: env!("CARGO_PKG_VERSION").into(),
            },
        });
        let clock = Clock::manual();
        let state = StateStore::with_clock(clock.clone()).entry(&entry.name);
        let (instance, subscription) = Instance::start(&engine, &plugin, &entry, &state)?;
        Ok(Self {
            engine,
            plugin,
            entry,
            state,
            clock,
            live: Some(instance),
            subscription,
        })
    }

    /// The requests and phases that the plugin wants to see.
    #[must_use]
    pub const fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    /// Calls the plugin for a verdict on a request, whatever the subscription says.
    ///
    /// # Errors
    /// The plugin's fault. The next call gets a fresh instance, as in a sidecar.
    pub fn request(&mut self, request: &Request) -> Result<RequestVerdict, Fault> {
        self.request_with(&Rc::new(request.view()))
    }

    /// Like [`Harness::request`], with a view that a later call can get as well: the plugin then finds there what it has noted.
    ///
    /// # Errors
    /// As [`Harness::request`].
    pub fn request_with(&mut self, view: &Rc<RequestView>) -> Result<RequestVerdict, Fault> {
        self.call(|instance| instance.on_request(view, false))
    }

    /// Calls the plugin as for an open watch when a new chain comes into force: without effect on state, log and metrics.
    ///
    /// # Errors
    /// As [`Harness::request`].
    pub fn recheck(&mut self, request: &Request) -> Result<RequestVerdict, Fault> {
        let view = Rc::new(request.view());
        self.call(|instance| instance.on_request(&view, true))
    }

    /// Calls the plugin for a verdict on a response.
    ///
    /// # Errors
    /// As [`Harness::request`].
    pub fn response(&mut self, request: &Request, response: &Response) -> Result<ResponseVerdict, Fault> {
        let (request, response) = (Rc::new(request.view()), Rc::new(response.0.clone()));
        self.call(|instance| instance.on_response(&request, &response))
    }

    /// Asks the plugin which of these objects of a response it keeps, in one call, whatever its verdict on the request. A sidecar does so
    /// if the verdict has the edit `ask-about-objects`, with the annotations that the edit names.
    ///
    /// # Errors
    /// As [`Harness::request`].
    pub fn objects(&mut self, request: &Request, objects: Vec<PluginObjectMetadata>) -> Result<Vec<bool>, Fault> {
        self.objects_with(&Rc::new(request.view()), objects)
    }

    /// Like [`Harness::objects`], with the view that [`Harness::request_with`] got.
    ///
    /// # Errors
    /// As [`Harness::request`].
    pub fn objects_with(
        &mut self,
        view: &Rc<RequestView>,
        objects: Vec<PluginObjectMetadata>,
    ) -> Result<Vec<bool>, Fault> {
        self.call(|instance| instance.on_objects(view, objects))
    }

    /// Reports to the plugin how a request ended.
    ///
    /// # Errors
    /// As [`Harness::request`].
    pub fn complete(&mut self, request: &Request, outcome: &Outcome) -> Result<(), Fault> {
        let view = Rc::new(request.view());
        self.call(|instance| instance.on_complete(&view, outcome))
    }

    /// Counts the end of a request by the outcome rules of its verdict, and calls the plugin if a tally has reached a threshold. Returns
    /// the number of tallies that have. A rule that judges response heads counts here what it would have counted at the head.
    ///
    /// # Errors
    /// As [`Harness::request`].
    pub fn count(&mut self, verdict: &RequestVerdict, outcome: &Outcome) -> Result<usize, Fault> {
        let Some(rules) = &verdict.outcomes else {
            return Ok(0);
        };
        let end = outcome.end();
        let counted = self.state.count_outcome(rules, ONLY_ENTRY_ID, Instant::now, |rule| {
            let has_head = end.upstream_status != 0;
            let judged = has_head.then(|| rule.counting.judge_head(end.upstream_status));
            judged.flatten().or_else(|| rule.counting.judge_end(&end))
        });
        if !counted.crossings.is_empty() {
            self.call(|instance| instance.on_crossed(&counted.crossings))?;
        }
        Ok(counted.crossings.len())
    }

    /// Starts a fresh instance, as after a reload: the plugin's own memory is lost, its state stays.
    ///
    /// # Errors
    /// The plugin fails in `configure`.
    pub fn restart(&mut self) -> Result<(), Fault> {
        self.live = None;
        self.call(|_| Ok(()))
    }

    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// The last lines that the plugin logged or printed.
    #[must_use]
    pub fn log(&self) -> Vec<LogLine> {
        self.state.log().recent_lines()
    }

    #[must_use]
    pub fn metrics(&self) -> Vec<Series> {
        self.state.series().snapshot().0
    }

    #[must_use]
    pub const fn state(&self) -> &Arc<EntryState> {
        &self.state
    }

    fn call<R>(&mut self, run: impl FnOnce(&mut Instance) -> Result<R, Fault>) -> Result<R, Fault> {
        let mut instance = match self.live.take() {
            Some(instance) => instance,
            None => Instance::start(&self.engine, &self.plugin, &self.entry, &self.state)?.0,
        };
        let result = run(&mut instance)?;
        self.live = Some(instance);
        Ok(result)
    }
}

/// One engine for all tests of a process.
fn shared_engine() -> Result<Arc<Engine>, wasm::Error> {
    static ENGINE: OnceLock<Arc<Engine>> = OnceLock::new();
    match ENGINE.get() {
        Some(engine) => Ok(Arc::clone(engine)),
        None => Ok(Arc::clone(ENGINE.get_or_init({
            let engine = Engine::new()?;
            move || engine
        }))),
    }
}

/// Compiles one plugin at a time, and keeps the last ones: tests of one process mostly load the same few.
fn load_plugin(engine: &Arc<Engine>, wasm: &[u8]) -> Result<Arc<Plugin>, wasm::Error> {
    static RECENT: Mutex<VecDeque<Arc<Plugin>>> = Mutex::new(VecDeque::new());
    let mut recent = lock_unpoisoned(&RECENT);
    let plugin = Compiler::new(CompileMode::InProcess, None)?.load(engine, wasm)?;
    recent.retain(|known| !Arc::ptr_eq(known, &plugin));
    recent.push_back(Arc::clone(&plugin));
    if recent.len() > RECENT_PLUGINS {
        recent.pop_front();
    }
    Ok(plugin)
}

/// A request, parsed as an API server would.
#[derive(Debug, Clone)]
pub struct Request(RequestView);

/// A GET (so a get, a list or a watch) of this path and query.
///
/// # Panics
/// As [`request`].
#[must_use]
pub fn get(target: &str) -> Request {
    request(Method::GET, target)
}

/// A request to the API server with this method, path and query.
///
/// # Panics
/// The target is not a path that an API server understands; a test with a typo should stop there.
#[must_use]
#[expect(
    clippy::expect_used,
    reason = "for tests: a typo in a path should stop the test where it is"
)]
pub fn request(method: Method, target: &str) -> Request {
    let uri: Uri = target
        .parse()
        .expect("the target of a request is a path, perhaps with a query");
    let info = ctrlmesh_wire::RequestInfo::parse(method.as_str(), uri.path(), uri.query())
        .expect("the target of a request is understood by an API server");
    Request(RequestView {
        traffic: Traffic::Api,
        facts: Rc::new(Facts::new(&info)),
        host: "kubernetes.default.svc".into(),
        port: 443,
        is_leader_lock: (info.group == "coordination.k8s.io" && info.resource == "leases").into(),
        headers: ClientHeaders::default(),
        state: RequestState::default(),
        method: method.clone(),
        uri: uri.clone(),
    })
}

impl Request {
    /// Adds a header field.
    ///
    /// # Panics
    /// Name or value are invalid.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        append_header(self.0.headers.get_mut(), name, value);
        self
    }

    /// Sets the user agent.
    ///
    /// # Panics
    /// The value is invalid in a header.
    #[must_use]
    pub fn user_agent(self, agent: &str) -> Self {
        self.header("user-agent", agent)
    }

    /// Changes any other property.
    #[must_use]
    pub fn with_change(mut self, change: impl FnOnce(&mut RequestView)) -> Self {
        change(&mut self.0);
        self
    }

    /// The view that a plugin gets.
    #[must_use]
    pub fn view(&self) -> RequestView {
        self.0.clone()
    }
}

/// A response head of the API server.
#[derive(Debug, Clone)]
pub struct Response(ResponseView);

/// A response head with this status.
#[must_use]
pub fn response(status: StatusCode) -> Response {
    Response(ResponseView {
        status,
        headers: HeaderMap::new(),
    })
}

impl Response {
    /// Adds a header field.
    ///
    /// # Panics
    /// Name or value are invalid.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        append_header(&mut self.0.headers, name, value);
        self
    }
}

#[expect(
    clippy::expect_used,
    reason = "for tests: a typo in a header should stop the test where it is"
)]
fn append_header(headers: &mut HeaderMap, name: &str, value: &str) {
    let name = HeaderName::from_bytes(name.as_bytes()).expect("a header name");
    headers.append(name, HeaderValue::from_str(value).expect("a header value"));
}
