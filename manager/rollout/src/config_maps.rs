//! Reads the ConfigMaps of a namespace: the chain with its claims, and plugins. [`ChainHistory`] remembers the chain from pass to
//! pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, PLUGIN_CONFIG_MAPS, files, plugin_config_map};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::signature::PublicKeys;
use ctrlmesh_contract::world::Interface;
use ctrlmesh_contract::{Chain, Digest};
use ctrlmesh_manager_planner::hand_over::Claims;
use k8s_openapi::api::core::v1::ConfigMap;
use sha2::{Digest as _, Sha256};

/// Key of the chain's ConfigMap: what sidecars may still show besides the chain ([`Claims`]). Sidecars ignore it.
pub const CLAIMS: &str = "claims.json";
/// Signature over claims and chain, so that claims never count with another chain.
pub const CLAIMS_SIGNATURE: &str = "claims.json.sig";
/// Limit for the plugins in one ConfigMap. Kubernetes allows 1 MiB for keys and values together (`MaxSecretSize`).
pub const MAX_SLOT_BYTES: usize = 1000 * 1024;

/// Time for which a write that the watch does not show is waited for.
pub const MAX_UNSEEN: Duration = Duration::from_secs(5);
/// Shortest time between two chains that are written because a sidecar runs a later one.
const MIN_RAISE_INTERVAL: Duration = Duration::from_mins(1);
/// Plugins by the ConfigMap that holds them: packed sizes by digest.
pub type PluginSlots = [BTreeMap<Digest, usize>; PLUGIN_CONFIG_MAPS];

/// A plugin as sidecars get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedPlugin {
    /// Digest of the component before it was packed.
    pub digest: Digest,
    /// One zstd stream.
    pub bytes: Bytes,
    /// Version of the plugin interface that it needs.
    pub interface: Option<Interface>,
}

/// Contents of the ConfigMaps as a manager wrote them. Whatever somebody else has changed is left out.
#[derive(Clone, Debug, Default)]
pub struct StoredConfigMaps {
    /// `None`: there is none, or it is not as a manager wrote it.
    pub chain: Option<Chain>,
    pub claims: Claims,
    /// Digest of the chain's document, as sidecars report it.
    pub digest: Option<Digest>,
    /// Resource version of the chain's ConfigMap, if it exists. Writes fail if it has changed since.
    pub version: Option<String>,
    /// The chain's ConfigMap has our label, so its changes are watched.
    pub is_watched: bool,
    slots: Vec<Option<PluginConfigMap>>,
}

/// One of the ConfigMaps with plugins.
#[derive(Clone, Debug, Default)]
pub struct PluginConfigMap {
    /// Resource version. Writes fail if it has changed since.
    pub version: Option<String>,
    /// Fingerprints of the packed bytes, which caches do not keep. Sizes are not known.
    plugins: BTreeMap<Digest, Vec<u8>>,
    /// Keys of binary data that a manager did not write.
    foreign: BTreeSet<String>,
    /// The ConfigMap has text data, which a manager never writes.
    has_text: bool,
}

impl PluginConfigMap {
    pub fn from_config_map(map: &ConfigMap) -> Self {
        let mut slot = Self {
            version: map.metadata.resource_version.clone(),
            has_text: map.data.as_ref().is_some_and(|data| !data.is_empty()),
            ..Self::default()
        };
        for (key, print) in map.binary_data.iter().flatten() {
            if let Some((digest, Encoding::Zstd)) = plugin_file::parse_file_name(key) {
                slot.plugins.insert(digest, print.0.clone());
            } else {
                slot.foreign.insert(key.clone());
            }
        }
        slot
    }

    /// Keys of its binary data.
    pub fn keys(&self) -> impl Iterator<Item = String> {
        let ours = self
            .plugins
            .keys()
            .map(|digest| plugin_file::file_name(digest, Encoding::Zstd));
        ours.chain(self.foreign.iter().cloned())
    }
}

impl StoredConfigMaps {
    /// `config_map` gives the ConfigMaps of the namespace by name, without plugin bytes but their [`plugin_fingerprint`]s.
    #[must_use]
    pub fn read(config_map: impl Fn(&str) -> Option<Arc<ConfigMap>>, namespace: &str, keys: &PublicKeys) -> Self {
        let slots = (0..).map_while(plugin_config_map);
        let slots = slots.map(|name| config_map(&name).map(|map| PluginConfigMap::from_config_map(&map)));
        let mut stored = Self {
            slots: slots.collect(),
            ..Self::default()
        };
        if let Some(map) = config_map(CHAIN_CONFIG_MAP) {
            stored.read_chain(&map, namespace, keys);
            stored.is_watched = true;
        }
        stored
    }

