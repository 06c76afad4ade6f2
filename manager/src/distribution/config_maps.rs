//! What lies in a namespace's ConfigMaps now.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, files, plugin_config_map};
use ctrlmesh_contract::plugin_file::{self, Encoding};
use ctrlmesh_contract::signature::PublicKeys;
use ctrlmesh_contract::{Chain, Digest};
use k8s_openapi::api::core::v1::ConfigMap;

use super::builtin_plugins::PackedPlugin;
use super::caches::{Caches, fingerprint};
use super::plugin_slots::PluginSlots;
use super::write::{CLAIMS, CLAIMS_SIGNATURE, signed};
use crate::hand_over::Claims;

/// What was written last, as far as nobody has changed it.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredConfigMaps {
    /// `None`: there is none, or it is not as we wrote it.
    pub(super) chain: Option<Chain>,
    pub(super) claims: Claims,
    /// Of the document, as sidecars tell it.
    pub(super) digest: Option<Digest>,
    /// Version of the chain's ConfigMap, if there is one: who writes says what was read.
    pub(super) version: Option<String>,
    /// The ConfigMap has our label: changes of it are seen.
    pub(super) is_watched: bool,
    slots: Vec<Option<Slot>>,
}

/// A ConfigMap with plugins.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    /// Its version: who writes says what was read.
    pub(super) version: Option<String>,
    /// Sizes are not known: in what is watched, plugins are replaced by fingerprints.
    plugins: BTreeMap<Digest, Vec<u8>>,
    /// Keys of binary data that are none of ours.
    foreign: BTreeSet<String>,
    /// Text lies there; none of it is ours.
    has_text: bool,
}

impl Slot {
    pub(super) fn of(map: &ConfigMap) -> Self {
        let mut slot = Self {
            version: map.metadata.resource_version.clone(),
            has_text: map.data.as_ref().is_some_and(|data| !data.is_empty()),
            ..Self::default()
        };
        for (key, print) in map.binary_data.iter().flatten() {
            if let Some((digest, Encoding::Zstd)) = plugin_file::parse(key) {
                slot.plugins.insert(digest, print.0.clone());
            } else {
                slot.foreign.insert(key.clone());
            }
        }
        slot
    }

    /// Keys of its binary data.
    pub(super) fn keys(&self) -> impl Iterator<Item = String> {
        let ours = self
            .plugins
            .keys()
            .map(|digest| plugin_file::name(digest, Encoding::Zstd));
        ours.chain(self.foreign.iter().cloned())
    }
}

impl StoredConfigMaps {
    pub(super) fn of(caches: &Caches, namespace: &str, keys: &PublicKeys) -> Self {
        let slots = (0..).map_while(plugin_config_map).map(|name| {
            let map = caches.config_map(namespace, &name);
            map.map(|map| Slot::of(&map))
        });
        let mut stored = Self {
            slots: slots.collect(),
            ..Self::default()
        };
        if let Some(map) = caches.config_map(namespace, CHAIN_CONFIG_MAP) {
            stored.take(&map, namespace, keys);
            stored.is_watched = true;
        }
        stored
    }

    /// Takes what a ConfigMap says for the chain.
    pub(super) fn take(&mut self, map: &ConfigMap, namespace: &str, keys: &PublicKeys) {
        self.version.clone_from(&map.metadata.resource_version);
        let Some((chain, claims)) = chain(map, keys).filter(|(chain, _)| chain.namespace == namespace) else {
            return self.forget();
        };
        let document = map.data.as_ref().and_then(|data| data.get(files::CHAIN));
        self.digest = document.map(|document| Digest::of(document.as_bytes()));
        (self.chain, self.claims) = (Some(chain), claims);
    }

    /// Leaves a chain aside that was written before this one: somebody has put it back.
    pub(super) fn leave_older(&mut self, last: &Chain) {
        let is_older = |chain: &Chain| chain.generation <= last.generation && chain != last;
        if self.chain.as_ref().is_some_and(is_older) {
            self.forget();
        }
    }

