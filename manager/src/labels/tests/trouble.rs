//! Refusals, rivals and rates.

use std::sync::atomic::{AtomicU64, Ordering};

use ctrlmesh_testkit::{Fault, Gate, Rule as FaultRule};
use tokio::time::Instant;

use super::*;

#[tokio::test]
async fn what_fails_is_tried_again() {
    let server = cluster(2).await;
    let refused = |code: u16, retry_after| FaultRule::new(Fault::Status { code, retry_after }).verb("patch");
    // A refusal for good, a server that is busy, one that is broken.
    let rules = [
        server.faults().add(refused(403, None).resource("configmaps").times(1)),
        server.faults().add(refused(429, Some(0)).resource("services").times(3)),
        server.faults().add(refused(409, None).resource("namespaces").times(2)),
    ];
    let (context, running) = labelling(&server).await;
    until(&server, "all is labelled in the end", |state| {
        objects(state).into_iter().all(is_labelled)
    })
    .await;
    assert_eq!(rules.map(|rule| server.faults().hits(rule)), [1, 3, 2]);
    let counted = context.metrics.render().unwrap();
    assert!(
        counted.contains("labels_objects_failed_total{kind=\"configmaps\"} 1"),
        "{counted}"
    );
    until(&server, "it was told", |state| {
        state
            .list("events.events.k8s.io")
            .any(|event| text(event, "/reason") == "LabellingIncomplete")
    })
    .await;
    running.stop().await;
}

/// Somebody whose controller sets all labels: neither side gives in.
#[tokio::test]
async fn labels_that_somebody_removes_are_not_written_for_ever() {
    let server = cluster(1).await;
    let (context, running) = labelling(&server).await;
    until_finished(&server).await;
    let removed = AtomicU64::new(0);
    let fight = async {
        loop {
            until(&server, "labelled again", |state| {
                state.get("services", "test-0", "a").is_some_and(is_labelled)
            })
            .await;
            put(&server, object("Service", "test-0", "a"));
            removed.fetch_add(1, Ordering::Relaxed);
        }
    };
    let contested = async {
        let none = "labels_objects_contested_total{kind=\"services\"} 0";
        while context.metrics.render().unwrap().contains(none) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = fight => {}
        () = contested => {}
    }
    assert_eq!(removed.load(Ordering::Relaxed), 5);
    running.stop().await;
}

#[tokio::test]
async fn no_more_requests_are_sent_than_allowed() {
    let server = cluster(100).await;
    let flags = ["--rest-config-qps=100", "--rest-config-burst=20"];
    let context = stand::context(&server, &flags).await;
    server.requests().clear();
    let (start, before) = (Instant::now(), server.requests().total());
    let running = Running::start(&context, run_at(context.clone(), PACE));
    until_finished(&server).await;
    let sent = server.requests().total() - before;
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "some hundred")]
    let sent = sent as f64;
    assert!(sent > 300.0 && sent <= 20.0 + 100.0 * seconds, "{sent} in {seconds} s");
    running.stop().await;
}

/// The namespace was read, and not written yet, when a person writes it.
#[tokio::test]
async fn what_a_person_writes_meanwhile_is_not_undone() {
    let server = cluster(1).await;
    let gate = Gate::new();
    let first = FaultRule::new(Fault::Hold(gate.clone()))
        .verb("patch")
        .name("test-0")
        .times(1);
    server.faults().add(first);
    let (_, running) = labelling(&server).await;
    gate.wait_for_arrivals(1).await.unwrap();
    put(&server, namespace("test-0", &json!({ CONTROL: "false" })));
    gate.open();
    until_finished(&server).await;
    server.store().read(|state| {
        let namespace = state.get("namespaces", "", "test-0").unwrap();
        assert_eq!(ours(namespace), [None, None, Some("false")]);
    });
    until(&server, "its objects follow", |state| {
        objects(state).into_iter().all(is_bare)
    })
    .await;
    running.stop().await;
}
