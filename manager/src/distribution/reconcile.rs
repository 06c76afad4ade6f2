//! One namespace, once: what is wanted, what is there, the next step between the two, and what to tell about it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::{CHAIN_CONFIG_MAP, plugin_config_map};
use ctrlmesh_contract::signature::{PublicKeys, SigningKey};
use ctrlmesh_contract::{Chain, Digest, Entry};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;

use super::carried::Packed;
use super::fleet::{Fleet, Sidecar};
use super::memory::{Memory, Quiet};
use super::poll::Poller;
use super::read::Documents;
use super::restart::{self, Waits};
use super::slots::{NoRoom, Slots};
use super::stored::Stored;
use super::unreachable;
use super::wanted;
use super::world::World;
use super::{report, slots, write};
use crate::api::sharding_config::{Reshard, ShardingConfig};
use crate::built_in::BuiltIn;
use crate::compile::Refused;
use crate::context::Context;
use crate::error::Error;
use crate::hand_over::restart::{Evict, Hold};
use crate::hand_over::{self, Claims};
use crate::oci::{Found, Plugins};

/// Until sidecars that have not acknowledged are asked again.
const SOON: Duration = Duration::from_millis(150);
/// Until it is looked again whether our writes are seen.
const UNSEEN: Duration = Duration::from_millis(20);

/// How far a sidecar's generation may be ahead of all that is known, to be believed.
const MAX_AHEAD: u64 = 1 << 20;

/// What every pass needs.
pub(super) struct Distributor {
    pub(super) context: Context,
    pub(super) world: World,
    pub(super) key: SigningKey,
    pub(super) poller: Poller,
    pub(super) built_in: BTreeMap<BuiltIn, Packed>,
    plugins: Plugins,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is to be done.
pub(super) struct Next {
    pub(super) chain: Chain,
    pub(super) claims: Claims,
    pub(super) waiting: BTreeMap<String, BTreeSet<String>>,
    /// Entries that get what others may still show, and those.
    pub(super) overtaking: BTreeMap<String, BTreeSet<String>>,
    /// UIDs of pods that are waited for, by the shard's entry.
    pub(super) awaited: BTreeMap<String, BTreeSet<String>>,
    /// Shards whose pods do not keep what they see yet.
    pub(super) preparing: BTreeSet<String>,
    pub(super) hold: Vec<Hold>,
    pub(super) evict: Vec<Evict>,
    /// Why shards are not restarted yet.
    pub(super) restarting: Waits,
    /// Objects that make no sense.
    pub(super) refused: Vec<Refused>,
    /// What the references of objects to plugins led to.
    pub(super) found: Found,
    /// Why the chain stays as it was.
    pub(super) withheld: Option<(&'static str, String)>,
}

impl Next {
    /// Nothing.
    fn staying(chain: Chain, claims: Claims, found: Found) -> Self {
        Self {
            chain,
            claims,
            found,
            waiting: BTreeMap::new(),
            overtaking: BTreeMap::new(),
            awaited: BTreeMap::new(),
            preparing: BTreeSet::new(),
            hold: Vec::new(),
            evict: Vec::new(),
            restarting: Waits::new(),
            refused: Vec::new(),
            withheld: None,
        }
    }
}

impl Distributor {
    pub(super) fn new(context: Context, world: World, key: SigningKey, plugins: Plugins) -> reqwest::Result<Self> {
        Ok(Self {
            plugins,
            poller: Poller::new(context.args.sidecar_port)?,
            built_in: super::carried::built_in(),
            memory: Mutex::default(),
            context,
            world,
            key,
        })
    }

    fn memory(&self, namespace: &str) -> Memory {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.get(namespace).cloned().unwrap_or_default()
    }

    fn remember(&self, namespace: &str, memory: Memory) {
        let mut all = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(namespace.to_owned(), memory);
    }

