//! One namespace, once: what is wanted, what is there, the next step between the two, and what to tell about it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::CHAIN_CONFIG_MAP;
use ctrlmesh_contract::signature::{PublicKeys, SigningKey};
use ctrlmesh_contract::{Chain, Digest};
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt as _;
use kube::runtime::controller::Action;
use kube::runtime::reflector::{ObjectRef, Store};

use super::builtin_plugins::PackedPlugin;
use super::caches::Caches;
use super::config_maps::StoredConfigMaps;
use super::decide::Reason;
use super::deliver::Written;
use super::fleet::{Fleet, Report, Sidecar};
use super::memory::{MAX_UNASKED, Memory};
use super::next_chain::planned;
use super::objects::CustomResources;
use super::overlap_grace::OverlapGrace;
use super::restarts::{self, RestartReasons};
use super::sidecar_poller::SidecarPoller;
use super::sidecar_support::{self, Unsupported};
use super::start_gate::BlockedShards;
use super::{deletion, desired, report, unreachable_pods, write};
use crate::built_in::BuiltIn;
use crate::compile::kept::{self, is_same};
use crate::compile::{Refused, Warned};
use crate::context::Context;
use crate::error::Error;
use crate::hand_over::{Claims, Plan};
use crate::oci::{Found, Plugins};

/// Until it is looked again whether our writes are seen, if no watch says so before.
const UNSEEN: Duration = Duration::from_millis(200);
/// Until it is looked again whether objects of a namespace that ends are released.
const RELEASING: Duration = Duration::from_secs(1);
/// Until it is looked again after pods that don't answer, and are not waited for for ever.
const SILENT: Duration = Duration::from_secs(1);
/// Until it is looked again whether the next pod can be made again.
const RESTARTING: Duration = Duration::from_millis(500);

/// What every pass needs.
pub(super) struct Distributor {
    pub(super) context: Context,
    pub(super) caches: Caches,
    pub(super) key: SigningKey,
    pub(super) poller: SidecarPoller,
    namespaces: Store<Namespace>,
    pub(super) built_in: BTreeMap<BuiltIn, PackedPlugin>,
    plugins: Plugins,
    memory: Mutex<HashMap<String, Memory>>,
}

/// What is to be done.
pub(super) struct Decision {
    pub(super) chain: Chain,
    pub(super) claims: Claims,
    /// What leads to it.
    pub(super) plan: Plan,
    /// Shards that would begin to share objects.
    pub(super) settling: OverlapGrace,
    /// Shards that have not begun, for there are pods without a sidecar.
    pub(super) blocked: BlockedShards,
    /// Why shards are not restarted yet.
    pub(super) restarting: RestartReasons,
    /// Objects that make no sense.
    pub(super) refused: Vec<Refused>,
    /// Objects that a person should know something of.
    pub(super) warned: Vec<Warned>,
    /// What the references of objects to plugins led to.
    pub(super) found: Found,
    /// Objects whose entries stay as they were, since sidecars can't run what they ask for.
    pub(super) unsupported: Unsupported,
    /// Why the chain stays as it was.
    pub(super) withheld: Option<Reason>,
    /// Entries of ShardingConfigs that were deleted and need not wait any longer.
    pub(super) released: BTreeSet<String>,
}

impl Decision {
    /// Nothing.
    fn staying(chain: Chain, claims: Claims, found: Found) -> Self {
        Self {
            chain,
            claims,
            found,
            plan: Plan::default(),
            settling: OverlapGrace::default(),
            blocked: BlockedShards::new(),
            restarting: RestartReasons::new(),
            refused: Vec::new(),
            warned: Vec::new(),
            unsupported: Unsupported::default(),
            withheld: None,
            released: BTreeSet::new(),
        }
    }

    /// When to look again, whoever has done something by then.
    fn again(&self, memory: &Memory) -> Option<Duration> {
        let plan = &self.plan;
        let is_restarting = !(plan.preparing.is_empty() && plan.hold.is_empty() && plan.evict.is_empty());
        let all = [
            is_restarting.then_some(RESTARTING),
            memory.start_gate.again(Instant::now()),
            self.settling.again(),
        ];
        all.into_iter().flatten().min()
    }
}

impl Distributor {
    pub(super) fn new(
        context: Context,
        caches: Caches,
        namespaces: Store<Namespace>,
        key: SigningKey,
        plugins: Plugins,
        poller: SidecarPoller,
    ) -> Self {
        Self {
            plugins,
            poller,
            namespaces,
            built_in: super::builtin_plugins::builtin_plugins(),
            memory: Mutex::default(),
            context,
            caches,
            key,
        }
    }

    fn memories(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self, namespace: &str) -> Memory {
        self.memories().get(namespace).cloned().unwrap_or_default()
    }

    fn remember(&self, namespace: &str, memory: Memory) {
        let mut all = self.memories();
        all.insert(namespace.to_owned(), memory);
        let gauges = all.values().map(|memory| &memory.gauges);
        let metrics = &self.context.metrics.distribution;
        metrics.show(gauges, &self.caches.unseen());
    }

