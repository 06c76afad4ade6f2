//! Clients that are answered, and the names that they learn from refusals.

use std::io::Write as _;

use ctrlmesh_manager_planner::samples;
use ctrlmesh_testkit::{Fault, Rule};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::reviews::Server;
use super::{Client, TestEnv};
use crate::webhook::routes::MUTATE_POD;

/// A CA that issues client certificates.
pub(super) struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Self {
            issuer: rcgen::CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    fn write_file(&self) -> NamedTempFile {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(self.issuer.pem().as_bytes()).unwrap();
        file
    }

    /// Certificate and key for a client of this name, PEM.
    pub(super) fn client(&self, name: &str) -> (String, String) {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// A server that requires certificates of this CA, and a client with one.
pub(super) async fn server_with_client_ca(authority: &Authority, flags: &[&str]) -> (Server, NamedTempFile) {
    let file = authority.write_file();
    let flag = format!("--webhook-client-ca-file={}", file.path().display());
    let flags: Vec<&str> = flags.iter().copied().chain([flag.as_str()]).collect();
    let (chain, key) = authority.client("api server");
    let server = Server::with_client(TestEnv::start(&flags).await, Some((&chain, &key))).await;
    (server, file)
}

/// Whether a client with this certificate is answered.
pub(super) async fn is_answered(server: &Server, identity: Option<(String, String)>) -> bool {
    let identity = identity.as_ref().map(|(chain, key)| (chain.as_str(), key.as_str()));
    let client = Client::with_identity(&server.bundle, &[], identity);
    client
        .get(server.address, "/healthz")
        .await
        .is_ok_and(|(code, _)| code == 200)
}

#[tokio::test]
async fn clients_without_certificate_of_ca_are_not_answered() {
    let authority = Authority::new();
    let (server, _file) = server_with_client_ca(&authority, &[]).await;
    assert!(is_answered(&server, Some(authority.client("anything"))).await);
    assert!(!is_answered(&server, None).await);
    assert!(!is_answered(&server, Some(Authority::new().client("api server"))).await);
}

#[tokio::test]
async fn clients_with_another_name_are_not_answered() {
    let authority = Authority::new();
    let (server, _file) = server_with_client_ca(&authority, &["--webhook-client-name=api server,other"]).await;
    assert!(is_answered(&server, Some(authority.client("api server"))).await);
    assert!(is_answered(&server, Some(authority.client("other"))).await);
    assert!(!is_answered(&server, Some(authority.client("system:node:one"))).await);
}

#[tokio::test]
async fn unreadable_client_ca_file_fails_start() {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"none").unwrap();
    for path in [file.path().to_str().unwrap(), "/nowhere"] {
        let env = TestEnv::start(&[&format!("--webhook-client-ca-file={path}")]).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let run = crate::webhook::run(env.context.clone(), listener, env.readiness.clone(), env.goes.clone());
        let problem = run.await.unwrap_err().to_string();
        assert!(problem.starts_with("--webhook-client-ca-file"), "{problem}");
    }
}

/// A key for chains, and two shards that both select a pod.
async fn store_conflicting_shards(server: &Server) {
    let store = server.env.server.store();
    let data =
        json!({"public": "ZWQyNTUxOTpBQUVDQXdRRkJnY0lDUW9MREEwT0R4QVJFaE1VRlJZWEdCa2FHeHdkSGg4PQ==", "private": ""});
    let metadata = json!({"name": "ctrlmesh-chain-key", "namespace": "ctrlmesh"});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data});
    store.put(secret).unwrap();
    for name in ["secret-one", "secret-two"] {
        let mut shard = samples::shard(name, &[]);
        shard["spec"]["selector"] = json!({"matchLabels": {"app": "x"}});
        store.put(shard).unwrap();
    }
}

fn pod() -> Value {
    let labels = json!({"ctrlmesh.kusionstack.io/enable-proxy": "true", "app": "x"});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "demo", "labels": labels},
        "spec": {"containers": [{"name": "manager", "image": "m"}]},
    })
}

#[tokio::test]
async fn refusals_name_objects_only_to_api_servers() {
    let image = "--proxy-image=ctrlmesh-proxy:1";
    let anybody = Server::start(&[image]).await;
    let (api_server, _file) = server_with_client_ca(&Authority::new(), &[image]).await;
    for (server, is_known) in [(anybody, false), (api_server, true)] {
        store_conflicting_shards(&server).await;
        let response = server.create(MUTATE_POD, &pod()).await;
        assert_eq!(response["allowed"], false, "{response}");
        let text = response.to_string();
        assert!(text.contains("select this pod"), "{text}");
        assert_eq!(text.contains("secret-one"), is_known, "{text}");
    }
}

#[tokio::test]
async fn response_for_pod_reveals_nothing_of_config_map() {
    let server = Server::start(&["--proxy-image=ctrlmesh-proxy:1"]).await;
    store_conflicting_shards(&server).await;
    server
        .env
        .server
        .store()
        .delete("shardingconfigs.ctrlmesh.kusionstack.io", "demo", "secret-two")
        .unwrap();
    let mut pod = pod();
    pod["metadata"]["labels"]["ctrlmesh.kusionstack.io/kubeconfig-volume"] = json!("up");
    pod["spec"]["volumes"] = json!([{"name": "up", "configMap": {"name": "remote"}}]);
    let refusal = Fault::Status {
        code: 500,
        retry_after: None,
    };
    // The ConfigMap is not even read.
    server
        .env
        .server
        .faults()
        .add(Rule::new(refusal).resource("configmaps"));
    let response = server.create(MUTATE_POD, &pod).await;
    assert_eq!(response["allowed"], true, "{response}");
}
