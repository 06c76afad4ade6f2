//! How objects change shards: who loses them narrows first, and only when its sidecars have acknowledged that does who gains
//! them widen. An object has one owner at most at any time.
//!
//! Guarantees:
//! - Pure. The next chain follows from the last one, from what sidecars may still run of the ones before it ([`Claims`]), and
//!   from who is quiet. A manager that takes over needs nothing else.
//! - No shard sees more than it shall in the end, nor more than it sees already, as long as somebody else may see it.
//! - What is not given away is never withheld: shards that keep their objects are left alone.
//! - Who can't be reached is waited for, unless the policy of its shard says that it was waited for long enough.
//! - Of a shard with `reshard: Restart`, no pod sees a change while it runs ([`restart`]).
//!
//! Only objects that move are guarded. If two ShardingConfigs overlap in the end, [`crate::overlap()`] says so.

mod moves;
mod pods;
pub mod restart;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ctrlmesh_contract::{Entry, LabelSelector, Settings};
use restart::{Evict, Hold};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::sharding_config::Limit;
use crate::built_in::BuiltIn;

/// What sidecars of a shard may still let through besides what its entry says, by the entry's name.
pub type Claims = BTreeMap<String, Vec<Claim>>;

/// What the entry of a shard said before, and which pods may still run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The pods, as a label selector in text.
    pods: Value,
    /// The controller's lock: shards of one controller have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lock: Option<String>,
    /// What they see. Empty: everything.
    limits: Vec<Limit>,
}

/// Earlier limits that are remembered one by one. Beyond, the shard is taken to see everything.
const MAX_CLAIMS: usize = 8;

/// The shard-selector setting that makes lists no older than the moment they begin: the first list of what is gained has to
/// show the last writes of who had it.
const CONSISTENT_READS: &str = "consistentReads";

/// What is known of the pods of a namespace.
pub trait Fleet {
    /// Whether there is a pod that these labels select.
    fn has_pods(&self, selector: &LabelSelector) -> bool;
    /// Whether every pod that these labels select runs the last chain, and nothing goes on there that began before it.
    fn is_quiet(&self, selector: &LabelSelector) -> bool;
    /// Whether every pod that these labels select is quiet, or is waited for no longer.
    fn is_settled(&self, selector: &LabelSelector) -> bool;
    /// Whether there are such pods, and none of them is waited for any longer.
    fn is_given_up(&self, selector: &LabelSelector) -> bool;
}

/// The next chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Its entries.
    pub entries: Vec<Entry>,
    /// What is to be remembered with it.
    pub claims: Claims,
    /// Entries that see less than they shall, each with those of the shards that it waits for.
    pub waiting: BTreeMap<String, BTreeSet<String>>,
    /// Entries that get what shards may still show whose pods were waited for long enough: each with those shards.
    pub overtaking: BTreeMap<String, BTreeSet<String>>,
    /// Pods that are waited for, by the shard's entry.
    pub awaited: BTreeMap<String, Vec<LabelSelector>>,
    /// Pods that are to keep what they see.
    pub hold: Vec<Hold>,
    /// Pods that have kept it for long enough.
    pub evict: Vec<Evict>,
}

/// Makes the next chain on the way from the last entries to those that are wanted. `restarts`: entries of shards whose pods see
/// no change while they run.
#[must_use]
pub fn plan(
    last: &[Entry],
    claims: &Claims,
    wanted: &[Entry],
    restarts: &BTreeSet<String>,
    fleet: &impl Fleet,
) -> Plan {
    let (wanted, restarts) = restart::normal(wanted, restarts);
    let all = restart::with_kept(last, &wanted, &restarts, fleet);
    let all = pods::with_leavers(last, &all, fleet);
    let before: BTreeMap<&str, Shard> = last.iter().filter_map(Shard::of).collect();
    let after: BTreeMap<&str, Shard> = all.iter().filter_map(Shard::of).collect();
    let possible = possible(&before, claims, fleet);
    let moves = Moves {
        before: &before,
        after: &after,
        possible: &possible,
    };
    let mut plan = Plan::default();
    for entry in &all {
        let Some(shard) = after.get(entry.name.as_str()) else {
            plan.entries.push(entry.clone());
            continue;
        };
        let old = before.get(entry.name.as_str());
        if let Some(old) = old.filter(|_| restart::base(&entry.name).is_some_and(|base| restarts.contains(base))) {
            plan.entries.push(with(entry, &old.limits, old.is_consistent));
            continue;
        }
        let limits = if moves.is_held_up(&entry.name, shard, fleet, &mut plan) {
            moves::narrowed(shard, old)
        } else {
            shard.limits.clone()
        };
        let is_sibling = |(name, other): (&&str, &Shard)| **name != entry.name && other.lock == shard.lock;
        let has_siblings = before.iter().chain(&after).any(is_sibling);
        let is_consistent = match old {
            Some(old) if old.limits == limits => old.is_consistent,
            _ => has_siblings && moves::gains(&limits, old.map(|old| old.limits.as_slice())),
        };
        plan.entries.push(with(entry, &limits, is_consistent));
    }
    restart::hold(&mut plan, last, &wanted, &restarts, fleet);
    plan.claims = remembered(&plan.entries, &before, possible);
    plan
}

