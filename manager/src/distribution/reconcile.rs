//! One namespace, once: what is wanted, what is there, the next step between the two, and what to tell about it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ctrlmesh_contract::signature::{PublicKeys, SigningKey};
use ctrlmesh_contract::{Chain, Digest, Entry};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;

use super::carried::Packed;
use super::fleet::{Fleet, Sidecar};
use super::poll::Poller;
use super::read::Documents;
use super::stored::Stored;
use super::wanted::{self, Wanted};
use super::world::World;
use super::{report, slots, write};
use crate::built_in::BuiltIn;
use crate::compile::Refused;
use crate::context::Context;
use crate::error::Error;
use crate::hand_over::{self, Claims};

/// Until sidecars that have not acknowledged are asked again.
const SOON: Duration = Duration::from_millis(150);

/// What every pass needs.
pub(super) struct Distributor {
    pub(super) context: Context,
    pub(super) world: World,
    pub(super) key: SigningKey,
    pub(super) poller: Poller,
    pub(super) built_in: BTreeMap<BuiltIn, Packed>,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is known of a namespace besides what lies in the cluster. Whatever is lost with it is found out again.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// The chain that was written last, for a ConfigMap that somebody spoils.
    last: Option<(Chain, Claims)>,
    /// Since when pods run the chain with this digest, and nothing before it.
    quiet: BTreeMap<String, (Digest, Instant)>,
    /// Highest generation that any sidecar has spoken of.
    generation: u64,
    /// Whether everything was enforced at the last look.
    pub(super) is_enforced: bool,
}

