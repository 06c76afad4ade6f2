//! Threads with instances of their own share one chain and its state, as the workers of a sidecar do, and decide at the same time. What one
//! thread repeats must not be out of date because of another, and together they take no more than there is.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

use super::generated::request_spec;
use super::*;
use crate::chain::{ChainHandle, Entry};
use crate::wasm::SeriesValue;

const THREADS: usize = 4;
/// Requests of each thread for each stream of the other tests …
const REQUESTS_PER_STREAM: usize = 5;
/// … but at least so many.
const MINIMUM_REQUESTS: usize = 500;
/// Writes of the cell by which a plugin decides, at most.
const WRITES: usize = 40;
/// Requests that may hold a place at a time.
const PLACES: u32 = 2;

/// State that all threads share.
struct Shared {
    snapshot: Arc<Snapshot>,
    handle: Arc<ChainHandle>,
    registry: Registry,
    start: Barrier,
    /// Requests that hold a place.
    holders: AtomicU32,
}

fn shared(tokens: usize) -> Shared {
    let states = StateStore::with_clock(Clock::manual());
    let mut registry = Registry::default();
    let handle = test_handle(Metrics::new(&mut registry));
    Shared {
        snapshot: snapshot_of(&entries(tokens), &states),
        handle,
        registry,
        start: Barrier::new(THREADS),
        holders: AtomicU32::new(0),
    }
}

/// A plugin each that takes tokens, takes places, decides by a cell, and decides by a header field. Each adds one for each request to the
/// metric `seen` and to the counter `n` of its state.
fn entries(tokens: usize) -> Vec<EntrySpec> {
    let leaf = |edit: &str, more: Json| {
        let mut leaf =
            json!({"edit": edit, "reuse": "whileUnchanged", "counts": [["seen", "", 1]], "increments": [["n", 1]]});
        leaf.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"leaf": leaf})
    };
    let outcome = json!({"tally": "o", "cells": [], "atHead": false, "failures": 3});
    let token = json!({"tokens": {"key": "t", "burst": tokens}, "outcome": outcome});
    let place = json!({"place": {"key": "p", "burst": PLACES}});
    let versions = (1..=WRITES).map(|version| {
        let edit = format!("version={version}");
        json!([format!("Some(([7], {version}))"), leaf(&edit, json!({}))])
    });
    let by_cell = json!({"question": {
        "ask": {"cell": "k"}, "answers": versions.collect::<Vec<_>>(), "otherwise": leaf("version=0", json!({})),
    }});
    let by_header = json!({"question": {
        "ask": {"header": "x-a"},
        "answers": [["1", leaf("a=1", json!({}))], ["2", leaf("a=2", json!({}))]],
        "otherwise": leaf("a=3", json!({})),
    }});
    let roots = [leaf("granted", token), leaf("granted", place), by_cell, by_header];
    let entry = |root| EntrySpec {
        plugin: "decision_tree",
        settings: json!({"root": root}),
    };
    roots.map(entry).into()
}

/// The version of the cell by which a plugin decides; 0 before its first write.
fn cell_version(entry: &Entry) -> u64 {
    entry.state.get("k").unwrap().map_or(0, |cell| cell.version)
}

/// The verdict of the last plugin.
fn edit_by_header(request: &RequestSpec) -> &'static str {
    let value = request.headers.iter().find(|(name, _)| *name == "x-a");
    match value.map(|(_, value)| *value) {
        Some("1") => "a=1",
        Some("2") => "a=2",
        _ => "a=3",
    }
}

impl Shared {
    /// Decides about these requests, one after another, and returns how many got a token. `writes`: this thread writes the cell.
    async fn decide_all(&self, requests: &[RequestSpec], writes: bool) -> u64 {
        let handle = Arc::clone(&self.handle);
        let instances = Rc::new(Instances::new(Arc::clone(test_engine()), handle, reuse(true, 7)));
        let prepared = instances.prepare(&self.snapshot);
        // All threads come here, or the others would wait for ever.
        self.start.wait();
        prepared.unwrap();
        let by_cell = &self.snapshot.entries()[2];
        let mut granted = 0;
        for (number, request) in requests.iter().enumerate() {
            if writes && number % requests.len().div_ceil(WRITES) == 0 {
                let version = cell_version(by_cell);
                let written = by_cell.state.compare_and_swap("k", version, vec![7]);
                assert_eq!(written, Ok(Some(version + 1)));
            }
            let before = cell_version(by_cell);
            let (plugins, edits) = self.decide(request, &instances).await;
            let after = cell_version(by_cell);
            let [token, place, version, by_header] = &edits[..] else {
                panic!("not an edit of each entry: {edits:?}");
            };
            let version: u64 = version.strip_prefix("version=").unwrap().parse().unwrap();
            assert!((before..=after).contains(&version), "{before} {version} {after}");
            assert_eq!(by_header, edit_by_header(request), "{request:?}");
            assert!(["granted", "short=0"].contains(&token.as_str()), "{token}");
            granted += u64::from(token == "granted");
            if place == "granted" {
                let holders = self.holders.fetch_add(1, Ordering::SeqCst) + 1;
                assert!(holders <= PLACES, "{holders} requests hold a place");
                std::thread::yield_now();
                self.holders.fetch_sub(1, Ordering::SeqCst);
            } else {
                assert_eq!(place, "full=0");
            }
            plugins.on_complete(&outcome(500), Instant::now());
        }
        granted
    }

