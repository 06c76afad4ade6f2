//! Failures of writes, competing writers, and rates.

use std::sync::atomic::{AtomicU64, Ordering};

use ctrlmesh_testkit::{Fault, Gate, Rule as FaultRule};
use tokio::time::Instant;

use super::*;

#[tokio::test]
async fn failed_label_write_is_retried() {
    let server = server_with_namespaces(2).await;
    let refused = |code: u16, retry_after| FaultRule::new(Fault::Status { code, retry_after }).verb("patch");
    // A permanent refusal, a busy server, a conflict.
    let rules = [
        server.faults().add(refused(403, None).resource("configmaps").times(1)),
        server.faults().add(refused(429, Some(0)).resource("services").times(3)),
        server.faults().add(refused(409, None).resource("namespaces").times(2)),
    ];
    let (context, running) = start_controller(&server).await;
    until(&server, "all is labelled in the end", |state| {
        objects(state).into_iter().all(is_labelled)
    })
    .await;
    assert_eq!(rules.map(|rule| server.faults().times_applied(rule)), [1, 3, 2]);
    let counted = context.metrics.render().unwrap();
    assert!(
        counted.contains("labels_objects_failed_total{kind=\"configmaps\"} 1"),
        "{counted}"
    );
    until(&server, "an Event is there", |state| {
        state
            .list("events.events.k8s.io")
            .any(|event| text(event, "/reason") == "LabellingIncomplete")
    })
    .await;
    running.stop().await;
}

/// Another controller sets all labels, and neither side gives in.
#[tokio::test]
async fn contested_labels_are_not_written_for_ever() {
    let server = server_with_namespaces(1).await;
    let (context, running) = start_controller(&server).await;
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
    let none = "labels_objects_contested_total{kind=\"services\"} 0";
    tokio::select! {
        () = fight => {}
        () = wait_until("it is put off", || !context.metrics.render().unwrap().contains(none)) => {}
    }
    assert_eq!(removed.load(Ordering::Relaxed), 5);
    running.stop().await;
}

#[tokio::test]
async fn labelling_keeps_request_rate() {
    let server = server_with_namespaces(100).await;
    let flags = ["--rest-config-qps=100", "--rest-config-burst=20"];
    let context = test_env::context(&server, &flags).await;
    server.requests().clear();
    let (start, before) = (Instant::now(), server.requests().total());
    let running = Running::start(&context, run_within(context.clone(), LIMITS));
    until_finished(&server).await;
    let sent = server.requests().total() - before;
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "some hundred")]
    let sent = sent as f64;
    assert!(sent > 300.0 && sent <= 20.0 + 100.0 * seconds, "{sent} in {seconds} s");
    running.stop().await;
}

/// The namespace was read, but not written yet, when a person writes it.
#[tokio::test]
async fn concurrent_label_edit_is_not_reverted() {
    let server = server_with_namespaces(1).await;
    let gate = Gate::new();
    let first = FaultRule::new(Fault::Hold(gate.clone()))
        .verb("patch")
        .name("test-0")
        .times(1);
    server.faults().add(first);
    let (_, running) = start_controller(&server).await;
    gate.wait_for_arrivals(1).await.unwrap();
    put(&server, namespace("test-0", &json!({ CONTROL: "false" })));
    gate.open();
    until_finished(&server).await;
    server.store().read(|state| {
        let namespace = state.get("namespaces", "", "test-0").unwrap();
        assert_eq!(manager_labels(namespace), [None, None, Some("false")]);
    });
    until(&server, "its objects follow", |state| {
        objects(state).into_iter().all(is_unlabelled)
    })
    .await;
    running.stop().await;
}

/// Objects that change more often than they can be written, as those of a busy controller do.
#[tokio::test]
async fn busy_object_does_not_count_as_contested() {
    let server = server_with_namespaces(1).await;
    let gate = Gate::new();
    let held = FaultRule::new(Fault::Hold(gate.clone()))
        .verb("patch")
        .resource("services");
    let held = server.faults().add(held);
    let (context, running) = start_controller(&server).await;
    gate.wait_for_arrivals(1).await.unwrap();
    for number in 0..20 {
        let mut busy = object("Service", "test-0", "a");
        busy["metadata"]["annotations"] = json!({ "at": number.to_string() });
        put(&server, busy);
    }
    until_counted(&context, "objects_seen_total{kind=\"services\"} 21").await;
    server.faults().remove(held);
    gate.open();
    until_finished(&server).await;
    let counted = context.metrics.render().unwrap();
    assert!(
        counted.contains("labels_objects_contested_total{kind=\"services\"} 0"),
        "{counted}"
    );
    let patches = server.requests().recent().into_iter();
    let patches = patches.filter(|seen| seen.verb == "patch" && seen.target.contains("/services/"));
    assert!(
        patches.count() <= 2,
        "one that was under way, and one that saw the changes"
    );
    running.stop().await;
}