/// What is shown, and what is to be.
struct Moves<'a> {
    before: &'a BTreeMap<&'a str, Shard>,
    after: &'a BTreeMap<&'a str, Shard>,
    possible: &'a Claims,
}

impl Moves<'_> {
    /// Whether a shard has to wait for others; the plan says for whom, or whom it overtakes.
    fn is_held_up(&self, name: &str, shard: &Shard, fleet: &impl Fleet, plan: &mut Plan) -> bool {
        let old = self.before.get(name);
        let holders = moves::holders(name, shard, old, self.after, self.possible);
        for (holder, claim) in holders {
            let said = self.before.get(holder).filter(|before| before.claim() == *claim);
            let pods = said.map_or_else(|| pods::read(&claim.pods), |said| Some(said.pods.clone()));
            let is_over = pods.as_ref().is_some_and(|pods| {
                // Whoever is quiet shows just that.
                fleet.is_given_up(pods) || said.is_none() && fleet.is_settled(pods)
            });
            let list = if is_over {
                &mut plan.overtaking
            } else {
                &mut plan.waiting
            };
            list.entry(name.to_owned()).or_default().insert(holder.to_owned());
            if let (false, Some(pods)) = (is_over, pods) {
                let awaited = plan.awaited.entry(holder.to_owned()).or_default();
                if !awaited.contains(&pods) {
                    awaited.push(pods);
                }
            }
        }
        plan.waiting.contains_key(name)
    }
}

/// A shard's entry, read.
#[derive(Clone, Debug)]
struct Shard {
    pods: LabelSelector,
    lock: Option<String>,
    limits: Vec<Limit>,
    is_consistent: bool,
}

impl Shard {
    /// `None`: an entry that shows nothing and hides nothing.
    fn of(entry: &Entry) -> Option<(&str, Self)> {
        let prefix = BuiltIn::ShardSelector.name();
        entry.name.strip_prefix(prefix)?.strip_prefix('/')?;
        let settings = entry.settings.value();
        let shard = Self {
            pods: entry.pod_selector.clone(),
            lock: settings
                .get("leaderElectionName")
                .and_then(Value::as_str)
                .map(str::to_owned),
            // Limits that can't be read hide nothing that we could count on.
            limits: limits_of(settings),
            is_consistent: settings.get(CONSISTENT_READS) == Some(&Value::Bool(true)),
        };
        Some((entry.name.as_str(), shard))
    }

    fn claim(&self) -> Claim {
        Claim {
            pods: json!(restart::all(&self.pods)),
            lock: self.lock.clone(),
            limits: self.limits.clone(),
        }
    }
}

fn limits_of(settings: &Value) -> Vec<Limit> {
    let limits = settings.get("limits").cloned().unwrap_or_default();
    serde_json::from_value(limits).unwrap_or_default()
}

/// Everything that sidecars may let through now: what the last chain says, and earlier claims of pods that are not quiet.
fn possible(before: &BTreeMap<&str, Shard>, claims: &Claims, fleet: &impl Fleet) -> Claims {
    let mut possible: Claims = claims
        .iter()
        .map(|(name, claims)| {
            let is_alive = |claim: &&Claim| !pods::read(&claim.pods).is_some_and(|pods| fleet.is_quiet(&pods));
            (name.clone(), claims.iter().filter(is_alive).cloned().collect())
        })
        .collect();
    for (name, shard) in before {
        push(possible.entry((*name).to_owned()).or_default(), shard.claim());
    }
    possible
}

/// Of what is possible, that which the new entries do not say themselves.
fn remembered(entries: &[Entry], before: &BTreeMap<&str, Shard>, possible: Claims) -> Claims {
    let now: BTreeMap<&str, Claim> = entries
        .iter()
        .filter_map(Shard::of)
        .map(|(name, shard)| (name, shard.claim()))
        .collect();
    let mut remembered = possible;
    for (name, claims) in &mut remembered {
        // A shard without an entry has no pods any more, or nobody else to guard objects for.
        if !now.contains_key(name.as_str()) && before.contains_key(name.as_str()) {
            claims.clear();
        }
        claims.retain(|claim| now.get(name.as_str()) != Some(claim));
        if claims.len() > MAX_CLAIMS {
            for claim in claims.iter_mut() {
                claim.limits.clear();
            }
            claims.dedup();
        }
    }
    remembered.retain(|_, claims| !claims.is_empty());
    remembered
}

fn push(claims: &mut Vec<Claim>, claim: Claim) {
    if !claims.contains(&claim) {
        claims.push(claim);
    }
}

/// The entry with other limits.
fn with(entry: &Entry, limits: &[Limit], is_consistent: bool) -> Entry {
    let mut settings = entry.settings.value().clone();
    if let Value::Object(fields) = &mut settings {
        if limits_of(entry.settings.value()) != limits {
            fields.insert("limits".to_owned(), json!(limits));
        }
        fields.remove(CONSISTENT_READS);
        if is_consistent {
            fields.insert(CONSISTENT_READS.to_owned(), true.into());
        }
    }
    Entry {
        settings: Settings::new(settings),
        ..entry.clone()
    }
}
