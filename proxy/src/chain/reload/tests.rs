//! From files to the chain in force: accepted chains, refused chains and their status, and state that outlives a reload.

mod refused;
mod running;

use std::sync::Mutex;
use std::time::Duration;

use ctrlmesh_contract::FailurePolicy;
use ctrlmesh_contract::names::files;
use ctrlmesh_contract::status::EntryState;
use futures_util::FutureExt as _;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;

use super::super::tests::mount::Mount;
use super::super::tests::{
    document, entry_value, files_of, location_with_labels, scripted_guest, source_after, test_handle, test_source,
    valid_location, with_field,
};
use super::super::{Admission, ChainLocation, Metrics, PredecessorRecord};
use super::*;
use crate::wasm::{Fault, Origin, Phase};

/// Far above what a busy machine needs; a test that waits this long has failed.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Disables polling and retries, so that only a change in the directory has an effect.
const NO_POLL: Timing = Timing {
    poll: TEST_TIMEOUT,
    retry: TEST_TIMEOUT,
    prepare: TEST_TIMEOUT,
};

/// Reads the directory only on demand.
struct Fixture {
    mount: Mount,
    registry: Registry,
    updater: Updater,
}

impl Fixture {
    fn new() -> Self {
        Self::with_location(|_| {})
    }

    fn with_location(change: impl FnOnce(&mut ChainLocation)) -> Self {
        Self::with_location_after(change, PredecessorRecord::without_record())
    }

    /// A fixture of a sidecar that has predecessors.
    fn with_predecessors(predecessors: PredecessorRecord) -> Self {
        Self::with_location_after(|_| {}, predecessors)
    }

    fn with_location_after(change: impl FnOnce(&mut ChainLocation), predecessors: PredecessorRecord) -> Self {
        let mount = Mount::new();
        let mut location = valid_location(mount.path());
        change(&mut location);
        let mut registry = Registry::default();
        let handle = test_handle(Metrics::new(&mut registry));
        let updater = Updater::new(source_after(location, predecessors), handle, prepare_nothing(), NO_POLL);
        Self {
            mount,
            registry,
            updater,
        }
    }

    async fn publish(&mut self, files: Vec<(String, Vec<u8>)>) -> Outcome {
        self.mount.publish(files);
        self.updater.update().await
    }

    fn current(&self) -> Arc<Snapshot> {
        self.updater.handle.current()
    }

    fn names(&self) -> Vec<String> {
        self.current()
            .entries()
            .iter()
            .map(|entry| entry.name.clone())
            .collect()
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }
}

fn prepare_nothing() -> Prepare {
    Arc::new(|_| async { Ok(()) }.boxed())
}

#[tokio::test]
async fn entries_are_in_force_in_chain_order() {
    let mut fixture = Fixture::new();
    assert!(!fixture.updater.handle.is_ready());
    let entries = [
        with_field(entry_value("b", scripted_guest()), "order", json!(5)),
        entry_value("c", scripted_guest()),
        with_field(entry_value("a", scripted_guest()), "order", json!(5)),
        with_field(entry_value("d", scripted_guest()), "order", json!(-5)),
    ];
    fixture
        .publish(files_of(document(3, &entries), &[scripted_guest()]))
        .await;
    assert_eq!(fixture.names(), ["d", "c", "a", "b"]);
    assert!(fixture.updater.handle.is_ready());
    let status = fixture.updater.handle.status();
    assert_eq!(
        (status.chain.generation, status.refused, status.counts.applied),
        (3, None, 1)
    );
    assert!(status.chain.since.ends_with('Z'), "{}", status.chain.since);
    assert!(
        fixture.metrics().contains("chain_generation 3\n"),
        "{}",
        fixture.metrics()
    );
}

#[tokio::test]
async fn chain_without_entries_is_chain() {
    let mut fixture = Fixture::new();
    fixture.publish(files_of(document(1, &[]), &[])).await;
    assert!(fixture.updater.handle.is_ready());
    assert_eq!(fixture.current().generation, 1);
}

