//! Deletes every ShardingConfig while a manager still runs, and waits until all are gone, so that the manager can be removed. A
//! check deletes nothing, and fails if an object is left that only a running manager releases.
//!
//! | file | holds |
//! |---|---|
//! | `cluster` | the cluster in use, by the names that people know |
//! | `plan` | how many ShardingConfigs there are |
//! | `requests` | requests, and the time for a response |
//! | `error` | errors, in words for people |

mod cluster;
mod error;
mod plan;
mod requests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::finalizers::PROTECTED;
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection};
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Client, ResourceExt as _};
use serde_json::Value;

pub use self::cluster::Cluster;
pub use self::error::{Error, configuration_text, connection_text};
pub use self::plan::Plan;
use self::plan::{count_of, is_shard};
use self::requests::{delete_config, list_objects, sharding_config_resource};

/// Pause between two checks.
const CHECK_PAUSE: Duration = Duration::from_secs(1);

/// Maximum objects of a kind that an error names.
const MAX_NAMES: usize = 20;

/// The next commands, for a person.
pub const NEXT: &str = "next: kubectl delete circuitbreakers,faultinjections --all -A, then managers, webhooks, rights and definitions: \
                        kubectl delete -k deploy/, or helm uninstall";

/// Deletes all ShardingConfigs of this cluster. The first reported line names the cluster before anything is asked of it, the second
/// counts the objects or says that nothing is installed, and the last says how many are gone.
///
/// # Errors
/// The API server refuses a request, or some are not gone after `max_wait`.
pub async fn run(cluster: &Cluster, max_wait: Duration, mut report_line: impl FnMut(&str)) -> Result<(), Error> {
    report_line(&cluster.searching_text());
    let Some(plan) = cluster.plan().await? else {
        report_line(&cluster.not_installed_text());
        return Ok(());
    };
    report_line(&format!("{cluster}: deleting {plan}"));
    let deleted = uninstall(&cluster.client, max_wait, &mut report_line).await;
    let deleted = deleted.map_err(|error| cluster.with_cluster_names(error))?;
    let deleted = count_of(deleted, "ShardingConfig");
    report_line(&format!("{cluster}: deleted {deleted}, and none is left; {NEXT}"));
    Ok(())
}

/// Handling of our definitions when managers are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Definitions {
    /// The definitions stay, and their objects can stay for a manager that is installed later.
    Kept,
    /// The definitions are deleted, and every object with them.
    Deleted,
}

impl Definitions {
    const fn advice(self) -> &'static str {
        match self {
            Self::Kept => "To keep them for another installation: helm uninstall --no-hooks",
            Self::Deleted => "They can't be kept: the release deletes their definitions, too (crds.keep=false)",
        }
    }
}

/// Fails if an object is left that only a running manager releases. If it were deleted after the managers, its deletion would never
/// end.
///
/// # Errors
/// The API server refuses a request, or something is left.
pub async fn check_held_objects(cluster: &Cluster, definitions: Definitions) -> Result<(), Error> {
    let held = held_objects(&cluster.client)
        .await
        .map_err(|error| cluster.with_cluster_names(error))?;
    if held.is_empty() {
        return Ok(());
    }
    let kinds: Vec<String> = held.iter().map(|(kind, _)| kind.plural.clone()).collect();
    Err(Error::ManagerNeeded {
        cluster: cluster.to_string(),
        held: held
            .iter()
            .map(|(kind, names)| of_kind(kind, names))
            .collect::<Vec<_>>()
            .join("; "),
        command: format!("kubectl delete {} --all -A", kinds.join(",")),
        advice: definitions.advice(),
    })
}

/// Objects that a manager has to release, by kind: every ShardingConfig, and other kinds' objects from KusionStack's manager.
async fn held_objects(client: &Client) -> Result<Vec<(ApiResource, Vec<String>)>, Error> {
    let mut held = vec![(sharding_config_resource(), remaining_configs(client).await?)];
    for kind in [
        ApiResource::erase::<CircuitBreaker>(&()),
        ApiResource::erase::<FaultInjection>(&()),
    ] {
        let mut objects = list_objects(client, &kind).await?;
        objects.retain(|object| object.finalizers().iter().any(|finalizer| finalizer == PROTECTED));
        held.push((kind, objects));
    }
    held.retain(|(_, objects)| !objects.is_empty());
    let names = |objects: Vec<DynamicObject>| objects.iter().map(namespaced_name).collect();
    Ok(held.into_iter().map(|(kind, objects)| (kind, names(objects))).collect())
}

/// The number of objects of a kind, and the names of the first.
fn of_kind(kind: &ApiResource, names: &[String]) -> String {
    let some = names.iter().take(MAX_NAMES).map(String::as_str);
    let more = match names.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let some: Vec<&str> = some.collect();
    format!("{}: {}{more}", count_of(names.len(), &kind.kind), some.join(", "))
}

/// Deletes all ShardingConfigs. Reports why they are not gone yet, whenever that changes. Returns how many are gone.
///
/// # Errors
/// The API server refuses a request, or some are not gone after `max_wait`.
pub async fn uninstall(client: &Client, max_wait: Duration, mut report_line: impl FnMut(&str)) -> Result<usize, Error> {
    let started_at = Instant::now();
    let mut reported: BTreeMap<String, String> = BTreeMap::new();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    loop {
        let left = remaining_configs(client).await?;
        if left.is_empty() {
            return Ok(seen.len());
        }
        seen.extend(left.iter().filter_map(|config| config.uid()));
        // Includes shards that a manager has recreated for a root that still existed.
        for config in left
            .iter()
            .filter(|config| config.metadata.deletion_timestamp.is_none())
        {
            delete_config(client, config).await?;
        }
        let waits: BTreeMap<String, String> = left
            .iter()
            .map(|config| (namespaced_name(config), reason_for_wait(config)))
            .collect();
        for (name, why) in waits.iter().filter(|(name, why)| reported.get(*name) != Some(*why)) {
            report_line(&format!("{name}: {why}"));
        }
        if started_at.elapsed() >= max_wait {
            return Err(Error::Waiting(waits.into_keys().collect::<Vec<_>>().join(", ")));
        }
        reported = waits;
        tokio::time::sleep(CHECK_PAUSE).await;
    }
}

