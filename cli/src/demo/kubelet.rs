//! Plays kubelet, as far as a sidecar and the manager can tell: pods with addresses of their own, each with a volume that shows
//! the manager's ConfigMaps.
//!
//! Kubelet syncs a volume when its pod changes, which is why the manager touches pods; here a change of a ConfigMap is enough.

mod volume;

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::pin::pin;

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, annotations, files, labels, plugin_config_map, ports};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::observations::SharedObservations;
use super::replica::Replica;
use super::sharding_plan::{APP, POD_NAMESPACE, SHARD_LABEL};
use crate::error::Error;
use volume::{Files, Volume, downward_labels};

/// Addresses to try. One of 127.0.0.0/8 is seldom taken, but another demo picks its own in the same way.
const TRIES: usize = 16;

/// Which pod it is, for the API server and for its own sidecar.
#[derive(Debug, Clone)]
pub(crate) struct PodIdentity {
    pub(crate) namespace: &'static str,
    pub(crate) name: String,
    /// Distinguishes its files and processes from those of other pods.
    pub(crate) suffix: String,
    pub(crate) labels: BTreeMap<&'static str, String>,
}

impl PodIdentity {
    /// The pod of a replica of the widget controller.
    pub(crate) fn of_replica(replica: Replica) -> Self {
        let (app, controller) = APP;
        let number = replica.number().to_string();
        Self {
            namespace: POD_NAMESPACE,
            name: replica.name().to_owned(),
            labels: [
                (app, controller.to_owned()),
                (labels::WATCHING, "true".to_owned()),
                (SHARD_LABEL, number.clone()),
            ]
            .into(),
            suffix: number,
        }
    }
}

/// A pod with its volumes. Only one clone may write them.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) identity: PodIdentity,
    /// A loopback address of its own: the manager connects to every sidecar at the same port.
    pub(crate) ip: Ipv4Addr,
    chain: Volume,
    podinfo: Volume,
}

impl Pod {
    /// Creates a pod in `directory`. No process runs in it yet.
    pub(crate) fn create(identity: PodIdentity, directory: &Path) -> Result<Self, Error> {
        let volume = |name: &str| Volume::create(directory.join(format!("{name}-{}", identity.suffix)));
        let mut podinfo = volume("podinfo")?;
        let pairs: Vec<_> = identity
            .labels
            .iter()
            .map(|(key, value)| (*key, value.as_str()))
            .collect();
        let labels = downward_labels(&pairs);
        podinfo.sync_files(&[(files::LABELS.to_owned(), labels)].into())?;
        let chain = volume("chain")?;
        Ok(Self {
            identity,
            ip: free_address()?,
            chain,
            podinfo,
        })
    }

    pub(crate) fn chain_directory(&self) -> &Path {
        self.chain.directory()
    }

    pub(crate) fn podinfo_directory(&self) -> &Path {
        self.podinfo.directory()
    }

    /// The pod as the API server stores it, with the status that kubelet writes.
    pub(crate) fn pod_object(&self) -> Value {
        let ip = self.ip.to_string();
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": self.identity.namespace,
                "name": self.identity.name,
                "labels": self.identity.labels,
                "annotations": { annotations::INJECTED: "kubeconfig" },
            },
            "spec": { "nodeName": "demo", "containers": [{ "name": "controller", "image": "widget-controller" }] },
            "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] },
        })
    }
}

/// An address of 127.0.0.0/8 on which both ports of a sidecar are free.
fn free_address() -> Result<Ipv4Addr, Error> {
    let mut last = None;
    for _ in 0..TRIES {
        let [a, b, c, ..] = RandomState::new().build_hasher().finish().to_le_bytes();
        // 127.0.0.0/16 is left to other programs.
        let ip = Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254));
        let listen = |port| TcpListener::bind(SocketAddr::from((ip, port)));
        match listen(ports::ADMIN).and_then(|admin| listen(ports::API).map(|api| (admin, api))) {
            Ok(_) => return Ok(ip),
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into());
    Err(Error::NoAddress { source })
}

