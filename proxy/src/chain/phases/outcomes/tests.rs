//! Requests through a real plugin that hands over how they are counted.

use std::num::NonZeroU64;
use std::time::Duration;

use http::{Method, Response};
use serde_json::{Value, json};

use super::*;
use crate::chain::instances::Instances;
use crate::chain::phases::RequestDecision;
use crate::chain::reuse::ReuseSettings;
use crate::chain::tests::{guest_bytes, test_engine, test_entry, test_handle};
use crate::chain::{ChainHandle, MatchQuery, Metrics, Snapshot};
use crate::connection::Connection;
use crate::wasm::harness::request;
use crate::wasm::{SeriesValue, StateStore};

/// A worker of a sidecar with a chain of these plugins.
struct Worker {
    snapshot: Arc<Snapshot>,
    states: Rc<StateStore>,
    handle: Arc<ChainHandle>,
    instances: Rc<Instances>,
}

impl Worker {
    fn new(entries: &[(&str, Value)]) -> Self {
        Self::with_states(Rc::default(), entries)
    }

    /// The worker after a reload: with a later chain on the same state.
    fn reloaded(&self, entries: &[(&str, Value)]) -> Self {
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

    async fn admit(&self) -> Plugins {
        let view = request(Method::GET, "/api/v1/pods").view();
        let matched = self
            .snapshot
            .matching_entries(&MatchQuery::new(&view, &view.headers.borrow()));
        let instances = Rc::clone(&self.instances);
        let plugins = Plugins::new(Arc::clone(&self.snapshot), matched, Rc::new(view), instances);
        assert!(matches!(plugins.on_request().await, RequestDecision::Proceed(_)));
        plugins
    }

    /// How often the plugin of the first entry was told of a crossing.
    fn crossings(&self) -> u64 {
        let (_, state) = &self.states.entries()[0];
        let (series, _) = state.series().snapshot();
        let crossed = series.iter().filter(|series| series.name == "crossed");
        let count = crossed.map(|series| match series.value {
            SeriesValue::Counter(count) => count,
            SeriesValue::Gauge(_) => 0,
        });
        count.sum()
    }
}

async fn receive_head(plugins: &Plugins, status: u16) {
    let (mut head, ()) = Response::builder().status(status).body(()).unwrap().into_parts();
    let _ = plugins.edit_response(&mut head, &Connection::default()).await;
}

fn ended_with(status: u16) -> Outcome {
    Outcome {
        status,
        upstream_status: status,
        failure: None,
        duration: Duration::from_millis(2),
        upstream: Duration::from_millis(1),
        request_bytes: 0,
        response_bytes: 0,
    }
}

/// A script that lets all requests pass, and counts failures in a row.
fn counting(failures: u32, at_head: bool) -> Value {
    let outcomes = json!([{"tally": "t", "cells": ["c"], "failures": failures, "atHead": at_head}]);
    json!({"onRequest": [{"reuse": "whileUnchanged", "outcomes": outcomes, "then": {"proceed": []}}]})
}

#[tokio::test]
async fn repeated_verdict_counts_like_the_first_one() {
    let worker = Worker::new(&[("scripted", counting(3, false))]);
    for _ in 0..3 {
        assert_eq!(worker.crossings(), 0);
        let plugins = worker.admit().await;
        plugins.on_complete(&ended_with(500));
    }
    assert_eq!((worker.instances.repeated_verdicts(), worker.crossings()), (2, 1));
    worker.admit().await.on_complete(&ended_with(500));
    assert_eq!(worker.crossings(), 1, "told once");
}

#[tokio::test]
async fn outcome_under_earlier_chain_is_not_counted_after_one_under_later_chain() {
    let earlier = Worker::new(&[("scripted", counting(1, false))]);
    let later = earlier.reloaded(&[("scripted", counting(2, false))]);
    let requests = [earlier.admit().await, earlier.admit().await];
    later.admit().await.on_complete(&ended_with(500));
    for request in requests {
        request.on_complete(&ended_with(500));
    }
    assert_eq!(later.crossings(), 0);
    later.admit().await.on_complete(&ended_with(500));
    assert_eq!(later.crossings(), 1);
}

#[tokio::test]
async fn request_is_counted_at_its_head_or_at_its_end() {
    let worker = Worker::new(&[("scripted", counting(2, true))]);
    let plugins = worker.admit().await;
    receive_head(&plugins, 500).await;
    plugins.on_complete(&ended_with(500));
    assert_eq!(worker.crossings(), 0, "counted once");
    let plugins = worker.admit().await;
    let unreachable = Outcome {
        failure: Some(crate::plugin::verdict::Failure::Unreachable),
        ..ended_with(0)
    };
    plugins.on_complete(&unreachable);
    assert_eq!(worker.crossings(), 1);
    let worker = Worker::new(&[("scripted", counting(1, false))]);
    receive_head(&worker.admit().await, 500).await;
    assert_eq!(worker.crossings(), 0, "its end counts");
}

#[tokio::test]
async fn tunnel_is_counted_at_its_head_under_any_rule() {
    for at_head in [false, true] {
        let worker = Worker::new(&[("scripted", counting(2, at_head))]);
        let fail = async || {
            let plugins = worker.admit().await;
            receive_head(&plugins, 500).await;
            plugins.on_complete(&ended_with(500));
        };
        fail().await;
        let tunnel = worker.admit().await;
        receive_head(&tunnel, 101).await;
        fail().await;
        assert_eq!(worker.crossings(), 0, "the 101 has ended the row");
        tunnel.on_complete(&ended_with(101));
        fail().await;
        assert_eq!(worker.crossings(), 1, "the end of the tunnel does not count");
    }
}

#[tokio::test]
async fn head_is_counted_unless_a_later_plugin_replaces_the_response() {
    let passing = json!({"onResponse": [{"then": {"proceed": {}}}]});
    let replacing = json!({"onResponse": [{"then": {"replace": {"code": 503, "message": "no"}}}]});
    for (other, expected) in [(passing, 1), (replacing, 0)] {
        let worker = Worker::new(&[("scripted", counting(1, true)), ("scripted", other)]);
        receive_head(&worker.admit().await, 500).await;
        assert_eq!(worker.crossings(), expected);
    }
}

#[tokio::test]
async fn plugin_that_fails_on_a_crossing_is_told_again() {
    let worker = Worker::new(&[("trap", json!({"in": "on-crossed", "how": "panic"}))]);
    for faults in 1..3 {
        worker.admit().await.on_complete(&ended_with(500));
        assert_eq!(worker.handle.metrics().current_counts().faults, faults);
    }
    worker.admit().await.on_complete(&ended_with(200));
    assert_eq!(worker.handle.metrics().current_counts().faults, 2);
}
