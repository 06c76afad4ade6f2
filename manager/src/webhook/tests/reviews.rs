//! Responses to reviews, over the socket, as API servers send them.

use std::net::SocketAddr;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ctrlmesh_manager_planner::samples;
use serde_json::{Value, json};

use super::clients::{Authority, server_with_client_ca};
use super::{Client, TestEnv};
use crate::certificates::ca::{Credential, Stored};
use crate::certificates::lifetimes::WEBHOOKS;
use crate::webhook::namespaces::Namespaces;
use crate::webhook::routes::{MUTATE_NAMESPACE, MUTATE_RESOURCE, VALIDATE};

/// A test environment with its client and address.
pub(super) struct Server {
    pub(super) env: TestEnv,
    pub(super) client: Client,
    pub(super) bundle: String,
    pub(super) address: SocketAddr,
}

impl Server {
    pub(super) async fn start(flags: &[&str]) -> Self {
        Self::with_client(TestEnv::start(flags).await, None).await
    }

    pub(super) async fn start_with(change: impl FnOnce(&mut TestEnv)) -> Self {
        let mut env = TestEnv::start(&[]).await;
        change(&mut env);
        Self::with_client(env, None).await
    }

    /// A server with a client that shows this certificate and key.
    pub(super) async fn with_client(env: TestEnv, identity: Option<(&str, &str)>) -> Self {
        let schedule = WEBHOOKS;
        let names = env.context.args.webhook_names();
        let stored = Stored {
            current: Some(Credential::issue(&names, SystemTime::now(), &schedule).unwrap()),
            ..Stored::default()
        };
        env.put_secret(&stored);
        let (address, _) = env.start_server().await;
        Self {
            bundle: stored.trust_bundle(),
            client: Client::with_identity(&stored.trust_bundle(), &[], identity),
            env,
            address,
        }
    }

    /// Sends a review. Returns the response.
    pub(super) async fn ask(&self, path: &str, request: &Value) -> Value {
        let mut request = request.clone();
        let kind = request["object"]["kind"]
            .as_str()
            .or(request["oldObject"]["kind"].as_str())
            .unwrap();
        let (kind, group) = (json!(kind), json!("a.example"));
        let known = json!({
            "uid": "u-1", "kind": {"group": group, "version": "v1", "kind": kind},
            "resource": {"group": group, "version": "v1", "resource": "things"}, "userInfo": {},
        });
        for (key, value) in known.as_object().unwrap() {
            request.as_object_mut().unwrap().entry(key).or_insert(value.clone());
        }
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let (status, body) = self.client.post(self.address, path, &review.to_string()).await.unwrap();
        assert_eq!(status, 200, "{body}");
        let review: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (&review["kind"], &review["apiVersion"]),
            (&json!("AdmissionReview"), &json!("admission.k8s.io/v1"))
        );
        assert_eq!(review["response"]["uid"], "u-1");
        review["response"].clone()
    }

    pub(super) async fn create(&self, path: &str, object: &Value) -> Value {
        let request = json!({"operation": "CREATE", "object": object, "namespace": object["metadata"]["namespace"]});
        self.ask(path, &request).await
    }

    async fn update(&self, old: &Value, new: &Value) -> Value {
        self.ask(
            VALIDATE[0],
            &json!({"operation": "UPDATE", "object": new, "oldObject": old}),
        )
        .await
    }
}

/// The labels that an object has after the response.
fn labels(object: &Value, response: &Value) -> Value {
    assert_eq!(response["allowed"], true, "{response}");
    let mut object = object.clone();
    if let Some(patch) = response.get("patch") {
        assert_eq!(response["patchType"], "JSONPatch");
        let patch = STANDARD.decode(patch.as_str().unwrap()).unwrap();
        let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        let is_label = |it: &json_patch::PatchOperation| it.path().to_string().starts_with("/metadata/labels");
        assert!(patch.iter().all(is_label), "{patch:?}");
        json_patch::patch(&mut object, &patch).unwrap();
    }
    object["metadata"]["labels"].clone()
}

