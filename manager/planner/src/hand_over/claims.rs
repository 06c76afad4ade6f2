//! Claims: what pods may still show in addition to the last chain's view. They also tell when a deleted shard may be released.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ctrlmesh_contract::{Entry, LabelSelector};
use ctrlmesh_manager_api::sharding_config::Limit;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::limits::{are_of_unbegun_shard, hide_everything_named};
use super::restart_policy::Evict;
use super::settle::{self, SettleTimes, StoredTimes};
use super::shard::{Shard, limits_of};
use super::teardown::{Teardown, Teardowns, all_pods};
use super::{FleetState, Pod, is_of_shard, pods, shard_of};

/// Maximum claims of a shard. Beyond, the shard is assumed to see everything.
const MAX_CLAIMS: usize = 8;
/// Maximum size of all claims as JSON, because they are stored beside a chain.
const MAX_BYTES: usize = 128 * 1024;
/// Maximum pods that a claim names. If there are more, only the selector is remembered.
const MAX_PODS: usize = 256;

/// Stored with a chain. Without it, a manager that takes over would give away objects that pods may still show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Claims {
    /// Views that pods may show in addition to their entry, by the entry's name.
    shown: BTreeMap<String, Vec<Claim>>,
    /// The limits that an entry is meant to have, by name, where it shows less for now.
    #[serde(rename = "wanted", skip_serializing_if = "BTreeMap::is_empty")]
    desired: BTreeMap<String, Vec<Limit>>,
    /// Teardowns of controllers, by lock.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) teardowns: Teardowns,
    /// Settle times of shards.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    settle: StoredTimes,
}

/// An earlier view of a shard's entry, and the pods that may still have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claim {
    /// The pods as a label selector in JSON. `None`: only the pods in `named`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pods: Option<Value>,
    /// UIDs of pods that ran it, even if their labels have changed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) named: BTreeSet<String>,
    /// The controller's lock. Shards of one controller have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lock: Option<String>,
    /// The shard; `None`: pods that are in no shard yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<String>,
    /// Limits of the view. Empty: the pods see everything.
    pub(super) limits: Vec<Limit>,
    /// A later entry of the pods names another lock. A pod that led by this one may not have noticed yet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) leads: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// A claim that some pods have now.
#[derive(Debug)]
pub(super) struct HeldClaim {
    pub(super) name: String,
    pub(super) claim: Claim,
    /// The claim is the last chain's own view, so quiet pods have it too.
    pub(super) is_of_last_chain: bool,
}

impl Claim {
    fn from_shard(shard: &Shard) -> Self {
        Self {
            pods: Some(json!(shard.all_pods())),
            named: BTreeSet::new(),
            lock: shard.lock.clone(),
            shard: shard.name.clone(),
            limits: shard.limits.clone(),
            leads: false,
        }
    }

    /// Whether two claims differ in the named pods at most.
    fn is_like(&self, other: &Self) -> bool {
        let key = |claim: &Self| (claim.pods.clone(), claim.lock.clone(), claim.shard.clone());
        key(self) == key(other) && self.limits == other.limits && self.leads == other.leads
    }

    /// Whether the pod has the claim, and may still show its view.
    fn may_be_shown_by(&self, pod: &Pod<'_>) -> bool {
        !pod.is_blank && !pod.is_quiet && self.is_of_pod(pod)
    }

    /// Whether the pod has the claim, and may still show its view or lead by its lock.
    fn may_be_used_by(&self, pod: &Pod<'_>) -> bool {
        let may_lead = self.leads && pod.may_lead && !pod.is_blank && self.is_of_pod(pod);
        may_lead || self.may_be_shown_by(pod)
    }

    fn is_of_pod(&self, pod: &Pod<'_>) -> bool {
        self.names_or_selects(pod.uid, pod.labels)
    }

    fn names_or_selects(&self, uid: &str, labels: &BTreeMap<String, String>) -> bool {
        self.named.contains(uid) || self.selector().is_some_and(|pods| pods.matches(labels))
    }

    fn selector(&self) -> Option<LabelSelector> {
        // An unreadable selector is taken to select every pod.
        self.pods
            .as_ref()
            .map(|pods| pods::read_selector(pods).unwrap_or_default())
    }
}

