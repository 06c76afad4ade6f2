//! Carries out a decision: writes ConfigMaps, nudges pods, replaces pods of restarting shards, and sets finalizers. The
//! [`Outcome`] goes into the next pass state.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ctrlmesh_contract::names::annotations::{self, SHARD_PODS};
use ctrlmesh_contract::names::labels::KEEPS_LIMITS;
use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, files, plugin_config_map};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_contract::{Digest, Origin};
use ctrlmesh_manager_api::document::text_at;
use ctrlmesh_manager_api::status::Reason;
use ctrlmesh_manager_api::{API_VERSION, CircuitBreaker, FIELD_MANAGER, FaultInjection, MANAGED_BY, ShardingConfig};
use ctrlmesh_manager_planner::hand_over::entry_of_shard;
use ctrlmesh_manager_planner::hand_over::restart_policy::Hold;
use futures_util::{StreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, Pod};
use kube::api::{DeleteParams, DynamicObject, EvictParams, ObjectMeta, Patch, PatchParams, Preconditions};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use crate::cluster::events::{self, EventDraft};
use crate::cluster::{Context, Error, RbacRule, Scope, error_text, patch_params, post_params};
use ctrlmesh_manager_rollout::config_maps::{CLAIMS, CLAIMS_SIGNATURE, PluginConfigMap, signed_claims};
use ctrlmesh_manager_rollout::decision::{Decision, Outcome, WriteFailure};
use ctrlmesh_manager_rollout::deletion;
use ctrlmesh_manager_rollout::fleet::{Fleet, Sidecar};
use ctrlmesh_manager_rollout::observation::{Observation, is_deleted, is_shard, origin_of};
use ctrlmesh_manager_rollout::plugins::ConfigMapWrites;
use ctrlmesh_manager_rollout::pod_actions::{
    EvictionError, PodNudge, RestartAction, RestartResult, RestartStep, stale_pods,
};

/// Pods and objects that are written at a time.
const CONCURRENCY: usize = 16;

pub(crate) const RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["configmaps"],
        verbs: &["create", "patch"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["configmaps"],
        verbs: &["get"],
        names: &[
            "ctrlmesh-chain",
            "ctrlmesh-plugins-0",
            "ctrlmesh-plugins-1",
            "ctrlmesh-plugins-2",
            "ctrlmesh-plugins-3",
            "ctrlmesh-plugins-4",
            "ctrlmesh-plugins-5",
            "ctrlmesh-plugins-6",
            "ctrlmesh-plugins-7",
        ],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["pods"],
        verbs: &["patch"],
        names: &[],
    },
];

pub(crate) const FINALIZER_RULES: &[RbacRule] = &[RbacRule {
    scope: Scope::Cluster,
    group: "ctrlmesh.kusionstack.io",
    resources: &["shardingconfigs", "circuitbreakers", "faultinjections"],
    verbs: &["patch"],
    names: &[],
}];

/// For restarts of shards, besides patches of pods.
pub(crate) const RESTART_RULES: &[RbacRule] = &[
    RbacRule {
        scope: Scope::Cluster,
        group: "",
        resources: &["pods/eviction"],
        verbs: &["create"],
        names: &[],
    },
    RbacRule {
        scope: Scope::Cluster,
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get"],
        names: &[],
    },
];

/// Carries out a decision, but for finalizers and status. Returns the error that ended it, too. ConfigMaps come first: without
/// them nothing else makes sense.
pub(crate) async fn carry_out(
    context: &Context,
    key: &SigningKey,
    observation: &Observation,
    decision: &Decision,
) -> (Outcome, Result<(), Error>) {
    let mut outcome = Outcome::default();
    let written = match &decision.writes {
        Ok(writes) => write_config_maps(context, key, observation, decision, writes, &mut outcome.written).await,
        Err(error) => Err(Error::NoRoom(error.clone().into())),
    };
    if let Err(error) = written {
        outcome.failure = Some(write_failure(&error));
        return (outcome, Err(error));
    }
    nudge_pods(&context.client, &observation.namespace, decision, &mut outcome).await;
    restart_pods(context, observation, decision, &mut outcome).await;
    (outcome, Ok(()))
}