    /// Forgets namespaces that are gone.
    fn forget_gone(&self) {
        let is_there = |name: &str| self.namespaces.get(&ObjectRef::new(name)).is_some();
        self.memories().retain(|name, _| is_there(name));
        self.poller.retain(is_there);
    }

    /// How long the next pass waits after one that failed.
    pub(super) fn pause(&self, namespace: &str) -> Duration {
        self.memory(namespace).retry_delay()
    }

    /// Looks at a namespace.
    pub(super) async fn reconcile(&self, namespace: &Namespace) -> Result<Action, Error> {
        self.forget_gone();
        let is_ending = namespace.metadata.deletion_timestamp.is_some();
        let namespace = namespace.name_any();
        if is_ending {
            return Ok(self.release(&namespace).await);
        }
        let documents = self.caches.documents(&namespace);
        let keys = PublicKeys::from(self.key.public_key());
        let mut stored = StoredConfigMaps::of(&self.caches, &namespace, &keys);
        let mut memory = self.memory(&namespace);
        if documents.is_empty() && (stored.version.is_none() || stored.version == memory.idle_version) {
            self.poller.retain(|other| other != namespace);
            return Ok(Action::await_change());
        }
        let objects = CustomResources::of(documents, self.caches.unseen());
        if !memory.has_seen_writes(&self.caches, &namespace) {
            return Ok(Action::requeue(UNSEEN));
        }
        self.complete(&mut stored, &namespace, &keys, &memory).await?;
        let (mut fleet, settles) = self.observe(&namespace, &objects.sharding_configs, &stored, &mut memory);
        let is_patient = memory.is_patient(&mut fleet);
        if is_patient && fleet.is_first {
            // What generation sidecars have is not known yet; the next answer begins a pass.
            self.remember(&namespace, memory);
            return Ok(Action::requeue(MAX_UNASKED));
        }
        fleet.uninjected = self.uninjected(&namespace, &objects, &stored, &mut memory).await;
        let (next, written) = self.step(&namespace, &objects, &stored, &mut fleet, &mut memory).await;
        let is_idle = written.as_ref().is_ok_and(|done| !done.written && done.all_nudged);
        memory.idle_version = stored
            .version
            .clone()
            .filter(|_| is_idle && is_over(&objects, &next, &fleet));
        memory.update_gauges(&next, &fleet);
        let pauses = [
            settles,
            is_patient.then_some(MAX_UNASKED),
            (!memory.silent.is_empty()).then_some(SILENT),
            next.again(&memory),
            written
                .as_ref()
                .is_ok_and(|done| !done.all_nudged)
                .then(|| memory.retry_delay()),
            written.as_ref().ok().and_then(|done| done.again),
        ];
        self.remember(&namespace, memory);
        if !is_patient {
            report::report(self, &namespace, &objects, &next, &fleet).await;
        }
        written?;
        Ok(self.after(pauses.into_iter().flatten()))
    }

    /// Releases the objects of a namespace that is being deleted: they go before its pods do, which keep what they have to the
    /// end.
    async fn release(&self, namespace: &str) -> Action {
        self.poller.retain(|other| other != namespace);
        if deletion::release_all(self, namespace, &self.caches.documents(namespace)).await {
            Action::requeue(RELEASING)
        } else {
            Action::await_change()
        }
    }

    /// The next pass comes after the shortest of these pauses, or the longest that there is.
    fn after(&self, pauses: impl Iterator<Item = Duration>) -> Action {
        let longest = Duration::from_secs(self.context.args.poll_seconds);
        Action::requeue(pauses.fold(longest, Duration::min))
    }

    /// Looks for a chain where the watch has none, and leaves one aside that somebody has put back.
    async fn complete(
        &self,
        stored: &mut StoredConfigMaps,
        namespace: &str,
        keys: &PublicKeys,
        memory: &Memory,
    ) -> Result<(), Error> {
        if stored.version.is_none()
            && let Some(map) = write::chain_there(&self.context.client, namespace).await?
        {
            stored.take(&map, namespace, keys);
        }
        if let Some((last, _)) = &memory.last {
            stored.leave_older(last);
        }
        Ok(())
    }

