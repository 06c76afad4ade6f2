//! Writes ConfigMaps and bumps pods: one write for each real change.

use std::collections::BTreeMap;

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, annotations, files, plugin_config_map};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_contract::{Chain, Digest};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::context::{FIELD_MANAGER, MANAGED_BY};
use crate::hand_over::Claims;
use crate::rbac::{Rule, Scope};

/// Key of the chain's ConfigMap: what sidecars may still show besides the chain ([`Claims`]). Sidecars leave it alone.
pub(super) const CLAIMS: &str = "claims.json";
/// Signature of that and the chain: claims of another chain are none of this one.
pub(super) const CLAIMS_SIGNATURE: &str = "claims.json.sig";
/// Pods that are bumped at a time.
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

/// Writes the chain and says which version that is, if the ConfigMap is still the one that was read: of two managers that lead for a moment, one fails.
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
    let written = api.patch(CHAIN_CONFIG_MAP, &apply(), &Patch::Apply(&map)).await?;
    Ok(written.metadata.resource_version)
}

/// What the signature of claims is over. No chain begins as claims do.
pub(super) fn signed(claims: &str, document: &str) -> Vec<u8> {
    format!("claims {} {claims}", Digest::of(document.as_bytes())).into_bytes()
}

/// Writes one of the ConfigMaps with plugins, and says which version that is. Bytes that are not known here are taken from what lies there.
///
/// # Errors
/// What the API server says.
pub(super) async fn slot(
    client: &Client,
    namespace: &str,
    number: usize,
    mut plugins: BTreeMap<Digest, Option<Vec<u8>>>,
) -> Result<Option<String>, kube::Error> {
    let Some(name) = plugin_config_map(number) else {
        return Ok(None);
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let key = |digest: &Digest| plugin_file::name(digest, Encoding::Zstd);
    if plugins.values().any(Option::is_none) {
        let there = api
            .get_opt(&name)
            .await?
            .and_then(|map| map.binary_data)
            .unwrap_or_default();
        for (digest, bytes) in plugins.iter_mut().filter(|(_, bytes)| bytes.is_none()) {
            *bytes = there.get(&key(digest)).map(|bytes| bytes.0.clone());
        }
    }
    let data = plugins
        .into_iter()
        .filter_map(|(digest, bytes)| Some((key(&digest), k8s_openapi::ByteString(bytes?))));
    let map = ConfigMap {
        metadata: meta(&name, namespace),
        binary_data: Some(data.collect()),
        ..ConfigMap::default()
    };
    let written = api.patch(&name, &apply(), &Patch::Apply(&map)).await?;
    Ok(written.metadata.resource_version)
}

/// Changes an annotation of pods, so that kubelet syncs their volumes now. A pod that is gone meanwhile is no failure.
///
/// # Errors
/// What the API server says of the first pod that fails.
pub(super) async fn bump(
    client: &Client,
    namespace: &str,
    pods: &[String],
    generation: u64,
) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let patch = json!({ "metadata": { "annotations": { annotations::CHAIN_GENERATION: generation.to_string() } } });
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let mut bumps = Vec::new();
    for pod in pods {
        bumps.push(api.patch_metadata(pod, &params, &patch));
    }
    let mut bumped = stream::iter(bumps).buffer_unordered(CONCURRENCY);
    while let Some(bumped) = bumped.next().await {
        match bumped {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
