//! Claims: what pods may still show in addition to what the last chain says.

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::{Entry, LabelSelector};
use ctrlmesh_manager_api::sharding_config::Limit;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::moves::is_nothing_yet;
use super::shard::{Shard, limits_of};
use super::teardown::{Teardown, Teardowns};
use super::{Fleet, Pod, pods};

/// Earlier limits that are remembered one by one. Beyond, the shard is taken to see everything.
const MAX_CLAIMS: usize = 8;
/// All claims together, as JSON: they lie beside a chain.
const MAX_BYTES: usize = 128 * 1024;
/// Pods that a claim names. Of more only the selector is remembered.
const MAX_PODS: usize = 256;

/// What is remembered with a chain: without it a manager that takes over would give away what pods may still show.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Claims {
    /// What pods may show besides what their entry says, by the entry's name.
    shown: BTreeMap<String, Vec<Claim>>,
    /// What entries shall show that show less for now, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    wanted: BTreeMap<String, Vec<Limit>>,
    /// Controllers whose shards are torn down, by their locks.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) teardowns: Teardowns,
}

/// What the entry of a shard said before, and which pods may still run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claim {
    /// The pods, as a label selector in text. `None`: those that are named, no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pods: Option<Value>,
    /// UIDs of pods that ran it, whatever their labels say since.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) named: BTreeSet<String>,
    /// The controller's lock: shards of one controller have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lock: Option<String>,
    /// The shard; `None`: pods that are in none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shard: Option<String>,
    /// What they see. Empty: everything.
    pub(super) limits: Vec<Limit>,
    /// They have been told to ask for another lock since. Who led by this one may not know yet that it leads no more.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) leads: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// A claim that some pods have now.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) name: String,
    pub(super) claim: Claim,
    /// It is what the last chain says: also of pods that are quiet.
    pub(super) is_said: bool,
}

impl Claim {
    fn of(shard: &Shard) -> Self {
        Self {
            pods: Some(json!(shard.all_pods())),
            named: BTreeSet::new(),
            lock: shard.lock.clone(),
            shard: shard.name.clone(),
            limits: shard.limits.clone(),
            leads: false,
        }
    }

    /// Whether two are of the same pods and the same view, but for the pods that are named.
    fn is_like(&self, other: &Self) -> bool {
        let key = |claim: &Self| (claim.pods.clone(), claim.lock.clone(), claim.shard.clone());
        key(self) == key(other) && self.limits == other.limits && self.leads == other.leads
    }

    /// Whether a pod that is not known to show something else has it.
    fn may_be_shown(&self, pod: &Pod<'_>) -> bool {
        !pod.is_blank && !pod.is_quiet && self.has(pod)
    }

    /// Whether a pod that has it may show it, or lead by its lock.
    fn is_alive(&self, pod: &Pod<'_>) -> bool {
        let may_lead = self.leads && pod.may_lead && !pod.is_blank && self.has(pod);
        may_lead || self.may_be_shown(pod)
    }

    fn has(&self, pod: &Pod<'_>) -> bool {
        self.named.contains(pod.uid) || self.selector().is_some_and(|pods| pods.matches(pod.labels))
    }

    fn selector(&self) -> Option<LabelSelector> {
        // What can't be read may be anybody.
        self.pods.as_ref().map(|pods| pods::read(pods).unwrap_or_default())
    }
}

impl Held {
    /// The pods that may show it, or lead by its lock.
    pub(super) fn pods<'f>(&self, fleet: &'f impl Fleet) -> Vec<Pod<'f>> {
        let shows = |pod: &Pod<'f>| {
            let is_said = self.is_said && !pod.is_blank && self.claim.has(pod);
            is_said || self.claim.is_alive(pod)
        };
        fleet.pods().filter(shows).collect()
    }

    /// Whether a pod that has the claim is told by these shards to ask for another lock. One of the new lock's pods may get it before
    /// who led by the old one knows.
    pub(super) fn is_renamed<'a>(&self, pod: &Pod<'_>, shards: impl Iterator<Item = &'a Shard>) -> bool {
        let claim = &self.claim;
        let own = shards.filter(|shard| shard.lock == claim.lock && shard.all_pods().matches(pod.labels));
        let mut names = own.map(|shard| &shard.name).peekable();
        claim.lock.is_some() && names.peek().is_some() && names.all(|name| *name != claim.shard)
    }
}