impl HeldClaim {
    /// The pods that may show the claim's view, or lead by its lock.
    pub(super) fn pods<'f>(&self, fleet: &'f impl FleetState) -> Vec<Pod<'f>> {
        let shows = |pod: &Pod<'f>| {
            let has_view = self.is_of_last_chain && !pod.is_blank && self.claim.is_of_pod(pod);
            has_view || self.claim.may_be_used_by(pod)
        };
        fleet.pods().filter(shows).collect()
    }

    /// Whether these shards give a pod with this claim another lock. Another pod may then get the new lock before the one that led
    /// by the old lock notices.
    pub(super) fn is_renamed<'a>(&self, pod: &Pod<'_>, shards: impl Iterator<Item = &'a Shard>) -> bool {
        let claim = &self.claim;
        let own = shards.filter(|shard| shard.lock == claim.lock && shard.all_pods().matches(pod.labels));
        let mut names = own.map(|shard| &shard.name).peekable();
        claim.lock.is_some() && names.peek().is_some() && names.all(|name| *name != claim.shard)
    }
}

impl Claims {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.desired.is_empty() && self.teardowns.is_empty() && self.settle.is_empty()
    }

    /// Settle times of the shards whose objects a pod may show. `None` is the default. `entries` are the last chain's; times of these
    /// are left out if they are the default.
    pub fn settle_times(
        &self,
        uid: &str,
        labels: &BTreeMap<String, String>,
        entries: &[Entry],
    ) -> impl Iterator<Item = Option<Duration>> {
        let is_its = |claims: &Vec<Claim>| claims.iter().any(|claim| claim.names_or_selects(uid, labels));
        let claimed = self.shown.iter().filter(move |(_, claims)| is_its(claims));
        let claimed = claimed.map(|(name, _)| settle::stored_time(&self.settle, name));
        let own = entries.iter().filter(|entry| entry.pod_selector.matches(labels));
        let own = own.filter_map(|entry| settle::stored_time(&self.settle, &entry.name));
        claimed.chain(own.map(Some))
    }

    /// The teardown of the controller to which one of these entries belongs.
    #[must_use]
    pub fn teardown_of(&self, entry: &str, entries: &[Entry]) -> Option<&Teardown> {
        let has_lock = |lock: &str| {
            let mut own = entries.iter().filter(|own| own.name == entry);
            own.any(|own| super::lock_of(own) == Some(lock))
        };
        let mut all = self.teardowns.iter();
        let found =
            all.find(|(lock, teardown)| teardown.is_of(entry) || teardown.is_last_stage_of(entry) || has_lock(lock));
        found.map(|(_, teardown)| teardown)
    }

    /// Remembers the limits that these entries are meant to have, whatever they show until then.
    pub fn set_targets(&mut self, entries: &[Entry]) {
        let begun = entries.iter().filter(|entry| !super::is_unbegun(entry));
        self.desired
            .extend(begun.map(|entry| (entry.name.clone(), limits_of(entry.settings.value()))));
    }

    /// Whether these claims include all claims of `others`, and have the same targets, teardowns and settle times.
    #[must_use]
    pub fn cover(&self, others: &Self) -> bool {
        let is_known = |name: &String, claim: &Claim| {
            let mut own = self.shown.get(name).into_iter().flatten();
            own.any(|own| own.is_like(claim) && own.named.is_superset(&claim.named))
        };
        let mut shown = others.shown.iter();
        let is_same =
            self.desired == others.desired && self.teardowns == others.teardowns && self.settle == others.settle;
        is_same && shown.all(|(name, claims)| claims.iter().all(|claim| is_known(name, claim)))
    }

    /// Whether no pod shows anything that is remembered, and nothing else is to be remembered.
    #[must_use]
    pub fn are_over(&self, fleet: &impl FleetState) -> bool {
        let mut claims = self.shown.values().flatten();
        self.desired.is_empty()
            && self.teardowns.is_empty()
            && claims.all(|claim| !fleet.pods().any(|pod| claim.may_be_used_by(&pod)))
    }

    /// Whether a pod that is not given up may still show an earlier view of such an entry.
    pub(super) fn are_held(&self, is_such: impl Fn(&str) -> bool, fleet: &impl FleetState) -> bool {
        let mut such = self
            .shown
            .iter()
            .filter(|(name, _)| is_such(name))
            .flat_map(|(_, claims)| claims);
        such.any(|claim| fleet.pods().any(|pod| !pod.is_given_up && claim.may_be_shown_by(&pod)))
    }

    /// Locks of shards that had begun, if pods may still show earlier views of them.
    pub fn locks<'a>(&'a self, fleet: &impl FleetState) -> impl Iterator<Item = &'a str> {
        // Merged claims do not say whether a shard had begun.
        let is_known = |claim: &&Claim| claim.shard.is_some() && !claim.limits.is_empty();
        let known = self.shown.values().flatten().filter(is_known);
        let begun = known.filter(|claim| !are_of_unbegun_shard(&claim.limits));
        let shown = begun.filter(move |claim| fleet.pods().any(|pod| claim.may_be_shown_by(&pod)));
        shown.filter_map(|claim| claim.lock.as_deref())
    }

    /// The entries with the limits that they are meant to have. An object that is refused meanwhile keeps these.
    #[must_use]
    pub fn with_target_limits(&self, entries: &[Entry]) -> Vec<Entry> {
        let with_target = |entry: &Entry| {
            let Some(limits) = self.desired.get(&entry.name) else {
                return entry.clone();
            };
            super::shard::entry_with_limits(entry, limits, false)
        };
        entries.iter().map(with_target).collect()
    }

    /// All views that pods may have now: those of the last chain, those of pods that no entry selects, and earlier claims of pods
    /// that are not quiet.
    pub(super) fn possible_views(
        &self,
        before: &BTreeMap<&str, Shard>,
        desired: &[Entry],
        fleet: &impl FleetState,
    ) -> Vec<HeldClaim> {
        let mut possible = Vec::new();
        for (name, claim) in self
            .shown
            .iter()
            .flat_map(|(name, claims)| claims.iter().map(move |claim| (name, claim)))
        {
            let held = HeldClaim {
                name: name.clone(),
                claim: claim.clone(),
                is_of_last_chain: false,
            };
            // Only what is still true, because claims would grow without end.
            let alive = held.pods(fleet);
            if alive.is_empty() {
                continue;
            }
            let named = claim
                .named
                .iter()
                .filter(|uid| alive.iter().any(|pod| pod.uid == **uid));
            let named = named.cloned().collect();
            let claim = Claim { named, ..held.claim };
            possible.push(HeldClaim { claim, ..held });
        }
        for (name, shard) in before {
            let claim = Claim::from_shard(shard);
            let ran =
                |pod: &Pod<'_>| !pod.is_blank && (claim.is_of_pod(pod) || !pod.is_quiet && pod.running.contains(*name));
            let named = limit_named_pods(fleet.pods().filter(ran).map(|pod| pod.uid.to_owned()).collect());
            possible.push(HeldClaim {
                name: (*name).to_owned(),
                claim: Claim { named, ..claim },
                is_of_last_chain: true,
            });
        }
        possible.extend(without_shard(before, desired, fleet));
        possible
    }

    /// The claims to store with the new entries: the possible views that the entries do not have themselves.
    pub(super) fn from_possible_views(
        entries: &[Entry],
        desired: &[Entry],
        possible: Vec<HeldClaim>,
        fleet: &impl FleetState,
    ) -> Self {
        let now: BTreeMap<&str, Shard> = entries.iter().filter_map(Shard::from_entry).collect();
        let mut shown: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
        for held in possible {
            let is_in_entry = now.get(held.name.as_str()).is_some_and(|shard| {
                let is_own = |pod: &Pod<'_>| shard.all_pods().matches(pod.labels);
                Claim::from_shard(shard).is_like(&held.claim) && held.pods(fleet).iter().all(is_own)
            });
            if is_in_entry {
                continue;
            }
            let mut claim = held.claim.clone();
            let mut pods = held.pods(fleet).into_iter();
            claim.leads |= pods.any(|pod| held.is_renamed(&pod, now.values()));
            add_claim(shown.entry(held.name).or_default(), claim);
        }
        for claims in shown.values_mut().filter(|claims| claims.len() > MAX_CLAIMS) {
            merge_claims(claims);
        }
        if json!(shown).to_string().len() > MAX_BYTES {
            shown.values_mut().for_each(shorten_claims);
        }
        let target = |entry: &&Entry| {
            let planned = now.get(entry.name.as_str());
            planned.is_some_and(|planned| planned.limits != limits_of(entry.settings.value()))
        };
        let desired = desired.iter().filter(target);
        Self {
            shown,
            desired: desired
                .map(|entry| (entry.name.clone(), limits_of(entry.settings.value())))
                .collect(),
            teardowns: Teardowns::new(),
            settle: StoredTimes::new(),
        }
    }

    /// Remembers the settle times that count with these entries. `before`: the claims of the last chain.
    pub(super) fn record_settle_times(&mut self, before: &Self, times: SettleTimes<'_>, entries: &[Entry]) {
        self.settle = settle::next_times(&before.settle, times, entries, self.shown.keys());
    }
}

