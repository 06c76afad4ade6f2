//! Pods whose kubelet synced too early.

use super::*;

#[tokio::test]
async fn a_pod_that_answers_and_stays_behind_is_told_again() {
    let (_sidecar, port, server) = one(45, |ip| pod("operator-0", ip)).await;
    put(&server, samples::faults("a"));
    let (_, task) = start(&server, port, &["--poll-seconds=60"]).await;
    let annotation = |state: &Snapshot<'_>, name: &str| {
        let pod = state.get("pods", DEMO, "operator-0").unwrap();
        pod["metadata"]["annotations"][name].as_str().map(str::to_owned)
    };
    let told = |state: &Snapshot<'_>| annotation(state, annotations::CHAIN_GENERATION).as_deref() == Some("1");
    until(&server, "it is told", told).await;
    let first = Instant::now();
    let bumped = |state: &Snapshot<'_>| annotation(state, annotations::CHAIN_BUMP);
    assert_eq!(server.store().read(bumped), None);
    until(&server, "it is told again", |state| bumped(state).is_some()).await;
    let took = first.elapsed();
    assert!(
        took > Duration::from_secs(2) && took < Duration::from_secs(9),
        "{took:?}"
    );
    server.store().read(|state| {
        assert_eq!(bumped(state).as_deref(), Some("1.1"));
        assert!(told(state));
    });
    task.stop().await;
}