fn write_failure(error: &Error) -> WriteFailure {
    let code = match error {
        error if error.is_conflict() => return WriteFailure::Conflict,
        Error::NoRoom(_) => Reason::NO_ROOM,
        _ => Reason::WRITE_FAILED,
    };
    WriteFailure::Failed(Reason::new(code, error.to_string()))
}

/// Writes plugins, then the chain. `versions` holds what was written also if a later write fails.
async fn write_config_maps(
    context: &Context,
    key: &SigningKey,
    observation: &Observation,
    decision: &Decision,
    writes: &ConfigMapWrites,
    versions: &mut Vec<(String, Option<String>)>,
) -> Result<(), Error> {
    let (client, namespace) = (&context.client, &observation.namespace);
    for (number, plugins) in &writes.slots {
        let Some(name) = plugin_config_map(*number) else {
            continue;
        };
        let stored = observation.config_maps.slot(*number);
        let version = write_plugins(client, namespace, &name, plugins, stored).await?;
        versions.push((name, version));
    }
    if !writes.chain {
        return Ok(());
    }
    let version = write_chain(client, key, observation, decision).await?;
    versions.push((CHAIN_CONFIG_MAP.to_owned(), version));
    let (chain, metrics) = (&decision.next.chain, &context.metrics.distribution);
    metrics.chains_written.inc();
    tracing::info!(%namespace, generation = chain.generation, entries = chain.entries.len(), "chain written");
    for overtaking in &decision.overtakings {
        metrics.overtaken.inc();
        tracing::warn!(
            %namespace,
            entry = overtaking.entry,
            note = overtaking.note,
            "handing over without acknowledgement of unreachable pods"
        );
        if let Some(origin) = &overtaking.origin {
            let about = object_reference(namespace, origin);
            events::publish(context, &about, &EventDraft::overtaking(&overtaking.note)).await;
        }
    }
    Ok(())
}