/// Whether a deleted shard may be released: its pods have acknowledged that they show nothing, or are gone, and none is to be evicted.
/// (The restart policy goes with the object, so nobody would evict the others.) The last shards of a controller stay until its teardown
/// has ended, because pods that no ShardingConfig selects get no sidecar, and pods must be replaced for it. `entries` are the last
/// chain's, `evict` is the plan's.
#[must_use]
pub fn is_released(entry: &str, entries: &[Entry], claims: &Claims, evict: &[Evict], fleet: &impl FleetState) -> bool {
    let is_stale = |pod: &Pod<'_>| {
        let mut own = evict.iter().filter(|evict| evict.entry == entry);
        own.any(|evict| evict.is_due(pod.uid, pod.labels))
    };
    if fleet.pods().any(|pod| is_stale(&pod)) {
        return false;
    }
    let is_its = |name: &str| shard_of(name) == shard_of(entry);
    let shows_nothing = |own: &Entry| {
        let is_empty = Shard::from_entry(own).is_none_or(|(_, shard)| hide_everything_named(&shard.limits));
        is_empty && fleet.is_settled(&all_pods(own))
    };
    let mut own = entries.iter().filter(|own| is_of_shard(&own.name) && is_its(&own.name));
    claims.teardown_of(entry, entries).is_none() && own.all(shows_nothing) && !claims.are_held(is_its, fleet)
}