#[tokio::test]
async fn unchanged_files_change_nothing() {
    let mut fixture = Fixture::new();
    let files = files_of(document(1, &[entry_value("a", scripted_guest())]), &[scripted_guest()]);
    fixture.publish(files.clone()).await;
    let before = fixture.current();
    assert_eq!(fixture.publish(files).await, Outcome::Settled);
    assert!(Arc::ptr_eq(&before, &fixture.current()));
}

#[tokio::test]
async fn unchanged_entry_keeps_instances_state_and_health() {
    let mut fixture = Fixture::new();
    let first = [
        entry_value("same", scripted_guest()),
        entry_value("moved", scripted_guest()),
        entry_value("changed", scripted_guest()),
    ];
    fixture
        .publish(files_of(document(1, &first), &[scripted_guest()]))
        .await;
    let before = fixture.current();
    let second = [
        entry_value("same", scripted_guest()),
        with_field(
            with_field(entry_value("moved", scripted_guest()), "order", json!(7)),
            "onFailure",
            json!("Open"),
        ),
        with_field(
            entry_value("changed", scripted_guest()),
            "settings",
            json!({"subscribe": []}),
        ),
        with_field(entry_value("new", scripted_guest()), "timeoutMs", json!(20)),
    ];
    fixture
        .publish(files_of(document(2, &second), &[scripted_guest()]))
        .await;
    let after = fixture.current();
    let pair = |name: &str| {
        (
            Arc::clone(before.entry(name).unwrap()),
            Arc::clone(after.entry(name).unwrap()),
        )
    };
    let (old, new) = pair("same");
    assert!(Arc::ptr_eq(&old, &new));
    let (old, new) = pair("moved");
    assert_eq!((old.id, new.order, new.on_failure), (new.id, 7, FailurePolicy::Open));
    assert!(Arc::ptr_eq(&old.quarantine, &new.quarantine) && Arc::ptr_eq(&old.config, &new.config));
    let (old, new) = pair("changed");
    assert_ne!(old.id, new.id);
    assert!(
        Arc::ptr_eq(&old.state, &new.state),
        "state survives a change of settings"
    );
    assert!(
        !Arc::ptr_eq(&old.quarantine, &new.quarantine),
        "and the quarantine is not"
    );
    assert!(new.subscription.rules.is_empty() && !old.subscription.rules.is_empty());
}

#[tokio::test]
async fn kept_entry_is_reused_without_plugin_file() {
    let mut fixture = Fixture::new();
    fixture
        .publish(files_of(
            document(1, &[entry_value("a", scripted_guest())]),
            &[scripted_guest()],
        ))
        .await;
    fixture
        .publish(files_of(document(2, &[entry_value("a", scripted_guest())]), &[]))
        .await;
    assert_eq!(fixture.current().generation, 2);
}

#[tokio::test]
async fn state_of_entry_that_is_gone_is_dropped() {
    let mut fixture = Fixture::new();
    let files = |generation, names: &[&str]| {
        let entries: Vec<_> = names.iter().map(|name| entry_value(name, scripted_guest())).collect();
        files_of(document(generation, &entries), &[scripted_guest()])
    };
    fixture.publish(files(1, &["a", "b"])).await;
    let old = Arc::clone(&fixture.current().entry("a").unwrap().state);
    fixture.publish(files(2, &["b"])).await;
    fixture.publish(files(3, &["a", "b"])).await;
    assert!(!Arc::ptr_eq(&old, &fixture.current().entry("a").unwrap().state));
}

