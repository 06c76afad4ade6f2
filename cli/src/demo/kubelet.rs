//! Plays kubelet, as far as a sidecar and the manager can tell: pods with addresses of their own, and a volume in each that shows
//! the manager's ConfigMaps.
//!
//! Kubelet looks at a volume when its pod changes, which is why the manager touches pods; here a change of a ConfigMap is enough.

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

use super::facts::Shared;
use super::plan::{APP, POD_NAMESPACE, SHARD_LABEL};
use super::replica::Replica;
use crate::error::Error;
use volume::{Files, Volume, downward_labels};

/// Addresses that are tried. One of 127.0.0.0/8 is seldom taken, but another demo takes its own in the same way.
const TRIES: usize = 16;

/// A pod with its volumes. Only one clone may write them.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) replica: Replica,
    /// A loopback address of its own: the manager asks every sidecar at the same port.
    pub(crate) ip: Ipv4Addr,
    chain: Volume,
    podinfo: Volume,
}

impl Pod {
    /// Makes the pod of a replica in `directory`. Nothing runs in it yet.
    pub(crate) fn create(replica: Replica, directory: &Path) -> Result<Self, Error> {
        let volume = |name: &str| Volume::create(directory.join(format!("{name}-{}", replica.number())));
        let mut podinfo = volume("podinfo")?;
        let number = replica.number().to_string();
        let labels = downward_labels(&[APP, (labels::WATCHING, "true"), (SHARD_LABEL, &number)]);
        podinfo.sync(&[(files::LABELS.to_owned(), labels)].into())?;
        Ok(Self {
            replica,
            ip: free_address()?,
            chain: volume("chain")?,
            podinfo,
        })
    }

    /// The directory with the chain and the plugins.
    pub(crate) fn chain(&self) -> &Path {
        self.chain.directory()
    }

    /// The directory with the labels.
    pub(crate) fn podinfo(&self) -> &Path {
        self.podinfo.directory()
    }

    /// As the API server has it, with the status that kubelet writes.
    pub(crate) fn object(&self) -> Value {
        let ip = self.ip.to_string();
        let (app, name) = APP;
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": POD_NAMESPACE,
                "name": self.replica.name(),
                "labels": {
                    app: name,
                    SHARD_LABEL: self.replica.number().to_string(),
                    labels::WATCHING: "true",
                },
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
        // 127.0 is left to everything else on the machine.
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

/// Shows the manager's ConfigMaps in the pods' volumes, until it is dropped.
pub(crate) async fn run(client: Client, mut pods: Vec<Pod>, facts: Shared) {
    let maps = Api::<ConfigMap>::namespaced(client, POD_NAMESPACE);
    let events = watcher(maps, watcher::Config::default()).default_backoff();
    let mut events = pin!(events);
    let mut sources = Sources::default();
    while let Some(event) = events.next().await {
        // The watch goes on by itself.
        let Ok(event) = event else { continue };
        if !sources.take(event) {
            continue;
        }
        let files = sources.files();
        for pod in &mut pods {
            if let Err(error) = pod.chain.sync(&files) {
                facts.with(|facts| facts.blind = Some(format!("the volume of {}: {error}", pod.replica.name())));
                return;
            }
        }
    }
}

/// The ConfigMaps of the namespace, by name.
#[derive(Debug, Default)]
struct Sources(BTreeMap<String, Files>);

impl Sources {
    /// Whether there is something to show.
    fn take(&mut self, event: Event<ConfigMap>) -> bool {
        match event {
            Event::Init => self.0.clear(),
            Event::InitApply(map) => self.put(map),
            Event::Apply(map) => {
                self.put(map);
                return true;
            }
            Event::Delete(map) => return self.0.remove(&map.name_any()).is_some(),
            Event::InitDone => return true,
        }
        false
    }

    fn put(&mut self, map: ConfigMap) {
        let name = map.name_any();
        let text = map
            .data
            .into_iter()
            .flatten()
            .map(|(key, text)| (key, text.into_bytes()));
        let bytes = map.binary_data.into_iter().flatten().map(|(key, bytes)| (key, bytes.0));
        self.0.insert(name, text.chain(bytes).collect());
    }

    /// The sources of the projected volume, in their order.
    fn files(&self) -> Files {
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

    fn map(name: &str, key: &str, text: &str) -> ConfigMap {
        let map = json!({ "metadata": { "name": name }, "data": { key: text } });
        serde_json::from_value(map).unwrap()
    }

    #[test]
    fn a_volume_shows_the_sources_and_nothing_else() {
        let mut sources = Sources::default();
        assert!(!sources.take(Event::InitApply(map(CHAIN_CONFIG_MAP, "chain.yaml", "1"))));
        assert!(sources.take(Event::InitDone));
        assert!(sources.take(Event::Apply(map("ctrlmesh-plugins-3", "a.wasm.zst", "a"))));
        assert!(sources.take(Event::Apply(map("somebody-elses", "secret", "b"))));
        assert_eq!(
            sources.files().into_keys().collect::<Vec<_>>(),
            ["a.wasm.zst", "chain.yaml"]
        );
        assert!(sources.take(Event::Delete(map("ctrlmesh-plugins-3", "a.wasm.zst", "a"))));
        assert!(sources.take(Event::Apply(map(CHAIN_CONFIG_MAP, "chain.yaml", "2"))));
        assert_eq!(sources.files(), Files::from([("chain.yaml".to_owned(), b"2".to_vec())]));
    }

    #[test]
    fn each_pod_has_an_address_of_its_own_and_the_labels_that_selectors_go_by() {
        let root = tempfile::tempdir().unwrap();
        let [zero, one] = Replica::BOTH.map(|replica| Pod::create(replica, root.path()).unwrap());
        assert_ne!(zero.ip, one.ip);
        let labels = std::fs::read_to_string(one.podinfo().join(files::LABELS)).unwrap();
        let object = one.object();
        for (key, value) in object["metadata"]["labels"].as_object().unwrap() {
            assert!(labels.contains(&format!("{key}={value}")), "{key}: {labels}");
        }
        assert_eq!(object["status"]["podIP"], one.ip.to_string());
    }
}
