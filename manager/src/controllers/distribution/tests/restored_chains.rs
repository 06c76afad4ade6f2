//! Chains that somebody else has changed, or hidden.

use super::*;

fn stored_config_map(server: &ApiServer) -> Value {
    let map = server
        .store()
        .read(|state| state.get("configmaps", DEMO, CHAIN).cloned());
    map.unwrap()
}

async fn until_generation(server: &ApiServer, generation: u64) {
    let what = format!("generation {generation} is written");
    until(server, &what, |state| {
        chain(state).is_some_and(|chain| chain.generation == generation)
    })
    .await;
}

#[tokio::test]
async fn restored_old_chain_is_overwritten() {
    let server = server().await;
    put(&server, samples::faults("a"));
    let (_, running) = start(&server, 1, &[]).await;
    until_entries(&server, 1).await;
    let earlier = stored_config_map(&server);
    put(&server, samples::faults("b"));
    until_entries(&server, 2).await;
    put(&server, samples::faults("c"));
    let later = until_entries(&server, 3).await;
    assert_eq!(later.generation, 3);
    put(&server, earlier);
    // No generation is said of two chains.
    assert_eq!(until_entries(&server, 3).await, later);
    running.stop().await;
}

#[tokio::test]
async fn chain_gets_a_generation_above_all_that_sidecars_run() {
    let (sidecar, port, server) = start_with_sidecar(37, |ip| pod("operator-0", ip)).await;
    put(&server, samples::faults("a"));
    let (_, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let chain = until_entries(&server, 1).await;
    sidecar.set_status(status_running("operator-0", 7, Some(&chain)));
    until_generation(&server, 9).await;
    // A sidecar that reports later generations again and again raises the generation once a minute at most.
    sidecar.set_status(status_running("operator-0", 20, Some(&chain)));
    until(&server, "it is said", |state| {
        condition(state, "a", "Enforced")[0] == "True"
    })
    .await;
    assert_eq!(until_entries(&server, 1).await.generation, 9);
    task.stop().await;
}

#[tokio::test]
async fn next_manager_takes_up_chain_without_its_label() {
    let server = server().await;
    put(&server, samples::faults("a"));
    let (_, running) = start(&server, 1, &[]).await;
    until_entries(&server, 1).await;
    running.stop().await;
    let mut map = stored_config_map(&server);
    map["metadata"]["labels"] = json!({});
    put(&server, map);
    let (_, running) = start(&server, 1, &[]).await;
    until(&server, "it has its label again", |state| {
        let map = state.get("configmaps", DEMO, CHAIN).unwrap();
        map["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "ctrlmesh-manager"
    })
    .await;
    put(&server, samples::faults("b"));
    assert_eq!(until_entries(&server, 2).await.generation, 2);
    running.stop().await;
}

#[tokio::test]
async fn ending_namespace_is_left_alone() {
    const OTHER: &str = "other";
    let server = test_env::builder()
        .namespace(DEMO)
        .namespace(OTHER)
        .start()
        .await
        .unwrap();
    let mut namespace = server
        .store()
        .read(|state| state.get("namespaces", "", DEMO).cloned())
        .unwrap();
    namespace["metadata"]["finalizers"] = json!(["example.com/waits"]);
    put(&server, namespace);
    server.store().delete("namespaces", "", DEMO).unwrap();
    put(&server, samples::faults("a"));
    let (context, running) = start(&server, 1, &["--poll-seconds=1"]).await;
    let mut other = samples::faults("a");
    other["metadata"]["namespace"] = json!(OTHER);
    put(&server, other);
    // It is looked at again and again, and by then both were.
    let passes = || context.metrics.distribution.passes.get();
    until(&server, "the other has its chain", |state| {
        state.get("configmaps", OTHER, CHAIN).is_some()
    })
    .await;
    let seen = passes();
    until_counted(|| passes() > seen + 2).await;
    running.stop().await;
    assert_eq!(server.store().read(chain), None);
}
