//! Writes ConfigMaps and bumps pods: one write for each real change.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, annotations, files, plugin_config_map};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_contract::{Chain, Digest};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use super::config_maps::Slot;
use super::nudges::PodNudge;
use crate::context::{FIELD_MANAGER, MANAGED_BY, patch_params, post_params};
use crate::hand_over::Claims;
use crate::rbac::{Rule, Scope};

/// Key of the chain's ConfigMap: what sidecars may still show besides the chain ([`Claims`]). Sidecars leave it alone.
pub(super) const CLAIMS: &str = "claims.json";
/// Signature of that and the chain: claims of another chain are none of this one.
pub(super) const CLAIMS_SIGNATURE: &str = "claims.json.sig";
/// Pods that are written at a time.
const CONCURRENCY: usize = 16;

/// What writing needs.
pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: Scope::Cluster,
        group: "",
        resources: &["configmaps"],
        verbs: &["create", "patch"],
        names: &[],
    },
    Rule {
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
    Rule {
        scope: Scope::Cluster,
        group: "",
        resources: &["pods"],
        verbs: &["patch"],
        names: &[],
    },
];

fn apply() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

fn meta(name: &str, namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some([(MANAGED_BY.to_owned(), FIELD_MANAGER.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// Writes the chain and says which version that is, if the ConfigMap is still the one that was read, or if there still is none: of two
/// managers that lead for a moment, one fails.
///
/// # Errors
/// What the API server says; 409 if somebody else wrote.
pub(super) async fn chain(
    client: &Client,
    chain: &Chain,
    claims: &Claims,
    key: &SigningKey,
    version: Option<&str>,
) -> Result<Option<String>, kube::Error> {
    let document = chain.to_json();
    let mut metadata = meta(CHAIN_CONFIG_MAP, &chain.namespace);
    metadata.resource_version = version.map(str::to_owned);
    let claims = serde_json::to_string(claims).map_err(kube::Error::SerdeError)?;
    let data = BTreeMap::from([
        (CLAIMS_SIGNATURE.to_owned(), key.sign(&signed(&claims, &document))),
        (CLAIMS.to_owned(), claims),
        (files::CHAIN_SIGNATURE.to_owned(), key.sign(document.as_bytes())),
        (files::CHAIN.to_owned(), document),
    ]);
    let map = ConfigMap {
        metadata,
        data: Some(data),
        ..ConfigMap::default()
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &chain.namespace);
    let written = match version {
        Some(_) => api.patch(CHAIN_CONFIG_MAP, &apply(), &Patch::Apply(&map)).await?,
        None => api.create(&post_params(), &map).await?,
    };
    Ok(written.metadata.resource_version)
}

/// The chain's ConfigMap, also one that has lost its label, or was never ours: that is not watched.
///
/// # Errors
/// What the API server says.
pub(super) async fn chain_there(client: &Client, namespace: &str) -> Result<Option<ConfigMap>, kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    api.get_opt(CHAIN_CONFIG_MAP).await
}

/// What the signature of claims is over. No chain begins as claims do.
pub(super) fn signed(claims: &str, document: &str) -> Vec<u8> {
    format!("claims {} {claims}", Digest::of(document.as_bytes())).into_bytes()
}

/// Writes one of the ConfigMaps with plugins, if it is still the one that was read, and says which version that is. Bytes that
/// are not known here stay as they lie there; what is not wanted goes, whoever put it there.
///
/// # Errors
/// What the API server says; 409 if somebody else wrote.
pub(super) async fn slot(
    client: &Client,
    namespace: &str,
    number: usize,
    plugins: &BTreeMap<Digest, Option<Bytes>>,
    there: Option<&Slot>,
) -> Result<Option<String>, kube::Error> {
    let Some(name) = plugin_config_map(number) else {
        return Ok(None);
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    // One that has lost its label, or was never ours, is not watched.
    let unwatched = match there {
        Some(_) => None,
        None => api.get_opt(&name).await?.map(|map| Slot::of(&map)),
    };
    let written = match there.or(unwatched.as_ref()) {
        Some(there) => {
            let params = patch_params();
            let patch = Patch::Merge(slot_patch(plugins, there));
            api.patch(&name, &params, &patch).await?
        }
        None => {
            let data = plugins
                .iter()
                .filter_map(|(digest, bytes)| Some((key(digest), ByteString(bytes.as_ref()?.to_vec()))));
            let map = ConfigMap {
                metadata: meta(&name, namespace),
                binary_data: Some(data.collect()),
                ..ConfigMap::default()
            };
            api.create(&post_params(), &map).await?
        }
    };
    Ok(written.metadata.resource_version)
}

fn key(digest: &Digest) -> String {
    plugin_file::name(digest, Encoding::Zstd)
}

/// A merge patch: server-side apply would leave keys that somebody else has applied, too.
fn slot_patch(plugins: &BTreeMap<Digest, Option<Bytes>>, there: &Slot) -> Value {
    let wanted: BTreeSet<String> = plugins.keys().map(key).collect();
    let gone = there.keys().filter(|name| !wanted.contains(name));
    let mut data: Map<String, Value> = gone.map(|name| (name, Value::Null)).collect();
    for (digest, bytes) in plugins {
        if let Some(bytes) = bytes {
            data.insert(key(digest), json!(ByteString(bytes.to_vec())));
        }
    }
    json!({
        "metadata": {
            "resourceVersion": there.version,
            "labels": { MANAGED_BY: FIELD_MANAGER },
        },
        "binaryData": data,
        "data": null,
    })
}

/// Writes on pods which generation they should have, so that kubelet syncs their volumes now. A pod that is gone meanwhile is no
/// failure. Says what failed, by pod.
pub(super) async fn nudge(
    client: &Client,
    namespace: &str,
    due: &[PodNudge],
    generation: u64,
) -> Vec<(String, kube::Error)> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let write = async |nudge: &PodNudge| {
        let mut values = BTreeMap::from([(annotations::CHAIN_GENERATION, generation.to_string())]);
        if nudge.again > 0 {
            values.insert(annotations::CHAIN_BUMP, format!("{generation}.{}", nudge.again));
        }
        let patch = Patch::Merge(json!({ "metadata": { "annotations": values } }));
        let written = api.patch_metadata(&nudge.pod, &PatchParams::default(), &patch).await;
        written.err().map(|error| (nudge.pod.clone(), error))
    };
    let writes: Vec<_> = due.iter().map(write).collect();
    let written: Vec<_> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
    let failed = written.into_iter().flatten();
    failed.filter(|(_, error)| !has_code(error, 404)).collect()
}

/// Whether the API server said this.
pub(super) fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