    /// Plans the next chain, writes it, and makes pods anew that see it no other way.
    async fn step(
        &self,
        namespace: &str,
        objects: &CustomResources,
        stored: &StoredConfigMaps,
        fleet: &mut Fleet,
        memory: &mut Memory,
    ) -> (Decision, Result<Written, Error>) {
        let now = Instant::now();
        fleet.given_up = unreachable_pods::given_up(&memory.silent, fleet, &objects.sharding_configs, now);
        let mut next = self.next(namespace, objects, stored, fleet, memory);
        memory.overlaps.clone_from(&next.settling.since);
        memory.start_gate.note(&next.blocked, &next.chain.entries, now);
        memory.silent = unreachable_pods::silent(&memory.silent, &next.plan.awaited, fleet, now);
        let written = self.write(stored, &next, fleet, memory).await;
        match &written {
            Ok(_) => {
                memory.last = Some((next.chain.clone(), next.claims.clone()));
                memory.raised = fleet.is_rolled_back.then_some(now).or(memory.raised);
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => next.withheld = Some(Reason::new(write_failure(error), error.to_string())),
        }
        memory.count_failures(&written);
        // What a plan says of pods holds for the chain that lies there.
        if written.as_ref().is_ok_and(|done| !done.written) && next.withheld.is_none() {
            next.released = deletion::released(&next, objects, fleet);
            next.restarting = restarts::restart(self, &next, fleet, memory).await;
        }
        (next, written)
    }

    /// The next chain.
    fn next(
        &self,
        namespace: &str,
        objects: &CustomResources,
        stored: &StoredConfigMaps,
        fleet: &Fleet,
        memory: &Memory,
    ) -> Decision {
        let (last, claims) = match (&stored.chain, &memory.last) {
            (Some(chain), _) => (Some(chain.clone()), stored.claims.clone()),
            (None, Some((chain, claims))) => (Some(chain.clone()), claims.clone()),
            (None, None) => (None, Claims::default()),
        };
        let mut highest = memory.generation.max(last.as_ref().map_or(0, |chain| chain.generation));
        if fleet.is_rolled_back {
            highest = highest.saturating_add(1);
        }
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
        let mut next = Decision::staying(chain, claims, found);
        // What is on its way to something is kept as that.
        let meant = last.as_ref().map(|chain| Chain {
            entries: next.claims.meant(&chain.entries),
            ..chain.clone()
        });
        let wanted = match self.wanted(namespace, objects, meant.as_ref(), &next.found) {
            Ok(wanted) => wanted,
            Err(error) => {
                next.withheld = Some(why_not(&error));
                return next;
            }
        };
        (next.refused, next.warned) = (wanted.refused, wanted.warned);
        let meant = meant.map_or_else(Vec::new, |chain| chain.entries);
        let interfaces = self.interfaces(&next.found);
        let entries;
        (next.unsupported, entries) = Unsupported::held(wanted.entries, &meant, &interfaces, fleet);
        (next.settling, next.blocked, next.plan) = planned(&next, &meant, entries, objects, fleet, memory);
        let is_known = is_same(&next.chain.entries, &next.plan.entries) && next.claims.cover(&next.plan.claims);
        if last.is_none() || fleet.is_rolled_back || !is_known {
            let following = || self.following(stored, &next, last.as_ref(), highest);
            match sidecar_support::unreadable(fleet).map_or_else(following, Err) {
                Ok((chain, claims)) => (next.chain, next.claims) = (chain, claims),
                Err(why) => next.withheld = Some(why),
            }
        }
        next
    }

    /// What the objects ask for.
    fn wanted(
        &self,
        namespace: &str,
        objects: &CustomResources,
        meant: Option<&Chain>,
        found: &Found,
    ) -> Result<desired::Desired, ctrlmesh_contract::Error> {
        let keys = self.context.args.label_keys();
        desired::desired(namespace, objects, meant, &self.resolved(found), &keys)
    }

    /// The chain of the plan, if sidecars would take it, and ConfigMaps; if not, why not.
    fn following(
        &self,
        stored: &StoredConfigMaps,
        next: &Decision,
        last: Option<&Chain>,
        highest: u64,
    ) -> Result<(Chain, Claims), Reason> {
        let generation = kept::generation(last, highest, &next.plan.entries).ok_or_else(|| {
            let message = format!(
                "there is no generation after {highest}; delete ConfigMap {CHAIN_CONFIG_MAP} and restart the pods"
            );
            Reason::new("NoGeneration", message)
        })?;
        let chain = Chain {
            namespace: next.chain.namespace.clone(),
            generation,
            entries: next.plan.entries.clone(),
        };
        desired::check(&chain, &next.plan.claims).map_err(|error| why_not(&error))?;
        let placed = self.placed(stored, &chain, true, &next.found);
        placed.map_err(|error| Reason::new("NoRoom", error.to_string()))?;
        Ok((chain, next.plan.claims.clone()))
    }
}

/// There is nothing to run, and who runs something else can't be reached.
fn is_over(objects: &CustomResources, next: &Decision, fleet: &Fleet) -> bool {
    let is_empty = objects.stored.is_empty() && next.chain.entries.is_empty() && next.claims.are_over(fleet);
    let is_silent = |sidecar: &Sidecar| matches!(fleet.reports.get(&sidecar.pod), Some(Report::Unavailable(_)));
    let mut sidecars = fleet.sidecars.iter();
    is_empty && fleet.unasked.is_empty() && sidecars.all(|sidecar| is_silent(sidecar) || fleet.runs_chain(sidecar, &[]))
}

/// Reason code of a chain that was not written.
const fn write_failure(error: &Error) -> &'static str {
    match error {
        Error::NoRoom(_) => "NoRoom",
        _ => "WriteFailed",
    }
}

/// Why there is no chain.
fn why_not(error: &ctrlmesh_contract::Error) -> Reason {
    let code = match error {
        ctrlmesh_contract::Error::TooLarge { .. } => "TooLarge",
        _ => "InvalidChain",
    };
    Reason::new(code, error.to_string())
}