/// Pods that are in no shard yet, but will be: they see everything. After a rollback of the chain, all pods may.
fn without_shard(
    before: &BTreeMap<&str, Shard>,
    desired: &[Entry],
    fleet: &impl FleetState,
) -> impl Iterator<Item = HeldClaim> {
    desired
        .iter()
        .filter_map(Shard::from_entry)
        .filter_map(move |(name, shard)| {
            let own = before.values().filter(|before| before.lock == shard.lock);
            let outside = |pod: &Pod<'_>| {
                !pod.is_blank
                    && shard.pods.matches(pod.labels)
                    && (fleet.is_rolled_back() || !own.clone().any(|before| before.pods.matches(pod.labels)))
            };
            let named: BTreeSet<String> = fleet.pods().filter(outside).map(|pod| pod.uid.to_owned()).collect();
            let is_some = !named.is_empty();
            let pods = (named.len() > MAX_PODS).then(|| json!(shard.all_pods()));
            is_some.then(|| HeldClaim {
                name: name.to_owned(),
                claim: Claim {
                    pods,
                    named: limit_named_pods(named),
                    lock: shard.lock.clone(),
                    shard: None,
                    limits: Vec::new(),
                    leads: false,
                },
                is_of_last_chain: true,
            })
        })
}

fn limit_named_pods(named: BTreeSet<String>) -> BTreeSet<String> {
    if named.len() > MAX_PODS { BTreeSet::new() } else { named }
}

fn add_claim(claims: &mut Vec<Claim>, claim: Claim) {
    match claims.iter_mut().find(|known| known.is_like(&claim)) {
        Some(known) => known.named = limit_named_pods(known.named.union(&claim.named).cloned().collect()),
        None => claims.push(claim),
    }
}

/// Shortens too large claims: one claim for each shard, without names of pods.
fn shorten_claims(claims: &mut Vec<Claim>) {
    merge_claims(claims);
    for claim in claims {
        claim.named.clear();
        claim.pods.get_or_insert_with(|| json!({}));
    }
}

/// Merges too many claims into one for each shard, which says that all pods of them may see everything.
fn merge_claims(claims: &mut Vec<Claim>) {
    let mut merged: Vec<Claim> = Vec::new();
    for claim in claims.drain(..) {
        let same = merged
            .iter_mut()
            .find(|known| (&known.lock, &known.shard) == (&claim.lock, &claim.shard));
        match same {
            Some(known) => {
                if known.pods != claim.pods {
                    known.pods = Some(json!({}));
                }
                known.named = limit_named_pods(known.named.union(&claim.named).cloned().collect());
                known.leads |= claim.leads;
            }
            None => merged.push(Claim {
                limits: Vec::new(),
                ..claim
            }),
        }
    }
    *claims = merged;
}
