//! One live instance of a plugin, bound to its thread: created, configured, called.
//!
//! Flow: [`Instance::start`] instantiates and configures; then calls follow one after another, each with its own deadline. Guarantees: a
//! running call is stopped at its deadline, whatever the guest does (`deadline.rs`); its results are validated. Caveat: after any [`Fault`]
//! the instance is unusable. Drop it, and start a fresh one for the next request; state that must survive lives in [`EntryState`]. Leaves
//! the consequences of a fault to the chain.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tracing::debug;
use wasmtime::Store;

use super::deadline::Deadline;
use super::engine::Engine;
use super::entry_config::EntryConfig;
use super::error::{Fault, Origin, Phase};
use super::exports::Exports;
use super::host_state::{HostState, MemoryRefusal};
use super::plugin::Plugin;
use super::reads::Trace;
use super::state::EntryState;
use super::ticker::CallFlag;
use super::v0_2::convert;
use super::validate;
use super::wasi::Refused;
use crate::plugin::object_metadata::PluginObjectMetadata;
use crate::plugin::request_view::{RequestView, ResponseView};
use crate::plugin::verdict::{Crossing, Outcome, RequestVerdict, ResponseVerdict, Subscription};

/// Time limit of `configure` as a multiple of a call's: it parses settings and fills tables, once for each instance, and touches every page
/// for the first time.
const CONFIGURE_FACTOR: u32 = 10;
/// Minimum time limit of `configure`.
const MIN_CONFIGURE_TIME: Duration = Duration::from_millis(100);

/// Maximum size of the data that a guest may pass to the host in one call or result. The host allocates it, and a list may repeat one long
/// string many times. Results have much lower limits once they can be read (`validate.rs`).
const MAX_HANDED_OVER_BYTES: usize = 1024 * 1024;

/// Maximum length of a fault's text.
const MAX_DETAIL_BYTES: usize = 2 * 1024;

/// A live instance. It belongs to the thread that created it.
pub struct Instance {
    store: Store<HostState>,
    guest: Exports,
    plugin: Arc<Plugin>,
    entry: Arc<EntryConfig>,
    flag: CallFlag,
    /// Keeps the epoch ticker alive as long as an instance may have to be stopped.
    _engine: Arc<Engine>,
}

impl Instance {
    /// Creates an instance and configures it.
    ///
    /// # Errors
    /// [`Fault::Settings`] if the plugin refuses its settings; any other fault if it fails.
    pub fn start(
        engine: &Arc<Engine>,
        plugin: &Arc<Plugin>,
        entry: &Arc<EntryConfig>,
        state: &Arc<EntryState>,
    ) -> Result<(Self, Subscription), Fault> {
        Self::instantiate(engine, plugin, entry, state, false)
    }

    /// The subscription of the plugin with these settings, and the memory in bytes that an instance needs initially; or the plugin's reason
    /// for refusing the settings. Has no effects, because the chain may still be refused for another entry: `state`, `report`, `log` and
    /// `metrics` answer as usual, but nothing changes.
    ///
    /// # Errors
    /// As [`Instance::start`].
    pub fn subscription(
        engine: &Arc<Engine>,
        plugin: &Arc<Plugin>,
        entry: &Arc<EntryConfig>,
        state: &Arc<EntryState>,
    ) -> Result<(Subscription, usize), Fault> {
        let (instance, subscription) = Self::instantiate(engine, plugin, entry, state, true)?;
        Ok((subscription, instance.store.data().limits.charged_bytes()))
    }