impl Claims {
    /// Whether there is nothing to remember.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.wanted.is_empty() && self.teardowns.is_empty()
    }

    /// The teardown of the shards of this entry's controller, if it is the one that gets everything.
    #[must_use]
    pub fn teardown_of(&self, successor: &str) -> Option<&Teardown> {
        self.teardowns.values().find(|teardown| teardown.is_of(successor))
    }

    /// Notes what these entries shall show in the end, whatever they show until then.
    pub fn aim(&mut self, entries: &[Entry]) {
        let aims = entries.iter().filter(|entry| !super::is_waiting(entry));
        self.wanted
            .extend(aims.map(|entry| (entry.name.clone(), limits_of(entry.settings.value()))));
    }

    /// Whether all that others say that pods may show is remembered here, too, and that entries shall show what others say.
    #[must_use]
    pub fn cover(&self, others: &Self) -> bool {
        let is_known = |name: &String, claim: &Claim| {
            let mut own = self.shown.get(name).into_iter().flatten();
            own.any(|own| own.is_like(claim) && own.named.is_superset(&claim.named))
        };
        let mut shown = others.shown.iter();
        let is_said = self.wanted == others.wanted && self.teardowns == others.teardowns;
        is_said && shown.all(|(name, claims)| claims.iter().all(|claim| is_known(name, claim)))
    }

    /// Whether no pod shows anything that is remembered.
    #[must_use]
    pub fn are_over(&self, fleet: &impl Fleet) -> bool {
        let mut claims = self.shown.values().flatten();
        self.wanted.is_empty()
            && self.teardowns.is_empty()
            && claims.all(|claim| !fleet.pods().any(|pod| claim.is_alive(&pod)))
    }

    /// Whether a pod may still show what is remembered of entries with such a name.
    pub(super) fn are_held(&self, is_such: impl Fn(&str) -> bool, fleet: &impl Fleet) -> bool {
        let mut such = self
            .shown
            .iter()
            .filter(|(name, _)| is_such(name))
            .flat_map(|(_, claims)| claims);
        such.any(|claim| fleet.pods().any(|pod| !pod.is_given_up && claim.may_be_shown(&pod)))
    }

    /// Locks of shards that had begun, and of which pods may still show what the last chain does not say any more.
    pub fn locks<'a>(&'a self, fleet: &impl Fleet) -> impl Iterator<Item = &'a str> {
        // Of claims that were too many it is not known.
        let is_known = |claim: &&Claim| claim.shard.is_some() && !claim.limits.is_empty();
        let known = self.shown.values().flatten().filter(is_known);
        let begun = known.filter(|claim| !is_nothing_yet(&claim.limits));
        let shown = begun.filter(move |claim| fleet.pods().any(|pod| claim.may_be_shown(&pod)));
        shown.filter_map(|claim| claim.lock.as_deref())
    }

    /// The entries, with what they shall show in the end: what an object keeps that is refused meanwhile.
    #[must_use]
    pub fn meant(&self, entries: &[Entry]) -> Vec<Entry> {
        let meant = |entry: &Entry| {
            let Some(limits) = self.wanted.get(&entry.name) else {
                return entry.clone();
            };
            super::shard::with(entry, limits, false)
        };
        entries.iter().map(meant).collect()
    }

    /// All that pods may show now: what the last chain says, what it says not to pods that no entry selects, and earlier claims of
    /// pods that are not quiet.
    pub(super) fn possible(&self, before: &BTreeMap<&str, Shard>, wanted: &[Entry], fleet: &impl Fleet) -> Vec<Held> {
        let mut possible = Vec::new();
        for (name, claim) in self
            .shown
            .iter()
            .flat_map(|(name, claims)| claims.iter().map(move |claim| (name, claim)))
        {
            let held = Held {
                name: name.clone(),
                claim: claim.clone(),
                is_said: false,
            };
            // No more than is still true: it would only grow.
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
            possible.push(Held { claim, ..held });
        }
        for (name, shard) in before {
            let claim = Claim::of(shard);
            let ran = |pod: &Pod<'_>| !pod.is_blank && (claim.has(pod) || !pod.is_quiet && pod.running.contains(*name));
            let named = limited(fleet.pods().filter(ran).map(|pod| pod.uid.to_owned()).collect());
            possible.push(Held {
                name: (*name).to_owned(),
                claim: Claim { named, ..claim },
                is_said: true,
            });
        }
        possible.extend(without_shard(before, wanted, fleet));
        possible
    }

    /// What is to be remembered with the new entries: of what is possible, that which they do not say themselves.
    pub(super) fn remembered(entries: &[Entry], wanted: &[Entry], possible: Vec<Held>, fleet: &impl Fleet) -> Self {
        let now: BTreeMap<&str, Shard> = entries.iter().filter_map(Shard::of).collect();
        let mut shown: BTreeMap<String, Vec<Claim>> = BTreeMap::new();
        for held in possible {
            let is_said = now.get(held.name.as_str()).is_some_and(|shard| {
                let is_own = |pod: &Pod<'_>| shard.all_pods().matches(pod.labels);
                Claim::of(shard).is_like(&held.claim) && held.pods(fleet).iter().all(is_own)
            });
            if is_said {
                continue;
            }
            let mut claim = held.claim.clone();
            let mut pods = held.pods(fleet).into_iter();
            claim.leads |= pods.any(|pod| held.is_renamed(&pod, now.values()));
            push(shown.entry(held.name).or_default(), claim);
        }
        for claims in shown.values_mut().filter(|claims| claims.len() > MAX_CLAIMS) {
            merge(claims);
        }
        if json!(shown).to_string().len() > MAX_BYTES {
            shown.values_mut().for_each(shorten);
        }
        let target = |entry: &&Entry| {
            let planned = now.get(entry.name.as_str());
            planned.is_some_and(|planned| planned.limits != limits_of(entry.settings.value()))
        };
        let wanted = wanted.iter().filter(target);
        Self {
            shown,
            wanted: wanted
                .map(|entry| (entry.name.clone(), limits_of(entry.settings.value())))
                .collect(),
            teardowns: Teardowns::new(),
        }
    }
}