fn count_requests(server: &ApiServer, verb: &str, target: &str) -> usize {
    let all = server.requests().recent().into_iter();
    all.filter(|seen| seen.verb == verb && seen.target.contains(target))
        .count()
}

/// The role lacks a kind.
#[tokio::test]
async fn forbidden_kind_is_reported_once_and_skipped() {
    let server = server_with_namespaces(2).await;
    for number in 0..1200 {
        put(&server, object("ConfigMap", "test-1", &format!("c{number}")));
    }
    let refusal = Fault::Status {
        code: 403,
        retry_after: None,
    };
    server
        .faults()
        .add(FaultRule::new(refusal).verb("patch").resource("configmaps"));
    let (_, running) = labelling_within(&server, LIMITS).await;
    until(&server, "an Event is there", |state| {
        let mut events = state.list("events.events.k8s.io");
        events.any(|event| text(event, "/reason") == "LabellingIncomplete")
    })
    .await;
    let said = notes(&server, "LabellingIncomplete").concat();
    assert!(
        said.contains("may not write configmaps; grant the manager patch on them"),
        "{said}"
    );
    assert!(count_requests(&server, "patch", "/configmaps/") <= 16 + MAX_WRITES);
    assert_eq!(
        count_requests(&server, "list", "/api/v1/configmaps"),
        3,
        "no page is read twice"
    );
    server.store().read(|state| {
        assert!(
            is_labelled(state.get("services", "test-0", "a").unwrap()),
            "other kinds go on"
        );
    });
    running.stop().await;
}

#[tokio::test]
async fn permanently_refused_object_is_retried_alone() {
    let server = server_with_namespaces(2).await;
    let refusal = Fault::Status {
        code: 403,
        retry_after: None,
    };
    let refused = FaultRule::new(refusal).verb("patch").resource("configmaps");
    let rule = server.faults().add(refused.namespace("test-0").name("a"));
    let (context, running) = start_controller(&server).await;
    wait_until("it is tried again and again", || {
        server.faults().times_applied(rule) >= 40
    })
    .await;
    assert_eq!(
        count_requests(&server, "list", "/api/v1/configmaps"),
        1,
        "only what failed"
    );
    server.faults().remove(rule);
    until(&server, "it is labelled in the end", |state| {
        objects(state).into_iter().all(is_labelled)
    })
    .await;
    until_counted(&context, "backfill_done{kind=\"configmaps\"} 1").await;
    running.stop().await;
}

/// Objects that the manager creates for sidecars belong to no shard, whoever labelled them.
#[tokio::test]
async fn labels_on_managers_own_objects_are_removed() {
    let server = server_with_namespaces(1).await;
    let mut ours = object("ConfigMap", "test-0", "ctrlmesh-chain");
    ours["metadata"]["labels"] = json!({
        "app.kubernetes.io/managed-by": "ctrlmesh-manager", HASH: "29", IN: "test-0", CONTROL: "true",
    });
    put(&server, ours);
    let (_, running) = start_controller(&server).await;
    until_finished(&server).await;
    server.store().read(|state| {
        assert!(is_unlabelled(
            state.get("configmaps", "test-0", "ctrlmesh-chain").unwrap()
        ));
        assert!(is_labelled(state.get("configmaps", "test-0", "a").unwrap()));
    });
    running.stop().await;
}

/// A cluster with `count` ConfigMaps in `test-0`.
async fn server_with_configmaps(count: usize) -> ApiServer {
    let server = server_with_namespaces(1).await;
    for number in 1..count {
        put(&server, object("ConfigMap", "test-0", &format!("c{number}")));
    }
    server
}

fn invalid_patch_fault() -> FaultRule {
    let fault = Fault::Status {
        code: 422,
        retry_after: None,
    };
    FaultRule::new(fault).verb("patch").resource("configmaps")
}