fn own_metadata(name: &str, namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some([(MANAGED_BY.to_owned(), FIELD_MANAGER.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// Writes the chain and returns the new resource version. Of two managers that lead for a moment, one fails: the ConfigMap must still
/// be the one that was read, or still not exist.
///
/// # Errors
/// The API server's error; 409 if somebody else has written.
async fn write_chain(
    client: &Client,
    key: &SigningKey,
    observation: &Observation,
    decision: &Decision,
) -> Result<Option<String>, kube::Error> {
    let (chain, claims) = (&decision.next.chain, &decision.next.claims);
    let read = observation.config_maps.version.as_deref();
    let document = chain.to_json();
    let claims = serde_json::to_string(claims).map_err(kube::Error::SerdeError)?;
    let data = BTreeMap::from([
        (
            CLAIMS_SIGNATURE.to_owned(),
            key.sign(&signed_claims(&claims, &document)),
        ),
        (CLAIMS.to_owned(), claims),
        (files::CHAIN_SIGNATURE.to_owned(), key.sign(document.as_bytes())),
        (files::CHAIN.to_owned(), document),
    ]);
    let map = ConfigMap {
        metadata: ObjectMeta {
            resource_version: read.map(str::to_owned),
            ..own_metadata(CHAIN_CONFIG_MAP, &chain.namespace)
        },
        data: Some(data),
        ..ConfigMap::default()
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &chain.namespace);
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    let written = match read {
        Some(_) => api.patch(CHAIN_CONFIG_MAP, &apply, &Patch::Apply(&map)).await?,
        None => api.create(&post_params(), &map).await?,
    };
    Ok(written.metadata.resource_version)
}

/// Writes one of the ConfigMaps with plugins, if it is still the one that was read, and returns the new resource version. Plugins
/// without bytes stay as they are stored. Everything else in the ConfigMap is removed, even if somebody else put it there.
///
/// # Errors
/// The API server's error; 409 if somebody else has written.
async fn write_plugins(
    client: &Client,
    namespace: &str,
    name: &str,
    plugins: &BTreeMap<Digest, Option<Bytes>>,
    stored: Option<&PluginConfigMap>,
) -> Result<Option<String>, kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // One that has lost its label, or was never ours, is not watched.
    let unwatched = match stored {
        Some(_) => None,
        None => api
            .get_opt(name)
            .await?
            .map(|map| PluginConfigMap::from_config_map(&map)),
    };
    let written = match stored.or(unwatched.as_ref()) {
        Some(stored) => {
            let patch = Patch::Merge(plugins_patch(plugins, stored));
            api.patch(name, &patch_params(), &patch).await?
        }
        None => {
            let data = plugins
                .iter()
                .filter_map(|(digest, bytes)| Some((plugin_key(digest), ByteString(bytes.as_ref()?.to_vec()))));
            let map = ConfigMap {
                metadata: own_metadata(name, namespace),
                binary_data: Some(data.collect()),
                ..ConfigMap::default()
            };
            api.create(&post_params(), &map).await?
        }
    };
    Ok(written.metadata.resource_version)
}

fn plugin_key(digest: &Digest) -> String {
    plugin_file::file_name(digest, Encoding::Zstd)
}

/// A merge patch, because server-side apply would leave keys that somebody else has applied.
fn plugins_patch(plugins: &BTreeMap<Digest, Option<Bytes>>, stored: &PluginConfigMap) -> Value {
    let desired: BTreeSet<String> = plugins.keys().map(plugin_key).collect();
    let gone = stored.keys().filter(|name| !desired.contains(name));
    let mut data: Map<String, Value> = gone.map(|name| (name, Value::Null)).collect();
    for (digest, bytes) in plugins {
        if let Some(bytes) = bytes {
            data.insert(plugin_key(digest), json!(ByteString(bytes.to_vec())));
        }
    }
    json!({
        "metadata": {
            "resourceVersion": stored.version,
            "labels": { MANAGED_BY: FIELD_MANAGER },
        },
        "binaryData": data,
        "data": null,
    })
}

/// Annotates pods that are behind with the generation that they should have, so that kubelet syncs their volumes now. A pod that is
/// gone meanwhile is no failure.
async fn nudge_pods(client: &Client, namespace: &str, decision: &Decision, outcome: &mut Outcome) {
    let generation = decision.next.chain.generation;
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let annotate = async |nudge: &PodNudge| {
        let mut values = BTreeMap::from([(annotations::CHAIN_GENERATION, generation.to_string())]);
        if nudge.again > 0 {
            values.insert(annotations::CHAIN_BUMP, format!("{generation}.{}", nudge.again));
        }
        let patch = Patch::Merge(json!({ "metadata": { "annotations": values } }));
        let patched = api.patch_metadata(&nudge.pod, &PatchParams::default(), &patch).await;
        (nudge.clone(), patched.err().filter(|error| !has_code(error, 404)))
    };
    let nudges: Vec<_> = decision.nudges.iter().map(annotate).collect();
    let results: Vec<_> = stream::iter(nudges).buffer_unordered(CONCURRENCY).collect().await;
    for (nudge, error) in results {
        let Some(error) = error else {
            outcome.nudged.push(nudge);
            continue;
        };
        outcome.nudges_failed += 1;
        tracing::warn!(
            error = error_text(&error),
            %namespace,
            pod = nudge.pod,
            "failed to annotate pod; retrying. kubelet will still sync the volume within its sync period"
        );
    }
}

/// Takes the next step of every restart.
async fn restart_pods(context: &Context, observation: &Observation, decision: &Decision, outcome: &mut Outcome) {
    let (namespace, fleet, plan) = (&observation.namespace, &observation.fleet, &decision.restarts);
    for hold in &plan.holds {
        if let Err(error) = label_pods(&context.client, namespace, hold, fleet).await {
            tracing::warn!(error = error_text(&error), %namespace, "failed to label pods that keep their limits; retrying");
        }
    }
    for action in &plan.actions {
        let result = match action.step {
            RestartStep::Count(count) => {
                let stale = stale_pods(&action.evict, fleet);
                let counted = annotate_pods(&context.client, namespace, &stale, &json!({}), count).await;
                let error = counted.err().map(|error| error_text(&error));
                RestartResult::Counted { count, error }
            }
            _ => evict_next(context, observation, action).await,
        };
        outcome.restarts.insert(action.evict.entry.clone(), result);
    }
}

/// Evicts the next pod of a shard.
async fn evict_next(context: &Context, observation: &Observation, action: &RestartAction) -> RestartResult {
    let namespace = &observation.namespace;
    let holder = lock_holder(&context.client, namespace, action.lock.as_deref()).await;
    let holder = holder.map_err(|error| error_text(&error));
    let pod = match action.pod_to_evict(&observation.fleet, holder) {
        Ok(pod) => pod,
        Err(result) => return result,
    };
    // Other clients repeat a request that is answered 429. From a PodDisruptionBudget that is final.
    let response = evict_pod(&context.urgent, namespace, pod).await;
    let result = RestartResult::of_eviction(pod, response.map_err(eviction_error));
    match &result {
        RestartResult::Evicted { .. } => {
            context.metrics.distribution.evicted.inc();
            report_eviction(context, namespace, action, pod).await;
        }
        RestartResult::Refused { .. } => {
            context.metrics.distribution.evictions_refused.inc();
        }
        _ => {}
    }
    result
}

/// An error with the causes that the API server lists, such as the PodDisruptionBudget.
fn eviction_error(error: kube::Error) -> EvictionError {
    let kube::Error::Api(status) = &error else {
        return EvictionError {
            code: None,
            message: error_text(&error),
        };
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let causes: Vec<&str> = causes.map(|cause| cause.message.as_str()).collect();
    let message = format!("{} {}", status.message, causes.join("; "));
    EvictionError {
        code: Some(status.code),
        message: message.trim_end().to_owned(),
    }
}

/// Identity of the lock's holder. `None`: nobody holds it, or the shard has no lock.
async fn lock_holder(client: &Client, namespace: &str, lock: Option<&str>) -> Result<Option<String>, kube::Error> {
    let Some(name) = lock else {
        return Ok(None);
    };
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = api.get_opt(name).await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity))
}

/// Labels pods, so that they keep their limits until they are replaced.
async fn label_pods(client: &Client, namespace: &str, hold: &Hold, fleet: &Fleet) -> Result<(), kube::Error> {
    let pods: Vec<&Sidecar> = fleet.selected(&hold.pods).collect();
    let labels = json!({ KEEPS_LIMITS: hold.value });
    annotate_pods(client, namespace, &pods, &labels, pods.len()).await
}

/// Sets labels on pods, and annotates them with the number of pods that their shard has.
async fn annotate_pods(
    client: &Client,
    namespace: &str,
    pods: &[&Sidecar],
    labels: &Value,
    count: usize,
) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for sidecar in pods {
        let patch = json!({ "metadata": {
            "uid": sidecar.uid,
            "labels": labels,
            "annotations": { SHARD_PODS: count.to_string() },
        } });
        let patched = api
            .patch_metadata(&sidecar.pod, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        match patched {
            Ok(_) => {}
            // The pod is gone, or another one has its name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Evicts exactly this pod. PodDisruptionBudgets may refuse that with 429.
async fn evict_pod(client: &Client, namespace: &str, pod: &Sidecar) -> Result<(), kube::Error> {
    let preconditions = Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: None,
    };
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    api.evict(&pod.pod, &params).await.map(drop)
}

async fn report_eviction(context: &Context, namespace: &str, action: &RestartAction, pod: &Sidecar) {
    tracing::info!(
        namespace,
        entry = action.evict.entry,
        pod = pod.pod,
        "evicted pod; its replacement will see the shard's new limits"
    );
    if let Some(origin) = &action.origin {
        let about = object_reference(namespace, origin);
        events::publish(context, &about, &EventDraft::restarting(&pod.pod)).await;
    }
}

/// Sets and removes finalizers. Returns the objects that are done with: deleted and released ones, and those that were changed, whose
/// change leads to the next pass.
pub(crate) async fn update_finalizers(
    context: &Context,
    observation: &Observation,
    decision: &Decision,
) -> BTreeSet<String> {
    let update = async |document: &Value| {
        let is_released = || {
            let entry = entry_of_shard(&origin_of(document).name);
            !is_shard(document) || decision.released.contains(&entry)
        };
        let is_done = if is_deleted(document) && is_released() {
            release_object(context, &observation.namespace, document).await;
            true
        } else if let Some(finalizers) = deletion::with_our_finalizer(document) {
            patch_finalizers(context, &observation.namespace, document, &finalizers).await
        } else {
            false
        };
        is_done.then(|| origin_of(document).uid)
    };
    let updates: Vec<_> = observation.resources.documents.iter().map(update).collect();
    let done: Vec<_> = stream::iter(updates).buffer_unordered(CONCURRENCY).collect().await;
    done.into_iter().flatten().collect()
}

/// Removes our finalizers from an object.
async fn release_object(context: &Context, namespace: &str, document: &Value) {
    if let Some(others) = deletion::without_our_finalizers(document) {
        patch_finalizers(context, namespace, document, &others).await;
    }
}

/// Releases all objects of a namespace that is being deleted, which would wait for them. Returns whether there were any.
pub(crate) async fn release_all(context: &Context, namespace: &str, documents: &[Value]) -> bool {
    let held: Vec<&Value> = documents
        .iter()
        .filter(|document| deletion::is_held(document))
        .collect();
    for document in &held {
        release_object(context, namespace, document).await;
    }
    !held.is_empty()
}

/// Replaces the list of finalizers, if the object is the one that was read. Returns whether it was written.
async fn patch_finalizers(context: &Context, namespace: &str, document: &Value, finalizers: &[Value]) -> bool {
    let origin = origin_of(document);
    let patch = json!({ "metadata": {
        "uid": origin.uid,
        "resourceVersion": text_at(document, "/metadata/resourceVersion"),
        "finalizers": finalizers,
    } });
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &custom_resource(&origin.kind));
    match api
        .patch(&origin.name, &PatchParams::default(), &Patch::Merge(patch))
        .await
    {
        Ok(_) => true,
        // The object has changed or is gone. The watch shows that, and another pass follows.
        Err(error) if has_code(&error, 409) || has_code(&error, 404) => false,
        Err(error) => {
            let Origin { kind, name, .. } = &origin;
            tracing::warn!(error = error_text(&error), %namespace, kind, name, "failed to change finalizers; retrying");
            false
        }
    }
}

/// The resource of one of our kinds.
pub(crate) fn custom_resource(kind: &str) -> ApiResource {
    match kind {
        "ShardingConfig" => ApiResource::erase::<ShardingConfig>(&()),
        "CircuitBreaker" => ApiResource::erase::<CircuitBreaker>(&()),
        _ => ApiResource::erase::<FaultInjection>(&()),
    }
}

/// Reference for an Event about an object.
pub(crate) fn object_reference(namespace: &str, origin: &Origin) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.to_owned()),
        kind: Some(origin.kind.clone()),
        name: Some(origin.name.clone()),
        namespace: Some(namespace.to_owned()),
        uid: Some(origin.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Whether the API server answered with this status code.
pub(crate) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