fn shard(name: &str) -> Value {
    samples::shard(name, &[])
}

/// A shard without pods, and with a limit that has two kinds of mistakes.
fn invalid_shard() -> Value {
    let mut shard = shard("s");
    shard["spec"]["selector"] = json!({});
    shard["spec"]["limits"][0]["selector"] = json!({"matchLabels": {"a b": "c"}});
    shard
}

#[tokio::test]
async fn rejection_lists_each_invalid_field() {
    let server = Server::start(&[]).await;
    for path in VALIDATE {
        let response = server.create(path, &invalid_shard()).await;
        assert_eq!(
            (&response["allowed"], &response["status"]["code"]),
            (&json!(false), &json!(422)),
            "{response}"
        );
        assert_eq!(response["status"]["reason"], "Invalid");
        let causes = response["status"]["details"]["causes"].as_array().unwrap();
        let fields: Vec<&str> = causes.iter().map(|it| it["field"].as_str().unwrap()).collect();
        assert!(fields.len() == 2 && fields[0] == "spec.selector", "{fields:?}");
        assert!(fields[1].starts_with("spec.limits[0].selector"), "{fields:?}");
        let message = response["status"]["message"].as_str().unwrap();
        assert!(fields.iter().all(|field| message.contains(field)), "{message}");
        assert!(
            causes[0]["message"].as_str().unwrap().contains("which pods"),
            "{causes:?}"
        );
        assert_eq!(server.create(path, &shard("s")).await["allowed"], true);
    }
    let mut faults = samples::faults("f");
    faults["spec"]["httpFault"][0]["abort"]["httpStatus"] = json!(200);
    let response = server.create(VALIDATE[2], &faults).await;
    assert_eq!(
        response["status"]["details"]["causes"][0]["field"],
        "spec.httpFault[0].abort.httpStatus"
    );
    let breaker = samples::breaker("b", &json!({}), &[samples::limit("Nonsense", "slow")], &[]);
    let response = server.create(VALIDATE[1], &breaker).await;
    assert_eq!(
        response["status"]["details"]["causes"][0]["field"],
        "spec.rateLimitings[0].triggerPolicy"
    );
    let nothing = samples::object("Nothing", "n", &json!({}));
    assert_eq!(server.create(VALIDATE[0], &nothing).await["allowed"], false);
}

