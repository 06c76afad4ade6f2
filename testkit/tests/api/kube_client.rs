//! kube-rs in typical use: typed and dynamic calls, watcher, reflector, over every kind of connection.

use ctrlmesh_testkit::{ApiServer, Fault, Rule};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::reflector::store;
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use crate::support::{Connection, PATIENCE, configmap, kube_client, kube_client_over, start_server, widget};

async fn all_clients(server: &ApiServer) -> Vec<Client> {
    vec![
        kube_client(&server.kubeconfig()).await,
        kube_client(&server.plain_kubeconfig()).await,
        kube_client_over(Connection::connect_tls(server, &["h2"]).await),
    ]
}

fn widget_api(client: Client) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    Api::default_namespaced_with(client, &resource)
}

#[tokio::test]
async fn object_is_created_updated_and_deleted() {
    let server = start_server().await;
    for client in all_clients(&server).await {
        let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let object: ConfigMap = serde_json::from_value(configmap("default", "a", "x")).expect("a ConfigMap");
        let created = api.create(&PostParams::default(), &object).await.expect("created");
        let patch = Patch::Merge(json!({ "data": { "key": "patched" } }));
        api.patch("a", &PatchParams::default(), &patch).await.expect("patched");
        let stale = api
            .replace("a", &PostParams::default(), &created)
            .await
            .expect_err("stale");
        assert!(matches!(stale, kube::Error::Api(status) if status.is_conflict()));
        assert_eq!(
            api.list(&ListParams::default().labels("app=x"))
                .await
                .expect("listed")
                .items
                .len(),
            1
        );
        let deleted = api.delete("a", &DeleteParams::default()).await.expect("deleted");
        assert!(deleted.right().is_some_and(|status| status.is_success()));
        assert!(api.get_opt("a").await.expect("answered").is_none());
    }
}

#[tokio::test]
async fn custom_object_has_a_status() {
    let server = start_server().await;
    let api = widget_api(kube_client(&server.kubeconfig()).await);
    let object: DynamicObject = serde_json::from_value(widget("w1")).expect("a Widget");
    api.create(&PostParams::default(), &object).await.expect("created");
    let status = Patch::Merge(json!({ "status": { "phase": "Ready" } }));
    let patched = api
        .patch_status("w1", &PatchParams::default(), &status)
        .await
        .expect("patched");
    assert_eq!(
        (&patched.data["status"]["phase"], patched.metadata.generation),
        (&json!("Ready"), Some(1))
    );
}

#[tokio::test]
async fn lease_is_acquired_by_one_of_two_clients() {
    let server = start_server().await;
    let api: Api<Lease> = Api::default_namespaced(kube_client(&server.kubeconfig()).await);
    let lease = |holder: &str| -> Lease {
        serde_json::from_value(json!({ "metadata": { "name": "leader" }, "spec": { "holderIdentity": holder } }))
            .expect("a Lease")
    };
    let first = api
        .create(&PostParams::default(), &lease("one"))
        .await
        .expect("created");
    api.create(&PostParams::default(), &lease("two"))
        .await
        .expect_err("taken");
    let mut renewed = first.clone();
    renewed.spec.as_mut().expect("a spec").lease_transitions = Some(1);
    api.replace("leader", &PostParams::default(), &renewed)
        .await
        .expect("renewed");
    api.replace("leader", &PostParams::default(), &first)
        .await
        .expect_err("an older state");
}