    fn forget(&mut self) {
        (self.chain, self.claims, self.digest) = Default::default();
    }

    /// Which plugins lie where. `sizes` are those of what is known; of what is not, the room is taken to be full.
    pub(super) fn slots(&self, sizes: &BTreeMap<Digest, usize>) -> PluginSlots {
        let mut slots = PluginSlots::default();
        for (slot, there) in slots.iter_mut().zip(&self.slots) {
            let size = |digest: &Digest| {
                sizes
                    .get(digest)
                    .copied()
                    .unwrap_or(super::plugin_slots::MAX_SLOT_BYTES / 4)
            };
            let digests = there.iter().flat_map(|there| there.plugins.keys());
            *slot = digests.map(|digest| (*digest, size(digest))).collect();
        }
        slots
    }

    /// Whether a slot holds what it should, and nothing of ours was changed.
    pub(super) fn is_slot(
        &self,
        number: usize,
        wanted: &BTreeSet<Digest>,
        known: &BTreeMap<Digest, PackedPlugin>,
    ) -> bool {
        let Some(slot) = self.slot(number) else {
            return wanted.is_empty();
        };
        let is_intact = |(digest, print): (&Digest, &Vec<u8>)| {
            known
                .get(digest)
                .is_none_or(|packed| fingerprint(&packed.bytes) == *print)
        };
        let is_ours = slot.foreign.is_empty() && !slot.has_text;
        is_ours && slot.plugins.keys().eq(wanted) && slot.plugins.iter().all(is_intact)
    }

    /// One of the ConfigMaps with plugins, if it is there.
    pub(super) fn slot(&self, number: usize) -> Option<&Slot> {
        self.slots.get(number)?.as_ref()
    }
}

/// The chain, and what was remembered with it. `None` if either is not as we wrote it: without its claims a chain says too little.
fn chain(map: &ConfigMap, keys: &PublicKeys) -> Option<(Chain, Claims)> {
    let data = map.data.as_ref()?;
    let (document, signature) = (data.get(files::CHAIN)?, data.get(files::CHAIN_SIGNATURE)?);
    keys.verify(document.as_bytes(), signature.as_bytes()).ok()?;
    let (claims, signature) = (data.get(CLAIMS)?, data.get(CLAIMS_SIGNATURE)?);
    keys.verify(&signed(claims, document), signature.as_bytes()).ok()?;
    Some((
        Chain::parse(document.as_bytes()).ok()?,
        serde_json::from_str(claims).ok()?,
    ))
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
            CLAIMS: claims, CLAIMS_SIGNATURE: key.sign(&signed(claims, &document)),
        }}))
        .unwrap()
    }

    #[test]
    fn a_chain_counts_with_its_own_claims_alone() {
        let key = SigningKey::generate().unwrap();
        let keys = PublicKeys::from(key.public_key());
        let (found, claims) = chain(&map(&key), &keys).unwrap();
        assert!(found.generation == 3 && !claims.is_empty());
        let spoiled = |change: &dyn Fn(&mut BTreeMap<String, String>)| {
            let mut map = map(&key);
            change(map.data.as_mut().unwrap());
            chain(&map, &keys)
        };
        assert_eq!(spoiled(&|data| drop(data.remove(CLAIMS))), None);
        assert_eq!(
            spoiled(&|data| drop(data.insert(CLAIMS.to_owned(), "{}".to_owned()))),
            None
        );
        // Signed by us, with another chain.
        let other = |data: &mut BTreeMap<String, String>| {
            data.insert(CLAIMS.to_owned(), "{}".to_owned());
            data.insert(CLAIMS_SIGNATURE.to_owned(), key.sign(&signed("{}", "another")));
        };
        assert_eq!(spoiled(&other), None);
    }
}