#[tokio::test]
async fn objects_without_room_in_queue_are_read_again() {
    let server = server_with_configmaps(40).await;
    let refusal = Fault::Status {
        code: 403,
        retry_after: None,
    };
    let once = FaultRule::new(refusal).verb("patch").resource("configmaps").times(1);
    server.faults().add(once);
    let (context, running) = labelling_within(&server, Limits { todo: 4, ..LIMITS }).await;
    until_counted(&context, "backfill_done{kind=\"configmaps\"} 1").await;
    server
        .store()
        .read(|state| assert!(objects(state).into_iter().all(is_labelled)));
    let lists = count_requests(&server, "list", "/api/v1/configmaps");
    assert!((2..=10).contains(&lists), "each has room for four: {lists}");
    running.stop().await;
}

#[tokio::test]
async fn refused_objects_are_not_read_again_at_once() {
    let server = server_with_configmaps(40).await;
    let rule = server.faults().add(invalid_patch_fault());
    let (_, running) = labelling_within(&server, Limits { todo: 4, ..LIMITS }).await;
    until(&server, "an Event is there", |state| {
        let mut events = state.list("events.events.k8s.io");
        events.any(|event| text(event, "/reason") == "LabellingIncomplete")
    })
    .await;
    assert_eq!(count_requests(&server, "list", "/api/v1/configmaps"), 1);
    assert_eq!(count_requests(&server, "patch", "/configmaps/"), MAX_WRITES + 4);
    running.stop().await;

    let (_, running) = labelling_within(&server, Limits { todo: 4, ..QUICK }).await;
    wait_until("it is tried again", || server.faults().times_applied(rule) > 40).await;
    server.faults().remove(rule);
    until(&server, "it is labelled in the end", |state| {
        objects(state).into_iter().all(is_labelled)
    })
    .await;
    running.stop().await;
}

#[tokio::test]
async fn failures_without_room_are_found_again() {
    for (count, limits) in [(40, Limits { failed: 4, ..QUICK }), (12, Limits { todo: 4, ..QUICK })] {
        let server = server_with_configmaps(count).await;
        server
            .faults()
            .add(invalid_patch_fault().times(u32::try_from(count).unwrap()));
        let (context, running) = labelling_within(&server, limits).await;
        until(&server, "it is labelled in the end", |state| {
            objects(state).into_iter().all(is_labelled)
        })
        .await;
        until_counted(&context, "backfill_done{kind=\"configmaps\"} 1").await;
        assert_eq!(count_requests(&server, "list", "/api/v1/configmaps"), 2, "{limits:?}");
        running.stop().await;
    }
}

/// Each time with a few of its objects, however many wait.
#[tokio::test]
async fn forbidden_kind_is_retried() {
    for failed in [4, 1024] {
        let server = server_with_configmaps(200).await;
        let refusal = Fault::Status {
            code: 403,
            retry_after: None,
        };
        let refused = FaultRule::new(refusal).verb("patch").resource("configmaps");
        let rule = server.faults().add(refused);
        let (start, repeat) = (Instant::now(), Duration::from_millis(300));
        let limits = Limits {
            failed,
            repeat,
            longest_repeat: repeat,
            ..QUICK
        };
        let (context, running) = labelling_within(&server, limits).await;
        wait_until("it is tried again", || server.faults().times_applied(rule) >= 60).await;
        assert!(start.elapsed() >= 2 * repeat, "60 are more than two times");
        server.faults().remove(rule);
        until_counted(&context, "backfill_done{kind=\"configmaps\"} 1").await;
        server
            .store()
            .read(|state| assert!(objects(state).into_iter().all(is_labelled)));
        running.stop().await;
    }
}

#[tokio::test]
async fn labelling_stops_while_it_waits_for_namespaces() {
    let server = server_with_namespaces(1).await;
    let unread = Fault::Status {
        code: 403,
        retry_after: None,
    };
    let rule = server
        .faults()
        .add(FaultRule::new(unread).verb("list").resource("namespaces"));
    let (_, running) = start_controller(&server).await;
    let last = "/apis/apps.kusionstack.io/v1alpha1";
    wait_until("kinds are looked for", || {
        server
            .requests()
            .recent()
            .iter()
            .any(|seen| seen.target.starts_with(last))
            && server.faults().times_applied(rule) > 0
    })
    .await;
    running.stop().await;
}
