//! Paths that a server in front of the API server would clean into others are refused, with and without entries.

use ctrlmesh_testkit::ApiServer;
use ctrlmesh_tests::path_cleaning_proxy::{OTHER_CLUSTER, PathCleaningProxy};
use ctrlmesh_tests::{Client, TestEnv, shard_entry};
use http::Method;
use serde_json::json;

/// Requests are repeated, because threads remember targets.
const REPEATS: usize = 4;

const PREFIX: &str = "/k8s/clusters/c-1";

/// Cleaned, each is a list of config maps, or leaves the path of the server URL.
const UNCLEAN: [&str; 22] = [
    "/./api/v1/configmaps",
    "/x/../api/v1/configmaps",
    "//api/v1/configmaps",
    "/api//v1/configmaps",
    "/api/v1//configmaps",
    "/api/v1/configmaps//",
    "/%2e/api/v1/configmaps",
    "/x/%2E%2e/api/v1/configmaps",
    "/x/..%2Fapi/v1/configmaps",
    "/.%2Fapi/v1/configmaps",
    "/%2Fapi/v1/configmaps",
    "/api\\v1\\configmaps",
    "/api%5Cv1/configmaps",
    "/.\\api/v1/configmaps",
    "/api/v1/namespaces/x/../../configmaps",
    "/apis/../api/v1/configmaps",
    "/version/../api/v1/configmaps?watch=0",
    "/api/v1/namespaces/n/pods/p/proxy/../../../../../configmaps",
    "/api/v1/nodes/n/proxy/..%2f..%2f..%2fconfigmaps",
    "/api/v1/nodes/n/proxy/a//../../../../configmaps",
    "/../c-2/api/v1/configmaps",
    "/%2e%2e/c-2/api/v1/namespaces/default/secrets",
];

async fn start_behind_path_cleaner(
    entries: Vec<ctrlmesh_tests::EntrySpec>,
) -> anyhow::Result<(TestEnv, PathCleaningProxy)> {
    let api = ApiServer::builder().namespace("operator").start().await?;
    let hop = PathCleaningProxy::start(api.address(), PREFIX).await?;
    let env = TestEnv::start_behind(api, entries, &hop.kubeconfig()).await?;
    env.seed_config_maps("default", "a", 1)?;
    env.seed_config_maps("default", "b", 1)?;
    Ok((env, hop))
}

#[tokio::test]
async fn unclean_paths_are_refused_with_and_without_entries() -> anyhow::Result<()> {
    for entries in [vec![], vec![shard_entry("a")]] {
        let (env, hop) = start_behind_path_cleaner(entries).await?;
        let arrived = hop.arrived_targets().len();
        for client in [env.client(), Client::http2(env.sidecar.api_address())] {
            for path in UNCLEAN.into_iter().flat_map(|path| [path; REPEATS]) {
                let answer = client.get(path).await?;
                assert_eq!(
                    (answer.status, answer.json()["kind"].as_str()),
                    (400, Some("Status")),
                    "{path}"
                );
            }
        }
        let writes = [
            (Method::DELETE, "/./api/v1/namespaces/default/configmaps"),
            (Method::DELETE, "/api/v1/namespaces//configmaps"),
            (
                Method::POST,
                "/./apis/coordination.k8s.io/v1/namespaces/operator/leases",
            ),
        ];
        for (method, path) in writes {
            let lease = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": "lock", "namespace": "operator" },
            });
            let client = env.client().with_header("content-type", "application/json");
            assert_eq!(
                client.send(method, path, lease.to_string()).await?.status,
                400,
                "{path}"
            );
        }
        assert_eq!(
            hop.arrived_targets().len(),
            arrived,
            "nothing was sent on: {:?}",
            hop.arrived_targets()
        );
    }
    Ok(())
}

#[tokio::test]
async fn unambiguous_paths_pass_and_stay_below_the_server_url() -> anyhow::Result<()> {
    let (env, hop) = start_behind_path_cleaner(vec![shard_entry("a")]).await?;
    let client = env.client();
    for path in [
        "/api/v1/configmaps",
        "/api/v1/configmaps/",
        "/api/v1/namespaces/default%2Fconfigmaps",
        "/api/v1/namespaces//configmaps",
        "/api/v1/namespaces/%2Fconfigmaps/",
    ]
    .into_iter()
    .flat_map(|path| [path; REPEATS])
    {
        assert_eq!(client.get(path).await?.names(), ["a0"], "{path}");
    }
    for path in ["/api", "/api/", "/apis", "/apis/", "/version", "/api/v1/"] {
        assert_eq!(client.get(path).await?.status, 200, "{path}");
    }
    let with_dots = ctrlmesh_tests::config_map("default", "a.b-c.d", "a");
    env.api.store().put(with_dots)?;
    let with_dots = client.get("/api/v1/namespaces/default/configmaps/a.b-c.d").await?;
    assert_eq!(with_dots.status, 200);
    let proxied = "/api/v1/namespaces/default/pods/p:80/proxy/a//b/../c%2Fd";
    client.get(proxied).await?;
    let arrived = hop.arrived_targets();
    assert!(arrived.contains(&format!("{PREFIX}{proxied}")), "{arrived:?}");
    let without_namespace = arrived
        .iter()
        .filter(|target| target.starts_with("/k8s/clusters/c-1/api/v1/configmaps?"));
    assert_eq!(
        without_namespace.count(),
        3 * REPEATS,
        "sent without the empty segment: {arrived:?}"
    );
    assert!(
        !arrived.iter().any(|target| target.contains("namespaces//")),
        "{arrived:?}"
    );
    for target in ["*", "/", ""] {
        let answer = client.send(Method::OPTIONS, target, "").await;
        assert!(!answer.is_ok_and(|answer| answer.body == OTHER_CLUSTER), "{target}");
    }
    assert!(
        hop.arrived_targets()
            .iter()
            .all(|target| target.starts_with(&format!("{PREFIX}/")))
    );
    Ok(())
}