    fn instantiate(
        engine: &Arc<Engine>,
        plugin: &Arc<Plugin>,
        entry: &Arc<EntryConfig>,
        state: &Arc<EntryState>,
        recheck: bool,
    ) -> Result<(Self, Subscription), Fault> {
        let limit = entry.timeout.saturating_mul(CONFIGURE_FACTOR).max(MIN_CONFIGURE_TIME);
        let (deadline, epochs) = Deadline::start(limit);
        let mut host = HostState::new(
            Arc::clone(state),
            entry.memory_bytes,
            engine.memory().account(),
            deadline,
        );
        host.recheck = recheck;
        let mut store = Store::new(engine.wasmtime(), host);
        store.limiter(|host| &mut host.limits);
        store.set_hostcall_fuel(MAX_HANDED_OVER_BYTES);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().deadline.extend_or_interrupt()));
        store.set_epoch_deadline(epochs);
        let flag = engine.call_flag().ok_or_else(|| Fault::Trap {
            origin: origin(plugin, entry, Phase::Instantiate),
            detail: "the epoch ticker of the sidecar has ended, so no deadline would be kept".into(),
        })?;
        flag.begin_call();
        let made = plugin.pre.instantiate(&mut store);
        flag.end_call();
        let context = Context { plugin, entry, limit };
        let guest = made.map_err(|error| context.fault_of(Phase::Instantiate, &store, &error))?;
        let mut instance = Self {
            store,
            guest,
            plugin: Arc::clone(plugin),
            entry: Arc::clone(entry),
            flag,
            _engine: Arc::clone(engine),
        };
        let subscription = instance.configure(limit)?;
        instance.store.data_mut().limits.is_started = true;
        Ok((instance, subscription))
    }

    fn configure(&mut self, limit: Duration) -> Result<Subscription, Fault> {
        self.store.data_mut().is_configuring = true;
        let result = self.call(Phase::Configure, limit, |store, guest, plugin, entry| {
            let info = convert::instance_info(entry, &plugin.digest);
            guest.configure(store, &entry.settings_json, &info)
        })?;
        match result {
            Ok(subscription) => {
                convert::subscription_from_wit(subscription).map_err(|what| self.invalid(Phase::Configure, what))
            }
            Err(message) => Err(Fault::Settings {
                origin: self.origin(Phase::Configure),
                message: bounded_text(message),
            }),
        }
    }

    /// Calls the plugin for a verdict on a request. `recheck`: the call has no effects, so `state`, `log` and `metrics` answer as usual but
    /// change nothing.
    ///
    /// # Errors
    /// Any fault but [`Fault::Settings`].
    pub fn on_request(&mut self, request: &Rc<RequestView>, recheck: bool) -> Result<RequestVerdict, Fault> {
        let host = self.store.data_mut();
        host.request = Some(Rc::clone(request));
        host.recheck = recheck;
        host.may_hold = true;
        host.cells.clear();
        let verdict = self.call(Phase::OnRequest, self.entry.timeout, |store, guest, _, _| {
            guest.on_request(store)
        })?;
        convert::request_verdict(verdict, &self.store.data().cells).map_err(|what| self.invalid(Phase::OnRequest, what))
    }

    /// Records what the next call of [`Self::on_request`] reads and does.
    pub(crate) fn begin_trace(&mut self) {
        self.store.data_mut().trace = Some(Box::default());
    }

    /// The record of the last call, if one was begun.
    pub(crate) fn take_trace(&mut self) -> Option<Box<Trace>> {
        self.store.data_mut().trace.take()
    }

    /// Calls the plugin for a verdict on a response.
    ///
    /// # Errors
    /// Any fault but [`Fault::Settings`].
    pub fn on_response(
        &mut self,
        request: &Rc<RequestView>,
        response: &Rc<ResponseView>,
    ) -> Result<ResponseVerdict, Fault> {
        let host = self.store.data_mut();
        host.request = Some(Rc::clone(request));
        host.response = Some(Rc::clone(response));
        let verdict = self.call(Phase::OnResponse, self.entry.timeout, |store, guest, _, _| {
            guest.on_response(store)
        })?;
        convert::response_verdict(verdict).map_err(|what| self.invalid(Phase::OnResponse, what))
    }

    /// Asks the plugin which of these objects of the response the client gets. Returns a flag for each, in their order.
    ///
    /// # Errors
    /// Any fault but [`Fault::Settings`]; another number of flags is [`Fault::Invalid`].
    pub fn on_objects(
        &mut self,
        request: &Rc<RequestView>,
        objects: Vec<PluginObjectMetadata>,
    ) -> Result<Vec<bool>, Fault> {
        self.store.data_mut().request = Some(Rc::clone(request));
        let objects: Vec<_> = objects.into_iter().map(convert::object_to_wit).collect();
        let are_kept = self.call(Phase::OnObjects, self.entry.timeout, |store, guest, _, _| {
            guest.on_objects(store, &objects)
        })?;
        match validate::flag_count(are_kept.len(), objects.len()) {
            Ok(()) => Ok(are_kept),
            Err(what) => Err(self.invalid(Phase::OnObjects, what)),
        }
    }

    /// Reports to the plugin how a request ended.
    ///
    /// # Errors
    /// Any fault but [`Fault::Settings`] and [`Fault::Invalid`].
    pub fn on_complete(&mut self, request: &Rc<RequestView>, outcome: &Outcome) -> Result<(), Fault> {
        self.store.data_mut().request = Some(Rc::clone(request));
        self.call(Phase::OnComplete, self.entry.timeout, |store, guest, _, _| {
            guest.on_complete(store, convert::outcome_to_wit(outcome))
        })
    }

    /// Reports to the plugin that tallies have reached thresholds.
    ///
    /// # Errors
    /// As [`Self::on_complete`].
    pub fn on_crossed(&mut self, crossings: &[Crossing]) -> Result<(), Fault> {
        let crossings: Vec<_> = crossings.iter().map(convert::outcomes::crossing_to_wit).collect();
        self.call(Phase::OnCrossed, self.entry.timeout, |store, guest, _, _| {
            guest.on_crossed(store, &crossings)
        })
    }

    /// Size of the instance's linear memory in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.store.data().limits.memory_used()
    }

    /// Makes one call: sets the deadline, runs it, logs the guest's printed output, and classifies errors.
    fn call<R>(
        &mut self,
        phase: Phase,
        limit: Duration,
        run: impl FnOnce(&mut Store<HostState>, &Exports, &Plugin, &EntryConfig) -> wasmtime::Result<R>,
    ) -> Result<R, Fault> {
        let (deadline, epochs) = Deadline::start(limit);
        self.store.data_mut().deadline = deadline;
        self.store.set_epoch_deadline(epochs);
        self.flag.begin_call();
        let result = run(&mut self.store, &self.guest, &self.plugin, &self.entry).map_err(|error| {
            let context = Context {
                plugin: &self.plugin,
                entry: &self.entry,
                limit,
            };
            context.fault_of(phase, &self.store, &error)
        });
        self.flag.end_call();
        self.store.data_mut().end_call();
        result
    }

    fn invalid(&self, phase: Phase, what: String) -> Fault {
        Fault::Invalid {
            origin: self.origin(phase),
            what: bounded_text(what),
        }
    }

    fn origin(&self, phase: Phase) -> Box<Origin> {
        origin(&self.plugin, &self.entry, phase)
    }
}

