//! A worker of a sidecar with a chain of real plugins.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use http::Method;
use serde_json::Value;

use super::{guest_bytes, test_engine, test_entry, test_handle};
use crate::chain::instances::Instances;
use crate::chain::phases::{Attributed, Plugins, RequestDecision};
use crate::chain::reuse::ReuseSettings;
use crate::chain::{ChainHandle, MatchQuery, Metrics, Snapshot};
use crate::wasm::harness::request;
use crate::wasm::{SeriesValue, StateStore};

pub(crate) struct Worker {
    snapshot: Arc<Snapshot>,
    states: Rc<StateStore>,
    pub(crate) handle: Arc<ChainHandle>,
    pub(crate) instances: Rc<Instances>,
}

impl Worker {
    /// `entries`: the guests, in the order of the chain, with their settings.
    pub(crate) fn new(entries: &[(&str, Value)]) -> Self {
        Self::with_states(Rc::default(), entries)
    }

    /// The worker after a reload: with a later chain on the same state.
    pub(crate) fn reloaded(&self, entries: &[(&str, Value)]) -> Self {
        Self::with_states(Rc::clone(&self.states), entries)
    }

    fn with_states(states: Rc<StateStore>, entries: &[(&str, Value)]) -> Self {
        let entries = entries.iter().zip(0..).map(|((guest, settings), order)| {
            let name = format!("{guest}/{order}");
            test_entry(&name, order, guest_bytes(guest), &settings.to_string(), &states)
        });
        let snapshot = Arc::new(Snapshot::new(1, ctrlmesh_contract::Digest::of(b""), entries.collect()));
        let handle = test_handle(Metrics::default());
        let reuse = ReuseSettings {
            is_on: true,
            audited_one_in: NonZeroU64::MAX,
        };
        let instances = Rc::new(Instances::new(Arc::clone(test_engine()), Arc::clone(&handle), reuse));
        instances.prepare(&snapshot).unwrap();
        Self {
            snapshot,
            states,
            handle,
            instances,
        }
    }

    /// A request before its request phase.
    pub(crate) fn plugins(&self) -> Plugins {
        let view = request(Method::GET, "/api/v1/pods").view();
        let matched = self
            .snapshot
            .matching_entries(&MatchQuery::new(&view, &view.headers.borrow()));
        let instances = Rc::clone(&self.instances);
        Plugins::new(Arc::clone(&self.snapshot), matched, Rc::new(view), instances)
    }

    /// A request after its request phase, and the edits of its verdicts. No plugin may stop it.
    pub(crate) async fn admit(&self) -> (Plugins, Vec<Attributed>) {
        let plugins = self.plugins();
        match plugins.on_request().await {
            RequestDecision::Proceed(edits) => (plugins, edits),
            RequestDecision::Stop(_) => panic!("a plugin has stopped the request"),
        }
    }

    /// A counter of the plugin in this place of the chain.
    pub(crate) fn counter(&self, place: usize, name: &str) -> u64 {
        let (_, state) = &self.states.entries()[place];
        let (series, _) = state.series().snapshot();
        let counted = series.iter().filter(|series| series.name == name);
        let count = counted.map(|series| match series.value {
            SeriesValue::Counter(count) => count,
            SeriesValue::Gauge(_) => 0,
        });
        count.sum()
    }
}