    /// The ConfigMaps after a chain and these plugins are written.
    #[cfg(test)]
    pub fn written(chain: Chain, claims: Claims, plugins: impl IntoIterator<Item = PackedPlugin>) -> Self {
        let plugins = plugins.into_iter();
        let slot = PluginConfigMap {
            plugins: plugins
                .map(|packed| (packed.digest, plugin_fingerprint(&packed.bytes)))
                .collect(),
            ..PluginConfigMap::default()
        };
        Self {
            digest: Some(Digest::of(chain.to_json().as_bytes())),
            version: Some("1".to_owned()),
            is_watched: true,
            slots: vec![Some(slot)],
            chain: Some(chain),
            claims,
        }
    }

    /// Takes over the chain of a ConfigMap, if it is as a manager wrote it for this namespace.
    pub fn read_chain(&mut self, map: &ConfigMap, namespace: &str, keys: &PublicKeys) {
        self.version.clone_from(&map.metadata.resource_version);
        let Some((chain, claims)) = verified_chain(map, keys).filter(|(chain, _)| chain.namespace == namespace) else {
            return self.forget_chain();
        };
        let document = map.data.as_ref().and_then(|data| data.get(files::CHAIN));
        self.digest = document.map(|document| Digest::of(document.as_bytes()));
        (self.chain, self.claims) = (Some(chain), claims);
    }

    /// Ignores a chain that was written before `last`: somebody has restored an old ConfigMap.
    pub fn ignore_older_than(&mut self, last: &Chain) {
        let is_older = |chain: &Chain| chain.generation <= last.generation && chain != last;
        if self.chain.as_ref().is_some_and(is_older) {
            self.forget_chain();
        }
    }

    fn forget_chain(&mut self) {
        (self.chain, self.claims, self.digest) = Default::default();
    }

    /// Resource version of a ConfigMap that was read, by its name.
    pub fn version_of(&self, name: &str) -> Option<&str> {
        if name == CHAIN_CONFIG_MAP {
            return self.version.as_deref();
        }
        let number = (0..self.slots.len()).find(|number| plugin_config_map(*number).as_deref() == Some(name))?;
        self.slot(number)?.version.as_deref()
    }

    /// The plugins in each ConfigMap. `sizes` are those of known plugins; unknown ones are taken for a quarter of a ConfigMap.
    pub fn slots(&self, sizes: &BTreeMap<Digest, usize>) -> PluginSlots {
        let mut slots = PluginSlots::default();
        for (slot, there) in slots.iter_mut().zip(&self.slots) {
            let size = |digest: &Digest| sizes.get(digest).copied().unwrap_or(MAX_SLOT_BYTES / 4);
            let digests = there.iter().flat_map(|there| there.plugins.keys());
            *slot = digests.map(|digest| (*digest, size(digest))).collect();
        }
        slots
    }

    /// Whether a plugin ConfigMap holds exactly these plugins, unchanged as far as their bytes are known.
    pub fn holds(&self, number: usize, desired: &BTreeSet<Digest>, known: &BTreeMap<Digest, PackedPlugin>) -> bool {
        let Some(slot) = self.slot(number) else {
            return desired.is_empty();
        };
        let is_intact = |(digest, print): (&Digest, &Vec<u8>)| {
            known
                .get(digest)
                .is_none_or(|packed| plugin_fingerprint(&packed.bytes) == *print)
        };
        let is_ours = slot.foreign.is_empty() && !slot.has_text;
        is_ours && slot.plugins.keys().eq(desired) && slot.plugins.iter().all(is_intact)
    }

    /// One of the ConfigMaps with plugins, if it exists.
    pub fn slot(&self, number: usize) -> Option<&PluginConfigMap> {
        self.slots.get(number)?.as_ref()
    }
}