#[tokio::test]
async fn status_counts_entries_that_pod_without_labels_does_not_run() {
    let mut fixture = Fixture::new();
    let labeled = json!({"matchLabels": {"shard": "0"}});
    let entries = [
        entry_value("everywhere", scripted_guest()),
        with_field(entry_value("labeled", scripted_guest()), "podSelector", labeled),
    ];
    fixture
        .publish(files_of(document(1, &entries), &[scripted_guest()]))
        .await;
    assert_eq!(fixture.names(), ["everywhere"]);
    let status = fixture.updater.handle.status().chain;
    assert_eq!((status.other_entries, status.without_labels), (1, true));
}

#[tokio::test]
async fn entries_are_chosen_by_labels_that_pod_has_now() {
    let mut labels = Mount::new();
    labels.publish([(files::LABELS, b"shard=\"0\"\n".to_vec())]);
    let path = labels.path().join(files::LABELS);
    let mut fixture = Fixture::with_location(|location| *location = location_with_labels(&location.directory, path));
    let shard = |n: &str| {
        with_field(
            entry_value(&format!("shard-{n}"), scripted_guest()),
            "podSelector",
            json!({"matchLabels": {"shard": n}}),
        )
    };
    let no_canary = json!({"matchExpressions": [{"key": "canary", "operator": "DoesNotExist"}]});
    let entries = [
        shard("0"),
        shard("1"),
        with_field(entry_value("stable", scripted_guest()), "podSelector", no_canary),
    ];
    fixture
        .publish(files_of(document(1, &entries), &[scripted_guest()]))
        .await;
    assert_eq!(fixture.names(), ["shard-0", "stable"]);
    assert!(fixture.current().is_first());
    let status = fixture.updater.handle.status().chain;
    assert_eq!((status.other_entries, status.without_labels), (1, false));

    labels.publish([(files::LABELS, b"canary=\"\"\nshard=\"1\"\n".to_vec())]);
    fixture.updater.update().await;
    assert_eq!(fixture.names(), ["shard-1"]);
    assert_eq!(fixture.updater.handle.status().chain.other_entries, 2);
    assert_eq!(fixture.current().generation, 1, "the document is still the same");
    assert!(
        !fixture.current().is_first(),
        "what was read before was of another view"
    );
}

#[tokio::test]
async fn workers_prepare_before_chain_is_in_force_and_may_refuse_it() {
    let mut fixture = Fixture::new();
    let handle = Arc::clone(&fixture.updater.handle);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    fixture.updater.prepare = Arc::new(move |snapshot: Arc<Snapshot>| {
        record
            .lock()
            .unwrap()
            .push((snapshot.generation, handle.current().generation));
        let result = if snapshot.generation == 2 {
            Err("worker 1: no memory".to_owned())
        } else {
            Ok(())
        };
        async move { result }.boxed()
    });
    let files = |generation| files_of(document(generation, &[]), &[]);
    fixture.publish(files(1)).await;
    assert_eq!(fixture.publish(files(2)).await, Outcome::Transient);
    assert_eq!(*seen.lock().unwrap(), [(1, 0), (2, 1)]);
    assert_eq!(fixture.current().generation, 1);
    let refused = fixture.updater.handle.status().refused.unwrap();
    assert_eq!((refused.reason.as_str(), refused.generation), ("prepare", Some(2)));
    assert!(refused.message.contains("worker 1: no memory"), "{}", refused.message);
}

#[tokio::test]
async fn metrics_of_entries_that_workers_started_for_a_refused_chain_are_removed() {
    let mut fixture = Fixture::new();
    let files = |generation, name: &str| {
        let entries = [entry_value(name, scripted_guest())];
        files_of(document(generation, &entries), &[scripted_guest()])
    };
    let handle = Arc::clone(&fixture.updater.handle);
    fixture.updater.prepare = Arc::new(move |snapshot: Arc<Snapshot>| {
        for entry in snapshot.entries() {
            handle.metrics().call_metrics(&entry.name).reused.inc();
        }
        let is_prepared = snapshot.generation == 1;
        async move { is_prepared.then_some(()).ok_or_else(|| "no memory".to_owned()) }.boxed()
    });
    fixture.publish(files(1, "a")).await;
    assert_eq!(fixture.publish(files(2, "b")).await, Outcome::Transient);
    let counts = |name| fixture.updater.handle.metrics().reuse_counts(name);
    assert_eq!((counts("a"), counts("b")), ((1, 0), (0, 0)));
}