/// Roots come first: while one exists, its shards are recreated.
async fn remaining_configs(client: &Client) -> Result<Vec<DynamicObject>, Error> {
    let mut left = list_objects(client, &sharding_config_resource()).await?;
    left.sort_by_key(|config| (is_shard(config), namespaced_name(config)));
    Ok(left)
}

fn namespaced_name(config: &DynamicObject) -> String {
    format!("{}/{}", config.namespace().unwrap_or_default(), config.name_any())
}

/// The reason for the wait in the object's status.
fn reason_for_wait(config: &DynamicObject) -> String {
    let conditions = config.data.pointer("/status/conditions").and_then(Value::as_array);
    let mut bad = conditions.into_iter().flatten().filter(|condition| {
        let is = |field: &str, value: &str| condition[field] == value;
        is("type", "Distributed") && is("status", "False")
    });
    let message = bad.next().and_then(|condition| condition["message"].as_str());
    message.map_or_else(|| "is being deleted; does a manager run?".to_owned(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use ctrlmesh_contract::names::finalizers::HAND_OVER;
    use ctrlmesh_manager_planner::samples;
    use ctrlmesh_testkit::{ApiServer, Resource};
    use kube::Config;
    use kube::config::{KubeConfigOptions, Kubeconfig};
    use serde_json::json;

    use super::*;

    const KIND: &str = "shardingconfigs.ctrlmesh.kusionstack.io";
    /// Timeout that a passing test never reaches.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn client(server: &ApiServer) -> Client {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let kubeconfig = Kubeconfig::from_yaml(&server.plain_kubeconfig()).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        Client::try_from(config).unwrap()
    }

    async fn api_server() -> ApiServer {
        let ours =
            |plural, kind| Resource::namespaced("ctrlmesh.kusionstack.io", "v1alpha1", plural, kind).with_status();
        let builder = ApiServer::builder()
            .namespace("demo")
            .resource(ours("shardingconfigs", "ShardingConfig"))
            .resource(ours("circuitbreakers", "CircuitBreaker"))
            .resource(ours("faultinjections", "FaultInjection"));
        builder.start().await.unwrap()
    }

    fn put(server: &ApiServer, object: Value) {
        server.store().put(object).unwrap();
    }

    #[tokio::test]
    async fn uninstall_waits_for_release_of_each_shard_and_says_why() {
        let server = api_server().await;
        let mut held = samples::shard("held", &[]);
        held["metadata"]["finalizers"] = json!([HAND_OVER]);
        held["status"] = json!({ "conditions": [
            { "type": "Distributed", "status": "False", "reason": "Deleting", "message": "waits for left-0" },
        ] });
        put(&server, held);
        put(&server, samples::shard("free", &[]));
        let client = &client(&server).await;
        let waiting = uninstall(client, Duration::ZERO, |_| ()).await.unwrap_err();
        assert!(waiting.to_string().contains("demo/held"), "{waiting}");
        let mut said = Vec::new();
        let uninstalled = uninstall(client, PATIENCE, |line| {
            said.push(line.to_owned());
            let mut held = server
                .store()
                .read(|state| state.get(KIND, "demo", "held").cloned())
                .unwrap();
            held["metadata"]["finalizers"] = json!([]);
            held.as_object_mut().unwrap().remove("status");
            put(&server, held);
        });
        assert_eq!(uninstalled.await.unwrap(), 1, "the other one was gone before");
        assert_eq!(said, ["demo/held: waits for left-0"]);
        assert!(server.store().read(|state| state.list(KIND).next().is_none()));
    }

    #[tokio::test]
    async fn check_names_objects_that_need_manager_and_what_to_do() {
        let server = api_server().await;
        let cluster = Cluster {
            client: client(&server).await,
            context: None,
            server: "https://a.example".to_owned(),
        };
        let spec = json!({ "selector": {} });
        put(&server, samples::object("FaultInjection", "ours", &spec));
        check_held_objects(&cluster, Definitions::Deleted).await.unwrap();

        let mut theirs = samples::object("FaultInjection", "theirs", &spec);
        theirs["metadata"]["finalizers"] = json!([PROTECTED]);
        put(&server, theirs);
        let error = check_held_objects(&cluster, Definitions::Deleted)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("1 FaultInjection: demo/theirs.") && !error.contains("ours"),
            "{error}"
        );
        assert!(error.contains("kubectl delete faultinjections --all -A"), "{error}");
        assert!(
            error.contains("can't be kept") && !error.contains("--no-hooks"),
            "{error}"
        );

        // No manager has seen it yet, so it has no finalizer.
        put(&server, samples::shard("new", &[]));
        let error = check_held_objects(&cluster, Definitions::Kept)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("1 ShardingConfig: demo/new; 1 FaultInjection: demo/theirs."),
            "{error}"
        );
        assert!(
            error.contains("kubectl delete shardingconfigs,faultinjections --all -A"),
            "{error}"
        );
        assert!(error.contains("helm uninstall --no-hooks"), "{error}");
    }
}