    /// Looks at a namespace.
    pub(super) async fn reconcile(&self, namespace: &Namespace) -> Result<Action, Error> {
        let namespace = namespace.name_any();
        let documents = self.world.documents(&namespace);
        let keys = PublicKeys::from(self.key.public_key());
        let stored = Stored::of(&self.world, &namespace, &keys);
        if documents.is_empty() && stored.version.is_none() {
            return Ok(Action::await_change());
        }
        let objects = Documents::of(documents);
        let mut memory = self.memory(&namespace);
        if !memory.has_seen_writes(&self.world, &namespace) {
            return Ok(Action::requeue(UNSEEN));
        }
        let mut fleet = self.look(&namespace, &stored, &mut memory).await;
        fleet.given_up = unreachable::given_up(&memory.silent, &fleet, &objects.sharding_configs, Instant::now());
        let mut next = self.next(&namespace, &objects, &stored, &fleet, &memory);
        memory.silent = unreachable::silent(&memory.silent, &next.awaited, &fleet, Instant::now());
        let written = self.write(&stored, &next, &fleet, &mut memory).await;
        if written.is_ok() {
            memory.last = Some((next.chain.clone(), next.claims.clone()));
        }
        // What a plan says of pods holds when sidecars were asked about the chain that lies there.
        if written.as_ref().is_ok_and(|is_written| !is_written) && next.withheld.is_none() {
            next.restarting = restart::restart(self, &next, &fleet, &mut memory).await;
        }
        self.remember(&namespace, memory);
        let is_written = written?;
        let is_enforced = report::report(self, &namespace, &objects, &next, &fleet).await;
        let is_settled = is_enforced && !is_written && next.waiting.is_empty();
        Ok(Action::requeue(if is_settled || fleet.sidecars.is_empty() {
            Duration::from_secs(self.context.args.poll_seconds)
        } else {
            SOON
        }))
    }

    /// Asks the sidecars.
    async fn look(&self, namespace: &str, stored: &Stored, memory: &mut Memory) -> Fleet {
        let pods = self.world.pods(namespace);
        let sidecars: Vec<Sidecar> = pods.iter().filter_map(|pod| Sidecar::of(pod)).collect();
        let answers = self.poller.ask(&sidecars).await;
        let mut fleet = Fleet {
            sidecars,
            answers,
            is_first: stored.version.is_none() && memory.last.is_none(),
            ..Fleet::default()
        };
        // What one pod says can't take us to the end of all numbers.
        let known = stored.chain.as_ref().map_or(0, |chain| chain.generation);
        let limit = known.max(memory.generation).saturating_add(MAX_AHEAD);
        let said = fleet.answers.values().filter_map(|answer| match answer {
            super::fleet::Answer::Status(status) => Some(status.chain.generation),
            super::fleet::Answer::None(_) => None,
        });
        let said = said.filter(|generation| *generation <= limit).max();
        memory.generation = said.unwrap_or_default().max(memory.generation);
        for sidecar in &mut fleet.sidecars {
            if let Some(super::fleet::Answer::Status(status)) = fleet.answers.get(&sidecar.pod) {
                let names = status.chain.entries.iter().map(|entry| entry.name.clone()).collect();
                memory.running.insert(sidecar.uid.clone(), names);
            }
            sidecar.running = memory.running.get(&sidecar.uid).cloned().unwrap_or_default();
        }
        let is_there = |uid: &String| fleet.sidecars.iter().any(|sidecar| sidecar.uid == *uid);
        memory.running.retain(|uid, _| is_there(uid));
        memory.quiet = self.quiet(&fleet, stored, &memory.quiet);
        let (now, settle) = (Instant::now(), Duration::from_millis(self.context.args.settle_ms));
        let is_settled = |sidecar: &&Sidecar| {
            let since = memory.quiet.get(&sidecar.uid);
            since.is_some_and(|(_, since)| now.duration_since(*since) >= settle)
        };
        let quiet = fleet.sidecars.iter().filter(is_settled);
        fleet.quiet = quiet.map(|sidecar| sidecar.pod.clone()).collect();
        fleet
    }

    /// Since when sidecars run the entries of their shards, and nothing of earlier ones.
    fn quiet(&self, fleet: &Fleet, stored: &Stored, before: &Quiet) -> Quiet {
        let Some(chain) = &stored.chain else {
            return Quiet::new();
        };
        let is_at = |sidecar: &&Sidecar| fleet.is_in_its_shard(sidecar, &chain.entries);
        let since = |sidecar: &Sidecar| {
            let own = chain.entries.iter().filter(|entry| hand_over::is_of_shard(&entry.name));
            let own = own.filter(|entry| entry.pod_selector.matches(&sidecar.labels));
            let text: String = own
                .map(|entry| format!("{} {} {}\n", entry.name, entry.plugin, entry.settings.hash()))
                .collect();
            let digest = Digest::of(text.as_bytes());
            let known = before.get(&sidecar.uid).filter(|(at, _)| *at == digest);
            (
                sidecar.uid.clone(),
                (digest, known.map_or_else(Instant::now, |(_, since)| *since)),
            )
        };
        fleet.sidecars.iter().filter(is_at).map(since).collect()
    }