#[tokio::test]
async fn chain_is_refused_when_workers_hang() {
    let mut fixture = Fixture::new();
    fixture.updater.prepare = Arc::new(|_| std::future::pending().boxed());
    fixture.updater.timing.prepare = Duration::from_millis(1);
    assert_eq!(
        fixture.publish(files_of(document(1, &[]), &[])).await,
        Outcome::Transient
    );
    let refused = fixture.updater.handle.status().refused.unwrap();
    assert!(
        refused.message.contains("took longer than 0.001 s"),
        "{}",
        refused.message
    );
}

#[tokio::test]
async fn status_reports_quarantine() {
    let mut fixture = Fixture::new();
    fixture
        .publish(files_of(
            document(1, &[entry_value("a", scripted_guest())]),
            &[scripted_guest()],
        ))
        .await;
    let (current, handle) = (fixture.current(), Arc::clone(&fixture.updater.handle));
    let entry = current.entry("a").unwrap();
    let origin = Origin {
        digest: entry.digest.to_string(),
        entry: "a".to_owned(),
        phase: Phase::OnRequest,
    };
    let fault = Fault::Trap {
        origin: Box::new(origin),
        detail: "unreachable".to_owned(),
    };
    let state = || handle.status().chain.entries[0].clone();
    assert_eq!((state().state, state().error), (EntryState::Active, None));
    handle.record_fault(entry, Admission::Call, Duration::ZERO, &fault);
    assert_eq!((state().state, state().faults), (EntryState::Failed, 1));
    for _ in 1..5 {
        handle.record_fault(entry, Admission::Call, Duration::ZERO, &fault);
    }
    assert_eq!(state().state, EntryState::Quarantined);
    assert!(state().until.unwrap().ends_with('Z'));
    assert!(state().error.unwrap().contains("trapped in on-request: unreachable"));
    let counts = handle.status().counts;
    assert_eq!((counts.faults, counts.quarantines), (5, 1));
    let metrics = fixture.metrics();
    assert!(
        metrics.contains("plugin_faults_total{entry=\"a\",kind=\"trap\"} 5\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("plugin_quarantines_total{entry=\"a\"} 1\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn chain_is_first_when_earlier_sidecar_had_no_other() {
    let state = tempfile::tempdir().unwrap();
    let chain = |generation, name| {
        files_of(
            document(generation, &[entry_value(name, scripted_guest())]),
            &[scripted_guest()],
        )
    };
    for (generation, name, is_first) in [(1, "a", true), (2, "a", true), (3, "b", false), (4, "b", false)] {
        let mut fixture = Fixture::with_predecessors(PredecessorRecord::open(state.path()).unwrap());
        fixture.publish(chain(generation, name)).await;
        assert_eq!(fixture.current().is_first(), is_first, "{generation} {name}");
    }
}

#[tokio::test]
async fn later_sidecar_knows_of_second_chain() {
    let state = tempfile::tempdir().unwrap();
    let chain = |generation, name| {
        files_of(
            document(generation, &[entry_value(name, scripted_guest())]),
            &[scripted_guest()],
        )
    };
    let mut fixture = Fixture::with_predecessors(PredecessorRecord::open(state.path()).unwrap());
    fixture.publish(chain(1, "a")).await;
    fixture.publish(chain(2, "b")).await;
    let mut fixture = Fixture::with_predecessors(PredecessorRecord::open(state.path()).unwrap());
    fixture.publish(chain(3, "b")).await;
    assert!(
        !fixture.current().is_first(),
        "a client may have a version from the chain before"
    );
}