    /// Decides about a request, and returns the label selectors of the plugins.
    async fn decide(&self, request: &RequestSpec, instances: &Rc<Instances>) -> (Plugins, Vec<String>) {
        let view = Rc::new(request.view());
        let matched = self
            .snapshot
            .matching_entries(&MatchQuery::new(&view, &view.headers.borrow()));
        let plugins = Plugins::new(Arc::clone(&self.snapshot), matched, view, Rc::clone(instances));
        let RequestDecision::Proceed(edits) = plugins.on_request().await else {
            panic!("{request:?} was stopped: {}", plugins.describe());
        };
        let selectors = edits.iter().map(|(_, edit)| match edit {
            RequestEdit::AndLabelSelector(selector) => selector.to_string(),
            other => panic!("{other:?}"),
        });
        let selectors = selectors.collect();
        (plugins, selectors)
    }

    /// The value of a metric of an entry. `labels`: those after the entry's name.
    fn metric(&self, name: &str, entry: &Entry, labels: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let series = format!("{name}{{entry=\"{}\"{labels}}} ", entry.name);
        let line = text.lines().find_map(|line| line.strip_prefix(&series));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// Checks that what an entry has counted is what `total` requests have caused.
    fn check_counts(&self, entry: &Entry, total: u64) {
        let name = &entry.name;
        let called = self.metric("plugin_calls_total", entry, r#",phase="request""#);
        let repeated = self.metric("plugin_reused_total", entry, "");
        assert_eq!(called + repeated, total, "{name}");
        assert!(repeated > 0, "{name}: nothing was repeated");
        assert_eq!(counter_sum(entry, "seen"), total, "{name}");
        assert_eq!(counter_sum(entry, "completed"), total, "{name}");
        let number = entry.state.add("n", 0, None);
        assert_eq!(number, Ok(Some(i64::try_from(total).unwrap())), "{name}");
        assert!(!entry.reuse.is_impure(), "{:?}", entry.reuse.first_contradiction());
        assert_eq!(entry.quarantine.faults(), 0, "{:?}", entry.quarantine.last_fault());
    }
}

/// The sum of a plugin's counter over its labels.
fn counter_sum(entry: &Entry, name: &str) -> u64 {
    let (series, dropped) = entry.state.series().snapshot();
    assert_eq!(dropped, 0);
    let values = series.iter().filter(|series| series.name == name);
    let counts = values.map(|series| match series.value {
        SeriesValue::Counter(count) => count,
        SeriesValue::Gauge(_) => panic!("{name} is a gauge"),
    });
    counts.sum()
}

/// The requests of each thread, which the seed determines.
fn streams_of_threads(requests: usize) -> Vec<Vec<RequestSpec>> {
    let mut runner = TestRunner::new(streams_config(1));
    let one = prop::collection::vec(request_spec(), requests);
    let tree = prop::collection::vec(one, THREADS).new_tree(&mut runner);
    tree.unwrap().current()
}

#[test]
fn threads_that_decide_at_once_repeat_nothing_old_and_take_no_more_than_there_is() {
    let requests = MINIMUM_REQUESTS.max(REQUESTS_PER_STREAM * usize::try_from(streams()).unwrap());
    let tokens = THREADS * requests / 2;
    let shared = shared(tokens);
    let streams = streams_of_threads(requests);
    let parts = &shared;
    let granted: u64 = std::thread::scope(|scope| {
        let threads = streams.iter().enumerate().map(|(number, stream)| {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(parts.decide_all(stream, number == 0))
            })
        });
        // All are started before the first is waited for.
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let total = (THREADS * requests) as u64;
    // No time passes, so no token comes back.
    assert_eq!(granted, tokens as u64);
    for entry in shared.snapshot.entries() {
        shared.check_counts(entry, total);
    }
    // All outcomes are failures in a row, whose number reaches its threshold once.
    assert_eq!(counter_sum(&shared.snapshot.entries()[0], "crossed"), 1);
    assert_eq!(shared.holders.load(Ordering::SeqCst), 0);
}