#[tokio::test]
async fn invalid_stored_object_can_still_be_edited() {
    let server = Server::start(&[]).await;
    let with = |pointer: &str, value: Value| {
        let mut object = invalid_shard();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = value;
        object
    };
    let spec = with("/spec/controller", json!({"leaderElectionName": "other"}));
    let going = with("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
    let mut changed_and_going = spec.clone();
    changed_and_going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let cases = [
        ("labels", with("/metadata/labels", json!({"a": "b"})), true),
        ("finalizers", with("/metadata/finalizers", json!([])), true),
        ("status", with("/status", json!({"enforced": "1/1"})), true),
        ("deletion", going, true),
        ("while it is deleted", changed_and_going, true),
        ("its mistakes are corrected", shard("s"), true),
        ("the spec", spec.clone(), false),
    ];
    for (what, new, is_allowed) in cases {
        assert_eq!(
            server.update(&invalid_shard(), &new).await["allowed"],
            is_allowed,
            "{what}"
        );
    }
    let mut ignored = spec;
    ignored["metadata"]["labels"] = json!({"ctrlmesh.kusionstack.io/ignore-validate": ""});
    assert_eq!(server.update(&invalid_shard(), &ignored).await["allowed"], true);
    ignored["spec"]["limits"] = json!("none");
    assert_eq!(
        server.update(&invalid_shard(), &ignored).await["allowed"],
        false,
        "it can't be read"
    );
    let delete = json!({"operation": "DELETE", "object": null, "oldObject": invalid_shard()});
    assert_eq!(server.ask(VALIDATE[0], &delete).await["allowed"], true);
    let status = json!({"operation": "UPDATE", "subResource": "status", "object": ignored, "oldObject": shard("s")});
    assert_eq!(server.ask(VALIDATE[0], &status).await["allowed"], true);
}

fn namespace(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

fn in_namespaces(name: &str, namespaces: &Value) -> Value {
    let mut shard = shard(name);
    let expressions = json!([{"key": "ctrlmesh.kusionstack.io/namespace", "operator": "In", "values": namespaces}]);
    shard["spec"]["limits"][0]["selector"] = json!({"matchExpressions": expressions});
    shard
}

#[tokio::test]
async fn warnings_name_other_shards_only_to_api_servers() {
    let server = Server::start(&[]).await;
    let store = server.env.server.store();
    let managed = json!({"ctrlmesh.kusionstack.io/control": "true"});
    store.put(namespace("shared-ns", &managed)).unwrap();
    store.put(in_namespaces("one", &json!(["shared-ns"]))).unwrap();
    let two = in_namespaces("two", &json!(["shared-ns"]));
    let warnings = server.create(VALIDATE[0], &two).await["warnings"].clone();
    let warning = warnings[0].as_str().unwrap();
    assert!(warning.contains("the condition Overlapping says which"), "{warnings}");
    assert!(warnings[1].is_null() && !warning.contains("shared-ns"), "{warnings}");
    let mut unlocked = two.clone();
    unlocked["spec"]["controller"] = json!(null);
    let warnings = server.create(VALIDATE[0], &unlocked).await["warnings"].clone();
    let warning = warnings[0].as_str().unwrap();
    assert!(
        warning.contains("as other shards of this namespace. They may be"),
        "{warnings}"
    );
}

#[tokio::test]
async fn shards_that_share_objects_are_warned_of() {
    let (server, _file) = server_with_client_ca(&Authority::new(), &[]).await;
    let store = server.env.server.store();
    let managed = json!({"ctrlmesh.kusionstack.io/control": "true"});
    store.put(namespace("shared-ns", &managed)).unwrap();
    store.put(namespace("lonely-ns", &managed)).unwrap();
    let path = VALIDATE[0];
    let one = in_namespaces("one", &json!(["shared-ns"]));
    // The first shard of a controller leaves objects to nobody, but there is no warning.
    assert_eq!(server.create(path, &one).await.get("warnings"), None);
    store.put(one).unwrap();
    let two = in_namespaces("two", &json!(["shared-ns", "demo", "ctrlmesh"]));
    let response = server.create(path, &two).await;
    assert_eq!(response["allowed"], true);
    let warnings = response["warnings"].to_string();
    assert!(warnings.contains("shared-ns can be in both one, two"), "{warnings}");
    assert!(
        warnings.contains("in namespace lonely-ns; add the namespace"),
        "{warnings}"
    );
    // Shards of another controller do not count.
    let mut other = two.clone();
    other["spec"]["controller"]["leaderElectionName"] = json!("other");
    assert_eq!(server.create(path, &other).await.get("warnings"), None);

    // Without a lock, nothing says to which controller this shard belongs.
    let mut unlocked = two.clone();
    unlocked["spec"]["controller"] = json!(null);
    let warnings = server.create(path, &unlocked).await["warnings"].clone();
    let warning = warnings[0].as_str().unwrap();
    assert!(
        warning.starts_with("spec.controller: is missing, and this limits the same resources as one. They"),
        "{warnings}"
    );

    // If the API server does not answer, or refuses, the review neither waits nor fails.
    let gate = ctrlmesh_testkit::Gate::new();
    let rule = ctrlmesh_testkit::Rule::new(ctrlmesh_testkit::Fault::Hold(gate)).resource("shardingconfigs");
    server.env.server.faults().add(rule);
    let response = server.create(path, &two).await;
    assert_eq!((&response["allowed"], response.get("warnings")), (&json!(true), None));
}

#[tokio::test]
async fn faults_of_kusionstack_that_are_held_back_are_warned_of_when_they_are_created() {
    let server = Server::start(&[]).await;
    let fault = json!({"match": {"resources": [{}]}, "abort": {"httpStatus": 500, "percent": "10"}});
    let faults = samples::object("FaultInjection", "f", &json!({"selector": {}, "httpFault": [fault]}));
    let response = server.create(VALIDATE[0], &faults).await;
    assert_eq!(response["allowed"], true, "{response}");
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(
        warning.starts_with("spec.httpFault: acts in every pod") && warning.contains("ENABLE_FAULT_INJECTION"),
        "{response}"
    );
    let mut changed = faults.clone();
    changed["spec"]["httpFault"][0]["abort"]["percent"] = json!("20");
    assert_eq!(server.update(&faults, &changed).await.get("warnings"), None);
    let mut ours = faults;
    ours["spec"]["httpFault"][0]["nth"] = json!(1);
    assert_eq!(server.create(VALIDATE[0], &ours).await.get("warnings"), None);
}

#[tokio::test]
async fn namespaces_and_objects_are_labelled() {
    let server = Server::start(&[]).await;
    let carried = |bucket: &str, namespace: &str| {
        json!({
            "ctrlmesh.kusionstack.io/shard-hash": bucket,
            "ctrlmesh.kusionstack.io/namespace": namespace,
            "ctrlmesh.kusionstack.io/control": "true",
        })
    };
    let new = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "test-1"}});
    let response = server.create(MUTATE_NAMESPACE, &new).await;
    assert_eq!(labels(&new, &response), carried("30", "test-1"));
    // A namespace whose name the API server is to generate has no bucket yet.
    let unnamed = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}});
    assert_eq!(server.create(MUTATE_NAMESPACE, &unnamed).await.get("patch"), None);

    let store = server.env.server.store();
    store.put(namespace("test-1", &carried("30", "test-1"))).unwrap();
    store
        .put(namespace("free", &json!({"ctrlmesh.kusionstack.io/control": "false"})))
        .unwrap();
    let object = |namespace: &str, labels: &Value| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"},
            "metadata": {"generateName": "c-", "namespace": namespace, "labels": labels},
        })
    };
    let theirs = json!({"app": "x", "ctrlmesh.kusionstack.io/shard-hash": "4"});
    let configmap = object("test-1", &theirs);
    let mut expected = carried("30", "test-1");
    expected["app"] = json!("x");
    assert_eq!(
        labels(&configmap, &server.create(MUTATE_RESOURCE, &configmap).await),
        expected
    );
    let configmap = object("free", &theirs);
    assert_eq!(
        labels(&configmap, &server.create(MUTATE_RESOURCE, &configmap).await),
        json!({"app": "x"})
    );
    let unknown = object("nowhere", &theirs);
    assert_eq!(
        labels(&unknown, &server.create(MUTATE_RESOURCE, &unknown).await),
        theirs
    );
    let ours = shard("s");
    let request = json!({
        "operation": "CREATE", "object": ours, "namespace": "test-1",
        "kind": {"group": "ctrlmesh.kusionstack.io", "version": "v1alpha1", "kind": "ShardingConfig"},
    });
    assert_eq!(server.ask(MUTATE_RESOURCE, &request).await.get("patch"), None);
    let done = object("test-1", &carried("30", "test-1"));
    assert_eq!(server.create(MUTATE_RESOURCE, &done).await.get("patch"), None);
}

#[tokio::test]
async fn labels_have_keys_from_flags() {
    let server = Server::start(&["--label-shard-hash=mine.example/bucket"]).await;
    let new = namespace("test-1", &json!({}));
    let response = server.create(MUTATE_NAMESPACE, &new).await;
    assert_eq!(labels(&new, &response)["mine.example/bucket"], "30");
}

#[tokio::test]
async fn unknown_namespace_is_requested() {
    let env = TestEnv::start(&[]).await;
    env.server.store().put(namespace("test-0", &json!({"a": "b"}))).unwrap();
    let (namespaces, _unfed) = Namespaces::new(env.context.client.clone());
    let found = namespaces.get("test-0").await.unwrap();
    assert_eq!(
        (found.name.as_deref(), found.labels.unwrap()["a"].as_str()),
        (Some("test-0"), "b")
    );
    assert!(namespaces.get("nowhere").await.is_none());
}