#[tokio::test]
async fn paged_list_collects_every_object() {
    let server = start_server().await;
    for number in 0..25 {
        server
            .store()
            .put(configmap("default", &format!("c{number:02}"), "x"))
            .expect("stored");
    }
    let api: Api<ConfigMap> = Api::all(kube_client(&server.kubeconfig()).await);
    let (mut names, mut params) = (Vec::new(), ListParams::default().limit(10));
    loop {
        let page = api.list(&params).await.expect("a page");
        names.extend(page.items.iter().map(kube::ResourceExt::name_any));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    assert_eq!((names.len(), server.requests().count("list")), (25, 3));
}

/// Polls a reflector's stream until it yields the object; during an outage, errors come in between.
async fn wait_for_object<E>(stream: &mut (impl Stream<Item = Result<ConfigMap, E>> + Unpin), name: &str) {
    let found = async {
        loop {
            let object = stream.next().await.expect("a stream").ok();
            if object.is_some_and(|object| object.name_any() == name) {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("seen in time");
}

async fn follow_through_outage(server: &ApiServer, client: Client, config: watcher::Config) {
    let api: Api<ConfigMap> = Api::all(client);
    let (reader, writer) = store();
    let stream = reflector(writer, watcher(api, config.labels("app=x")))
        .default_backoff()
        .touched_objects();
    let mut stream = std::pin::pin!(stream);
    server.store().put(configmap("default", "one", "x")).expect("stored");
    wait_for_object(&mut stream, "one").await;
    server.store().put(configmap("default", "two", "x")).expect("stored");
    wait_for_object(&mut stream, "two").await;
    // The watch breaks, and the history is compacted: the client has to list again.
    server.stop().await;
    server.store().put(configmap("default", "three", "x")).expect("stored");
    server
        .store()
        .put(configmap("default", "one", "moved away"))
        .expect("stored");
    server.store().compact();
    server.restart().await.expect("restarted");
    wait_for_object(&mut stream, "three").await;
    // The store replaces its content when a list is complete, so not before the next event.
    server.store().put(configmap("default", "four", "x")).expect("stored");
    wait_for_object(&mut stream, "four").await;
    let mut names: Vec<_> = reader.state().iter().map(|object| object.name_any()).collect();
    names.sort();
    assert_eq!(names, ["four", "three", "two"]);
}

#[tokio::test]
async fn reflector_survives_outage_and_compaction() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let server = start_server().await;
        follow_through_outage(&server, kube_client(&server.kubeconfig()).await, config.clone()).await;
        let server = crate::support::start_server().await;
        follow_through_outage(&server, kube_client(&server.plain_kubeconfig()).await, config).await;
    }
}

#[tokio::test]
async fn watcher_sees_changes_over_http2() {
    let server = start_server().await;
    let client = kube_client_over(Connection::connect_tls(&server, &["h2"]).await);
    let api: Api<ConfigMap> = Api::default_namespaced(client);
    let mut stream = std::pin::pin!(watcher(
        api,
        watcher::Config::default().labels("app=x").streaming_lists()
    ));
    let mut seen = Vec::new();
    server.store().put(configmap("default", "a", "x")).expect("stored");
    while seen.len() < 5 {
        let event = tokio::time::timeout(PATIENCE, stream.next())
            .await
            .expect("in time")
            .expect("a stream");
        seen.push(match event.expect("an event") {
            watcher::Event::Init => "init".to_owned(),
            watcher::Event::InitApply(object) => format!("init {}", object.name_any()),
            watcher::Event::InitDone => {
                server.store().put(configmap("default", "a", "y")).expect("stored");
                server.store().put(configmap("default", "b", "x")).expect("stored");
                "done".to_owned()
            }
            watcher::Event::Apply(object) => format!("apply {}", object.name_any()),
            watcher::Event::Delete(object) => format!("delete {}", object.name_any()),
        });
    }
    assert_eq!(seen, ["init", "init a", "done", "delete a", "apply b"]);
}

#[tokio::test]
async fn kube_rs_retries_after_429() {
    let server = start_server().await;
    let api: Api<ConfigMap> = Api::default_namespaced(kube_client(&server.kubeconfig()).await);
    let rule = server.faults().add(
        Rule::new(Fault::Status {
            code: 429,
            retry_after: Some(0),
        })
        .verb("list")
        .times(1),
    );
    api.list(&ListParams::default()).await.expect("the second try succeeds");
    assert_eq!(
        (server.faults().times_applied(rule), server.requests().count("list")),
        (1, 2)
    );
}
