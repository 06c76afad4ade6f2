//! Sidecars of other releases get no entries that they do not support.

use ctrlmesh_contract::support::Support;

use super::*;

/// A sidecar of a later release, which reads other documents, beside one of this.
#[tokio::test]
async fn document_unreadable_for_a_sidecar_is_held_back_and_its_pod_is_named() {
    let (sidecar, port, server) = start_with_sidecar(61, |ip| pod("operator-0", ip)).await;
    put(&server, samples::faults("a"));
    let (_, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let chain = until_entries(&server, 1).await;
    let mut later = status_running("operator-0", chain.generation, Some(&chain));
    later.supports = Some(Support {
        documents: vec!["chain.ctrlmesh.kusionstack.io/v9".to_owned()],
        ..Support::current()
    });
    sidecar.set_status(later);
    let asked = sidecar.poll_count();
    until_counted(|| sidecar.poll_count() > asked + 3).await;
    put(&server, samples::faults("b"));
    let is_outdated = |state: &Snapshot<'_>| {
        let [status, reason, message] = condition(state, "b", "Distributed");
        status == "False" && reason == "SidecarOutdated" && message.contains("operator-0")
    };
    until(&server, "the object says so", is_outdated).await;
    let event = |state: &Snapshot<'_>| {
        let mut events = state.list("events.events.k8s.io");
        events.any(|event| event["reason"] == "SidecarOutdated" && event["regarding"]["name"] == "b")
    };
    until(&server, "and so does an Event", event).await;
    assert_eq!(server.store().read(super::chain).unwrap(), chain);
    let mut current = status_running("operator-0", chain.generation, Some(&chain));
    current.supports = Some(Support::current());
    sidecar.set_status(current);
    until_entries(&server, 2).await;
    task.stop().await;
}

/// A manager that begins to lead has polled no sidecar yet, and finds a new rule.
#[tokio::test]
async fn rule_waits_for_the_first_report_of_an_outdated_sidecar() {
    let (sidecar, port, server) = start_with_sidecar(62, |ip| pod("operator-0", ip)).await;
    put(&server, samples::faults("a"));
    let (_, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let chain = until_entries(&server, 1).await;
    task.stop().await;
    let mut earlier = status_running("operator-0", chain.generation, Some(&chain));
    earlier.supports = None;
    sidecar.set_status(earlier);
    put(&server, samples::faults("b"));
    let (_, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let is_outdated = |state: &Snapshot<'_>| condition(state, "b", "Distributed")[1] == "SidecarOutdated";
    until(&server, "the object says so", is_outdated).await;
    assert_eq!(server.store().read(super::chain).unwrap(), chain);
    task.stop().await;
}