    /// The next chain.
    fn next(&self, namespace: &str, objects: &Documents, stored: &Stored, fleet: &Fleet, memory: &Memory) -> Next {
        let (last, claims) = match (&stored.chain, &memory.last) {
            (Some(chain), _) => (Some(chain.clone()), stored.claims.clone()),
            (None, Some((chain, claims))) => (Some(chain.clone()), claims.clone()),
            (None, None) => (None, Claims::default()),
        };
        let highest = memory.generation.max(last.as_ref().map_or(0, |chain| chain.generation));
        let with = |generation, entries| Chain {
            namespace: namespace.to_owned(),
            generation,
            entries,
        };
        let running: BTreeSet<Digest> = last
            .iter()
            .flat_map(|chain| &chain.entries)
            .map(|entry| entry.plugin)
            .collect();
        let found = Found::of(namespace, &objects.sharding_configs, &running, |ask| {
            self.plugins.resolve(ask)
        });
        let chain = last.clone().unwrap_or_else(|| with(highest.max(1), Vec::new()));
        let mut next = Next::staying(chain, claims, found);
        // What is on its way to something is kept as that.
        let meant = last.as_ref().map(|chain| Chain {
            entries: next.claims.meant(&chain.entries),
            ..chain.clone()
        });
        let wanted = match wanted::wanted(namespace, objects, meant.as_ref(), &self.resolved(&next.found)) {
            Ok(wanted) => wanted,
            Err(error) => {
                next.withheld = Some(("TooLarge", error.to_string()));
                return next;
            }
        };
        next.refused = wanted.refused;
        let restarts = restarts(objects);
        let plan = hand_over::plan(&next.chain.entries, &next.claims, &wanted.entries, &restarts, fleet);
        (next.waiting, next.overtaking, next.awaited) = (plan.waiting, plan.overtaking, plan.awaited);
        (next.preparing, next.hold, next.evict) = (plan.preparing, plan.hold, plan.evict);
        if last.is_none() || !wanted::is_same(&next.chain.entries, &plan.entries) {
            let chain = with(highest.saturating_add(1), plan.entries);
            match self.check(stored, &chain, &plan.claims, &next.found) {
                Ok(()) => (next.chain, next.claims) = (chain, plan.claims),
                withheld => next.withheld = withheld.err(),
            }
        }
        next
    }

    /// Whether sidecars would take it, and ConfigMaps; if not, why not, in a word and in a sentence.
    fn check(
        &self,
        stored: &Stored,
        chain: &Chain,
        claims: &Claims,
        found: &Found,
    ) -> Result<(), (&'static str, String)> {
        wanted::check(chain, claims).map_err(|error| ("TooLarge", error.to_string()))?;
        let placed = self.placed(stored, chain, true, found);
        placed.map(drop).map_err(|error| ("NoRoom", error.to_string()))
    }

    /// Writes what is not as it should be: plugins first, then the chain, then pods are told. Whether anything was written.
    async fn write(&self, stored: &Stored, next: &Next, fleet: &Fleet, memory: &mut Memory) -> Result<bool, Error> {
        let (client, namespace) = (&self.context.client, &next.chain.namespace);
        let before = stored
            .chain
            .as_ref()
            .map(|chain| chain.entries.as_slice())
            .unwrap_or_default();
        if stored.chain.as_ref() == Some(&next.chain) {
            // What no sidecar runs any more is taken out once all of them run the chain.
            let is_everywhere = fleet.sidecars.iter().all(|sidecar| fleet.is_at(sidecar, before));
            self.tell(
                namespace,
                &fleet.untold(before, next.chain.generation),
                next.chain.generation,
            )
            .await;
            return self.write_slots(stored, next, !is_everywhere, memory).await;
        }
        self.write_slots(stored, next, true, memory).await?;
        let version = write::chain(client, &next.chain, &next.claims, &self.key, stored.version.as_deref()).await?;
        memory.note(Some(CHAIN_CONFIG_MAP.to_owned()), version);
        self.context.metrics.distribution.written.inc();
        tracing::info!(%namespace, generation = next.chain.generation, entries = next.chain.entries.len(), "chain written");
        unreachable::tell(self, next, fleet).await;
        let of = |entries: &[Entry], sidecar: &Sidecar| -> Vec<Entry> {
            let own = entries
                .iter()
                .filter(|entry| entry.pod_selector.matches(&sidecar.labels));
            own.cloned().collect()
        };
        let concerned = fleet
            .sidecars
            .iter()
            .filter(|sidecar| of(before, sidecar) != of(&next.chain.entries, sidecar));
        let pods: Vec<String> = concerned.map(|sidecar| sidecar.pod.clone()).collect();
        self.tell(namespace, &pods, next.chain.generation).await;
        Ok(true)
    }