/// What is to be done.
pub(super) struct Next {
    pub(super) chain: Chain,
    pub(super) claims: Claims,
    pub(super) waiting: BTreeMap<String, BTreeSet<String>>,
    /// Objects that make no sense.
    pub(super) refused: Vec<Refused>,
    /// Why the chain stays as it was.
    pub(super) withheld: Option<(&'static str, String)>,
}

impl Distributor {
    pub(super) fn new(context: Context, world: World, key: SigningKey) -> reqwest::Result<Self> {
        Ok(Self {
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
        let fleet = self.look(&namespace, &stored, &mut memory).await;
        let next = self.next(&namespace, &objects, &stored, &fleet, &memory);
        let is_written = self.write(&stored, &next, &fleet).await?;
        memory.last = Some((next.chain.clone(), next.claims.clone()));
        let is_clean = self.clean(&stored, &next, &fleet, is_written).await?;
        memory.is_enforced = report::report(self, &namespace, &objects, &next, &fleet).await && !is_written && is_clean;
        let is_settled = memory.is_enforced && next.waiting.is_empty();
        self.remember(&namespace, memory);
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
            quiet: BTreeSet::new(),
        };
        let said = fleet.answers.values().filter_map(|answer| match answer {
            super::fleet::Answer::Status(status) => Some(status.chain.generation),
            super::fleet::Answer::None(_) => None,
        });
        memory.generation = said.max().unwrap_or_default().max(memory.generation);
        let Some(chain) = &stored.chain else { return fleet };
        let (digest, now) = (Digest::of(chain.to_json().as_bytes()), Instant::now());
        let settle = Duration::from_millis(self.context.args.settle_ms);
        let mut quiet = BTreeMap::new();
        for sidecar in &fleet.sidecars {
            if !fleet.is_at(sidecar, &chain.entries) {
                continue;
            }
            let since = memory.quiet.get(&sidecar.pod).filter(|(at, _)| *at == digest);
            quiet.insert(sidecar.pod.clone(), (digest, since.map_or(now, |(_, since)| *since)));
        }
        let is_settled = |(_, (_, since)): &(&String, &(Digest, Instant))| now.duration_since(*since) >= settle;
        fleet.quiet = quiet.iter().filter(is_settled).map(|(pod, _)| pod.clone()).collect();
        memory.quiet = quiet;
        fleet
    }

    /// The next chain.
    fn next(&self, namespace: &str, objects: &Documents, stored: &Stored, fleet: &Fleet, memory: &Memory) -> Next {
        let (last, claims) = match &stored.chain {
            Some(chain) => (Some(chain.clone()), stored.claims.clone()),
            None => memory
                .last
                .clone()
                .map_or((None, Claims::new()), |(chain, claims)| (Some(chain), claims)),
        };
        let highest = memory.generation.max(last.as_ref().map_or(0, |chain| chain.generation));
        let chain = |generation, entries| Chain {
            namespace: namespace.to_owned(),
            generation,
            entries,
        };
        let stay = |withheld| Next {
            chain: last.clone().unwrap_or_else(|| chain(highest.max(1), Vec::new())),
            claims: claims.clone(),
            waiting: BTreeMap::new(),
            refused: Vec::new(),
            withheld,
        };
        let wanted = match wanted::wanted(namespace, objects, last.as_ref(), &self.resolved(objects)) {
            Ok(wanted) => wanted,
            Err(error) => return stay(Some(("TooLarge", error.to_string()))),
        };
        let Wanted {
            entries: wanted,
            refused,
        } = wanted;
        let empty: Vec<Entry> = Vec::new();
        let before = last.as_ref().map_or(&empty, |chain| &chain.entries);
        let plan = hand_over::plan(before, &claims, &wanted, fleet);
        if last
            .as_ref()
            .is_some_and(|last| wanted::is_same(&last.entries, &plan.entries))
        {
            return Next {
                waiting: plan.waiting,
                refused,
                ..stay(None)
            };
        }
        let next = chain(highest + 1, plan.entries);
        match wanted::check(&next) {
            Ok(()) => Next {
                chain: next,
                claims: plan.claims,
                waiting: plan.waiting,
                refused,
                withheld: None,
            },
            Err(error) => Next {
                refused,
                ..stay(Some(("TooLarge", error.to_string())))
            },
        }
    }

    /// Writes what is not as it should be: plugins first, then the chain, then pods are told. Whether the chain was written.
    async fn write(&self, stored: &Stored, next: &Next, fleet: &Fleet) -> Result<bool, Error> {
        let (client, namespace) = (&self.context.client, &next.chain.namespace);
        let before = stored
            .chain
            .as_ref()
            .map(|chain| chain.entries.as_slice())
            .unwrap_or_default();
        self.write_slots(stored, next, before).await?;
        if stored.chain.as_ref() == Some(&next.chain) {
            return Ok(false);
        }
        write::chain(client, &next.chain, &next.claims, &self.key, stored.version.as_deref()).await?;
        self.context.metrics.distribution.written.inc();
        tracing::info!(%namespace, generation = next.chain.generation, entries = next.chain.entries.len(), "chain written");
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
        write::bump(client, namespace, &pods, next.chain.generation).await?;
        Ok(true)
    }

    /// Takes out what no sidecar runs any more, once all of them run the chain. Whether there is nothing left to take out.
    async fn clean(&self, stored: &Stored, next: &Next, fleet: &Fleet, is_written: bool) -> Result<bool, Error> {
        let is_everywhere = |sidecar: &Sidecar| fleet.is_at(sidecar, &next.chain.entries);
        if is_written || !fleet.sidecars.iter().all(is_everywhere) {
            return Ok(!is_written);
        }
        self.write_slots(stored, next, &[]).await?;
        Ok(true)
    }

    async fn write_slots(&self, stored: &Stored, next: &Next, before: &[Entry]) -> Result<(), Error> {
        let known = self.known();
        let sizes: BTreeMap<Digest, usize> = known
            .iter()
            .map(|(digest, packed)| (*digest, packed.bytes.len()))
            .collect();
        let now = stored.slots(&sizes);
        let digests = next.chain.entries.iter().map(|entry| entry.plugin);
        let lying: BTreeSet<Digest> = now.iter().flat_map(|slot| slot.keys().copied()).collect();
        let needed = digests.filter_map(|digest| {
            let size = sizes.get(&digest).copied();
            Some((digest, size.or_else(|| lying.contains(&digest).then_some(0))?))
        });
        // Without a last chain that we know of, what lies there may be in use.
        let in_use = if stored.chain.is_some() {
            before.iter().map(|entry| entry.plugin).collect()
        } else {
            lying.clone()
        };
        let wanted = slots::place(&now, &needed.collect(), &in_use).map_err(Error::NoRoom)?;
        for (number, plugins) in wanted.iter().enumerate() {
            let digests: BTreeSet<Digest> = plugins.keys().copied().collect();
            if stored.is_slot(number, &digests, &known) {
                continue;
            }
            let bytes = |digest: &Digest| known.get(digest).map(|packed| packed.bytes.to_vec());
            let plugins = digests.iter().map(|digest| (*digest, bytes(digest))).collect();
            write::slot(&self.context.client, &next.chain.namespace, number, plugins).await?;
        }
        Ok(())
    }

    /// Every plugin whose bytes are here.
    fn known(&self) -> BTreeMap<Digest, Packed> {
        let built_in = self.built_in.values();
        built_in.map(|packed| (packed.digest, packed.clone())).collect()
    }

    /// What plugins are.
    fn resolved(&self, _objects: &Documents) -> crate::Resolved {
        let built_in = self.built_in.iter();
        crate::Resolved {
            built_in: built_in.map(|(plugin, packed)| (*plugin, packed.digest)).collect(),
            own: BTreeMap::new(),
        }
    }
}