/// Pods that are in no shard, and shall be: they see everything. So may all, if the last chain is not the last one.
fn without_shard(before: &BTreeMap<&str, Shard>, wanted: &[Entry], fleet: &impl Fleet) -> impl Iterator<Item = Held> {
    wanted.iter().filter_map(Shard::of).filter_map(move |(name, shard)| {
        let own = before.values().filter(|before| before.lock == shard.lock);
        let outside = |pod: &Pod<'_>| {
            !pod.is_blank
                && shard.pods.matches(pod.labels)
                && (fleet.is_rolled_back() || !own.clone().any(|before| before.pods.matches(pod.labels)))
        };
        let named: BTreeSet<String> = fleet.pods().filter(outside).map(|pod| pod.uid.to_owned()).collect();
        let is_some = !named.is_empty();
        let pods = (named.len() > MAX_PODS).then(|| json!(shard.all_pods()));
        is_some.then(|| Held {
            name: name.to_owned(),
            claim: Claim {
                pods,
                named: limited(named),
                lock: shard.lock.clone(),
                shard: None,
                limits: Vec::new(),
                leads: false,
            },
            is_said: true,
        })
    })
}

fn limited(named: BTreeSet<String>) -> BTreeSet<String> {
    if named.len() > MAX_PODS { BTreeSet::new() } else { named }
}

fn push(claims: &mut Vec<Claim>, claim: Claim) {
    match claims.iter_mut().find(|known| known.is_like(&claim)) {
        Some(known) => known.named = limited(known.named.union(&claim.named).cloned().collect()),
        None => claims.push(claim),
    }
}

/// Too much is remembered as one claim for each shard, without names.
fn shorten(claims: &mut Vec<Claim>) {
    merge(claims);
    for claim in claims {
        claim.named.clear();
        claim.pods.get_or_insert_with(|| json!({}));
    }
}

/// Too many are remembered as one for each shard: everything, by anybody who had any of them.
fn merge(claims: &mut Vec<Claim>) {
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
                known.named = limited(known.named.union(&claim.named).cloned().collect());
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