    /// Has kubelet sync the volumes of pods.
    async fn tell(&self, namespace: &str, pods: &[String], generation: u64) {
        if let Err(error) = write::bump(&self.context.client, namespace, pods, generation).await {
            tracing::warn!(%error, %namespace, "not every pod was told; kubelet finds the chain within a minute");
        }
    }

    /// Whether anything was written.
    async fn write_slots(&self, stored: &Stored, next: &Next, keep: bool, memory: &mut Memory) -> Result<bool, Error> {
        let known = self.known(&next.found);
        let wanted = self
            .placed(stored, &next.chain, keep, &next.found)
            .map_err(Error::NoRoom)?;
        let mut is_written = false;
        for (number, plugins) in wanted.iter().enumerate() {
            let digests: BTreeSet<Digest> = plugins.keys().copied().collect();
            if stored.is_slot(number, &digests, &known) {
                continue;
            }
            let bytes = |digest: &Digest| known.get(digest).map(|packed| packed.bytes.to_vec());
            let plugins = digests.iter().map(|digest| (*digest, bytes(digest))).collect();
            let version = write::slot(&self.context.client, &next.chain.namespace, number, plugins).await?;
            memory.note(plugin_config_map(number), version);
            is_written = true;
        }
        Ok(is_written)
    }

    /// Where the plugins of a chain lie, and with `keep` those that nobody needs any more.
    fn placed(&self, stored: &Stored, chain: &Chain, keep: bool, found: &Found) -> Result<Slots, NoRoom> {
        let known = self.known(found).into_iter();
        let sizes: BTreeMap<Digest, usize> = known.map(|(digest, packed)| (digest, packed.bytes.len())).collect();
        let now = stored.slots(&sizes);
        let lying: BTreeSet<Digest> = now.iter().flat_map(|slot| slot.keys().copied()).collect();
        let digests = chain.entries.iter().map(|entry| entry.plugin);
        let needed = digests.filter_map(|digest| {
            let size = sizes.get(&digest).copied();
            Some((digest, size.or_else(|| lying.contains(&digest).then_some(0))?))
        });
        let in_use = if keep { lying.clone() } else { BTreeSet::new() };
        slots::place(&now, &needed.collect(), &in_use)
    }

    /// Every plugin whose bytes are here.
    fn known(&self, found: &Found) -> BTreeMap<Digest, Packed> {
        let own = found.artifacts().map(|artifact| Packed {
            digest: artifact.digest,
            bytes: artifact.packed.clone(),
        });
        let all = self.built_in.values().cloned().chain(own);
        all.map(|packed| (packed.digest, packed)).collect()
    }

    /// What plugins are.
    fn resolved(&self, found: &Found) -> crate::Resolved {
        let built_in = self.built_in.iter();
        crate::Resolved {
            built_in: built_in.map(|(plugin, packed)| (*plugin, packed.digest)).collect(),
            own: found.digests(),
        }
    }
}

/// Entries of shards whose pods see no change while they run.
fn restarts(objects: &Documents) -> BTreeSet<String> {
    let shards = objects.sharding_configs.iter();
    let restarts = shards.filter(|config| config.spec.reshard == Reshard::Restart);
    let name = |config: &ShardingConfig| format!("{}/{}", BuiltIn::ShardSelector.name(), config.name_any());
    restarts.map(name).collect()
}