/// SHA-256 that caches keep in place of plugin bytes, of which every namespace may have megabytes.
#[must_use]
pub fn plugin_fingerprint(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

/// The bytes that the claims' signature is over. A chain's document never starts like this.
pub fn signed_claims(claims: &str, document: &str) -> Vec<u8> {
    format!("claims {} {claims}", Digest::of(document.as_bytes())).into_bytes()
}

/// The chain and its claims. `None` if either is not as a manager wrote it: a chain without its claims says too little.
fn verified_chain(map: &ConfigMap, keys: &PublicKeys) -> Option<(Chain, Claims)> {
    let data = map.data.as_ref()?;
    let (document, signature) = (data.get(files::CHAIN)?, data.get(files::CHAIN_SIGNATURE)?);
    keys.verify(document.as_bytes(), signature.as_bytes()).ok()?;
    let (claims, signature) = (data.get(CLAIMS)?, data.get(CLAIMS_SIGNATURE)?);
    keys.verify(&signed_claims(claims, document), signature.as_bytes())
        .ok()?;
    Some((
        Chain::parse(document.as_bytes()).ok()?,
        serde_json::from_str(claims).ok()?,
    ))
}

/// Chains from pass to pass: the one that was written last, the one that is stored, and those that sidecars report.
#[derive(Clone, Debug, Default)]
pub struct ChainHistory {
    /// The chain that was written last, for a ConfigMap that somebody damages.
    pub last: Option<(Chain, Claims)>,
    /// The stored chain, and since when it is known.
    pub stored: Option<(Digest, Instant)>,
    /// Generation of the stored chain.
    stored_generation: u64,
    /// Highest generation that any sidecar has reported.
    pub highest_generation: u64,
    /// When a chain was last written over a later one that a sidecar runs.
    last_raise: Option<Instant>,
}

/// The stored chain, compared with that of the pass before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredChain {
    Same,
    Next,
    /// Somebody else wrote the generations in between. A pod may have loaded one of them, though its entries look the same.
    Skipped,
}

impl ChainHistory {
    /// Records which chain is stored.
    pub fn observe(&mut self, digest: Option<Digest>, generation: u64, now: Instant) -> StoredChain {
        if self.stored.map(|(digest, _)| digest) == digest {
            return StoredChain::Same;
        }
        self.stored = digest.map(|digest| (digest, now));
        let is_next = generation == self.stored_generation.saturating_add(1);
        self.stored_generation = generation;
        if is_next {
            StoredChain::Next
        } else {
            StoredChain::Skipped
        }
    }

    /// Whether a report of a later chain may be believed now. A sidecar that lies would make all shards give up what they show.
    #[must_use]
    pub fn may_raise(&self, now: Instant) -> bool {
        self.last_raise
            .is_none_or(|last_raise| now.duration_since(last_raise) >= MIN_RAISE_INTERVAL)
    }

    /// Records that a chain was written over a later one.
    pub fn record_raise(&mut self, now: Instant) {
        self.last_raise = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_contract::signature::SigningKey;
    use serde_json::json;

    use super::*;

    fn map(key: &SigningKey) -> ConfigMap {
        let chain = Chain {
            namespace: "operators".to_owned(),
            generation: 3,
            entries: Vec::new(),
        };
        let document = chain.to_json();
        let claims = r#"{"shown":{"shard-selector/a":[{"named":["uid"],"limits":[]}]}}"#;
        serde_json::from_value(json!({ "data": {
            files::CHAIN: document, files::CHAIN_SIGNATURE: key.sign(document.as_bytes()),
            CLAIMS: claims, CLAIMS_SIGNATURE: key.sign(&signed_claims(claims, &document)),
        }}))
        .unwrap()
    }

    #[test]
    fn chain_is_read_only_with_its_own_claims() {
        let key = SigningKey::generate().unwrap();
        let keys = PublicKeys::from(key.public_key());
        let (found, claims) = verified_chain(&map(&key), &keys).unwrap();
        assert!(found.generation == 3 && !claims.is_empty());
        let spoiled = |change: &dyn Fn(&mut BTreeMap<String, String>)| {
            let mut map = map(&key);
            change(map.data.as_mut().unwrap());
            verified_chain(&map, &keys)
        };
        assert_eq!(spoiled(&|data| drop(data.remove(CLAIMS))), None);
        assert_eq!(
            spoiled(&|data| drop(data.insert(CLAIMS.to_owned(), "{}".to_owned()))),
            None
        );
        // Signed by us, with another chain.
        let other = |data: &mut BTreeMap<String, String>| {
            data.insert(CLAIMS.to_owned(), "{}".to_owned());
            data.insert(CLAIMS_SIGNATURE.to_owned(), key.sign(&signed_claims("{}", "another")));
        };
        assert_eq!(spoiled(&other), None);
    }

    #[test]
    fn missed_generations_are_noticed() {
        let mut history = ChainHistory::default();
        let mut observe =
            |text: &str, generation| history.observe(Some(Digest::of(text.as_bytes())), generation, Instant::now());
        assert_eq!(
            observe("first", 7),
            StoredChain::Skipped,
            "nobody knows what was before"
        );
        assert_eq!(observe("first", 7), StoredChain::Same);
        assert_eq!(observe("next", 8), StoredChain::Next);
        assert_eq!(observe("another", 10), StoredChain::Skipped);
    }
}
