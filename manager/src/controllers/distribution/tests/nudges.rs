//! Pods whose kubelet synced too early.

use super::*;

#[tokio::test]
async fn pod_that_answers_and_stays_behind_is_nudged_again() {
    let (_sidecar, port, server) = start_with_sidecar(45, |ip| pod("operator-0", ip)).await;
    put(&server, samples::faults("a"));
    let (_, task) = start(&server, port, &["--poll-seconds=60"]).await;
    let annotation = |state: &Snapshot<'_>, name: &str| {
        let pod = state.get("pods", DEMO, "operator-0").unwrap();
        pod["metadata"]["annotations"][name].as_str().map(str::to_owned)
    };
    let is_nudged = |state: &Snapshot<'_>| annotation(state, annotations::CHAIN_GENERATION).as_deref() == Some("1");
    until(&server, "the pod is nudged", is_nudged).await;
    let first = Instant::now();
    let renudged = |state: &Snapshot<'_>| annotation(state, annotations::CHAIN_BUMP);
    assert_eq!(server.store().read(renudged), None);
    until(&server, "the pod is nudged again", |state| renudged(state).is_some()).await;
    let took = first.elapsed();
    assert!(
        took > Duration::from_secs(2) && took < Duration::from_secs(9),
        "{took:?}"
    );
    server.store().read(|state| {
        assert_eq!(renudged(state).as_deref(), Some("1.1"));
        assert!(is_nudged(state));
    });
    task.stop().await;
}

#[tokio::test]
async fn accepted_condition_carries_warnings() {
    let (_sidecar, port, server) = start_with_sidecar(46, |ip| pod("operator-0", ip)).await;
    let mut shard = samples::shard("a", &[]);
    shard["spec"]["webhook"] = json!({"certDir": "/certs", "port": 9443});
    shard["spec"]["limits"][0]["relateResources"][0]["resources"] = json!(["pods", "configmap"]);
    put(&server, shard);
    let mut faults = samples::faults("old");
    faults["metadata"]["finalizers"] = json!(["finalizer.ctrlmesh.kusionstack.io/protected"]);
    put(&server, faults);
    let (_, task) = start(&server, port, &["--poll-seconds=60"]).await;
    let accepted = |state: &Snapshot<'_>, plural: &str, name: &str| condition_of(state, plural, name, "Accepted");
    let are_accepted = |state: &Snapshot<'_>| {
        let [shard, ..] = accepted(state, "shardingconfigs", "a");
        let [faults, ..] = accepted(state, "faultinjections", "old");
        shard == "True" && faults == "True"
    };
    until(&server, "both conditions are true", are_accepted).await;
    server.store().read(|state| {
        let [.., message] = accepted(state, "shardingconfigs", "a");
        for says in [
            "warning: spec.webhook: has no effect",
            "warning: spec.limits[0].relateResources[0].resources[1]: \"configmap\" is the name of no resource",
            "warning: spec.limits[0].selector: hides pods without label a",
        ] {
            assert!(message.contains(says), "{says}: {message}");
        }
        let [.., message] = accepted(state, "faultinjections", "old");
        assert_eq!(message, "", "Distributed says that a switch held it");
    });
    until(&server, "it is named as switched off", |state| {
        condition_of(state, "faultinjections", "old", "Distributed")[1] == "SwitchedOff"
    })
    .await;
    task.stop().await;
}