/// Projects the manager's ConfigMaps of a namespace into the volumes of its pods until dropped.
pub(crate) async fn run(client: Client, namespace: &str, mut pods: Vec<Pod>, observations: SharedObservations) {
    let maps = Api::<ConfigMap>::namespaced(client, namespace);
    let events = watcher(maps, watcher::Config::default()).default_backoff();
    let mut events = pin!(events);
    let mut sources = VolumeSources::default();
    while let Some(event) = events.next().await {
        // The watcher reconnects by itself.
        let Ok(event) = event else { continue };
        if !sources.apply_event(event) {
            continue;
        }
        let files = sources.projected_files();
        for pod in &mut pods {
            if let Err(error) = pod.chain.sync_files(&files) {
                observations.with_observations(|observations| {
                    observations.blind = Some(format!("the volume of {}: {error}", pod.identity.name))
                });
                return;
            }
        }
    }
}

/// The ConfigMaps of the namespace, by name.
#[derive(Debug, Default)]
struct VolumeSources(BTreeMap<String, Files>);

impl VolumeSources {
    /// Returns whether the volumes must be synced.
    fn apply_event(&mut self, event: Event<ConfigMap>) -> bool {
        match event {
            Event::Init => self.0.clear(),
            Event::InitApply(map) => self.store_config_map(map),
            Event::Apply(map) => {
                self.store_config_map(map);
                return true;
            }
            Event::Delete(map) => return self.0.remove(&map.name_any()).is_some(),
            Event::InitDone => return true,
        }
        false
    }

    fn store_config_map(&mut self, map: ConfigMap) {
        let name = map.name_any();
        let text = map
            .data
            .into_iter()
            .flatten()
            .map(|(key, text)| (key, text.into_bytes()));
        let bytes = map.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0));
        self.0.insert(name, text.chain(bytes).collect());
    }

    /// The files of the projected volume, sources in order.
    fn projected_files(&self) -> Files {
        let plugins = (0..).map_while(plugin_config_map);
        let names = std::iter::once(CHAIN_CONFIG_MAP.to_owned()).chain(plugins);
        let sources = names.filter_map(|name| self.0.get(&name));
        sources
            .flatten()
            .map(|(name, bytes)| (name.clone(), bytes.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_map(name: &str, key: &str, text: &str) -> ConfigMap {
        let map = json!({ "metadata": { "name": name }, "data": { key: text } });
        serde_json::from_value(map).unwrap()
    }

    #[test]
    fn volume_shows_only_its_sources() {
        let mut sources = VolumeSources::default();
        assert!(!sources.apply_event(Event::InitApply(config_map(CHAIN_CONFIG_MAP, "chain.yaml", "1"))));
        assert!(sources.apply_event(Event::InitDone));
        assert!(sources.apply_event(Event::Apply(config_map("ctrlmesh-plugins-3", "a.wasm.zst", "a"))));
        assert!(sources.apply_event(Event::Apply(config_map("somebody-elses", "secret", "b"))));
        assert_eq!(
            sources.projected_files().into_keys().collect::<Vec<_>>(),
            ["a.wasm.zst", "chain.yaml"]
        );
        assert!(sources.apply_event(Event::Delete(config_map("ctrlmesh-plugins-3", "a.wasm.zst", "a"))));
        assert!(sources.apply_event(Event::Apply(config_map(CHAIN_CONFIG_MAP, "chain.yaml", "2"))));
        assert_eq!(
            sources.projected_files(),
            Files::from([("chain.yaml".to_owned(), b"2".to_vec())])
        );
    }

    #[test]
    fn pod_has_its_own_address_and_selector_labels() {
        let root = tempfile::tempdir().unwrap();
        let [zero, one] =
            Replica::BOTH.map(|replica| Pod::create(PodIdentity::of_replica(replica), root.path()).unwrap());
        assert_ne!(zero.ip, one.ip);
        let labels = std::fs::read_to_string(one.podinfo_directory().join(files::LABELS)).unwrap();
        let object = one.pod_object();
        for (key, value) in object["metadata"]["labels"].as_object().unwrap() {
            assert!(labels.contains(&format!("{key}={value}")), "{key}: {labels}");
        }
        assert_eq!(object["status"]["podIP"], one.ip.to_string());
    }
}