/// Data for the text of a fault.
struct Context<'a> {
    plugin: &'a Plugin,
    entry: &'a EntryConfig,
    limit: Duration,
}

impl Context<'_> {
    /// The fault that an error of wasmtime stands for.
    fn fault_of(&self, phase: Phase, store: &Store<HostState>, error: &wasmtime::Error) -> Fault {
        let origin = origin(self.plugin, self.entry, phase);
        debug!(%origin, error = format!("{error:#}"), "plugin call failed");
        let host = store.data();
        let trap = error.downcast_ref::<wasmtime::Trap>();
        if trap == Some(&wasmtime::Trap::Interrupt) {
            return Fault::Deadline {
                origin,
                limit: self.limit,
            };
        }
        match host.limits.refused {
            Some(MemoryRefusal::Entry) => {
                return Fault::Memory {
                    origin,
                    limit_bytes: host.limits.memory_bytes,
                };
            }
            Some(MemoryRefusal::Process(over)) => return Fault::ProcessMemory { origin, over },
            None => {}
        }
        let what = trap
            .map(ToString::to_string)
            .or_else(|| error.downcast_ref::<Refused>().map(ToString::to_string));
        match (what, phase) {
            (Some(what), _) => Fault::Trap {
                origin,
                detail: with_stderr(&what, &host.stdio.stderr_line()),
            },
            (None, Phase::Instantiate) => Fault::Trap {
                origin,
                detail: bounded_text(error.root_cause().to_string()),
            },
            // The error is neither a trap nor our own: the guest ran, and the data that it passed could not be read.
            (None, _) => Fault::Invalid {
                origin,
                what: bounded_text(error.root_cause().to_string()),
            },
        }
    }
}

fn origin(plugin: &Plugin, entry: &EntryConfig, phase: Phase) -> Box<Origin> {
    Box::new(Origin {
        digest: plugin.digest.clone(),
        entry: entry.name.clone(),
        phase,
    })
}

fn with_stderr(what: &str, stderr: &str) -> String {
    bounded_text(if stderr.is_empty() {
        what.to_owned()
    } else {
        format!("{what}: {stderr}")
    })
}

fn bounded_text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_DETAIL_BYTES));
    text
}
