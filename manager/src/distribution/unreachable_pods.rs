//! Pods that are waited for: which they are, and for how long, by the policy of their shard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use ctrlmesh_contract::{Entry, LabelSelector};
use kube::runtime::events::EventType;

use super::fleet::{Fleet, Report, Sidecar};
use super::reconcile::{Decision, Distributor};
use super::report;
use super::status::listed;
use crate::api::ShardingConfig;
use crate::events;
use crate::hand_over::{restart, shard_of};

/// Pods that are waited for and do not answer, by UID: a pod that is made again under the same name is another one.
pub(super) type SilentPods = BTreeMap<String, Silence>;

/// That a pod does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silence {
    /// Since when it is waited for so.
    since: Instant,
    /// Questions in a row that it had not answered by then.
    failures: u32,
}

/// Questions that a pod has left without an answer since it is waited for, before it is given up: time alone may be nothing but
/// a pause between two of them.
const MIN_FAILURES: u32 = 3;

/// Pods that are not waited for any longer: the policies of all shards that they are in say so.
pub(super) fn given_up(
    silent: &SilentPods,
    fleet: &Fleet,
    configs: &[ShardingConfig],
    now: Instant,
) -> BTreeSet<String> {
    let is_given_up = |sidecar: &&Sidecar| {
        let silence = silent.get(&sidecar.uid).filter(|_| !is_there(sidecar, fleet));
        // Who has no address can't be asked.
        let is_asked = |silence: &&Silence| {
            sidecar.ip.is_none() || failures(sidecar, fleet) >= silence.failures.saturating_add(MIN_FAILURES)
        };
        let silence = silence.filter(is_asked);
        let own = configs.iter().filter(|config| {
            let pods = config.spec.selector.as_ref().map(LabelSelector::from);
            config.spec.root.is_none() && pods.is_some_and(|pods| pods.matches(&sidecar.labels))
        });
        let patience: Option<Vec<_>> = own
            .map(|config| config.spec.unreachable_pods.as_ref()?.patience())
            .collect();
        let longest = patience.and_then(|patience| patience.into_iter().max());
        silence
            .zip(longest)
            .is_some_and(|(silence, patience)| now.duration_since(silence.since) >= patience)
    };
    let given_up = fleet.sidecars.iter().filter(is_given_up);
    given_up.map(|sidecar| sidecar.pod.clone()).collect()
}

/// Whether there is an answer, or nobody to give one.
fn is_there(sidecar: &Sidecar, fleet: &Fleet) -> bool {
    !sidecar.is_placed || matches!(fleet.reports.get(&sidecar.pod), Some(Report::Status(_)))
}

/// Questions in a row that it has not answered.
fn failures(sidecar: &Sidecar, fleet: &Fleet) -> u32 {
    fleet.failures.get(&sidecar.pod).copied().unwrap_or_default()
}

/// Who of those that are waited for is silent, and since when.
pub(super) fn silent(
    before: &SilentPods,
    awaited: &BTreeMap<String, BTreeSet<String>>,
    fleet: &Fleet,
    now: Instant,
) -> SilentPods {
    let is_waited_for = |sidecar: &&Sidecar| awaited.values().any(|pods| pods.contains(&sidecar.uid));
    let waited = fleet.sidecars.iter().filter(is_waited_for);
    // Who was given up still does not answer, though nobody waits for it now.
    let known = fleet
        .sidecars
        .iter()
        .filter(|sidecar| fleet.given_up.contains(&sidecar.pod));
    let silent = waited.chain(known).filter(|sidecar| !is_there(sidecar, fleet));
    let silence = |sidecar: &Sidecar| {
        let failures = failures(sidecar, fleet);
        // Fewer than before: it has answered, or has another address.
        let before = before.get(&sidecar.uid).filter(|silence| silence.failures <= failures);
        before.copied().unwrap_or(Silence { since: now, failures })
    };
    silent.map(|sidecar| (sidecar.uid.clone(), silence(sidecar))).collect()
}

/// A shard that is waited for, with the pods that keep others waiting.
pub(super) fn named(
    holder: &str,
    awaited: &BTreeMap<String, BTreeSet<String>>,
    entries: &[Entry],
    fleet: &Fleet,
) -> String {
    let is_waited_for = |sidecar: &&Sidecar| {
        let awaited = awaited.get(holder);
        awaited.is_some_and(|pods| pods.contains(&sidecar.uid))
    };
    let pods = fleet.sidecars.iter().filter(is_waited_for);
    let late = pods.filter(|sidecar| restart::base(holder).is_some() || !fleet.quiet.contains(&sidecar.pod));
    let mut late: Vec<(String, String)> = late
        .map(|sidecar| (sidecar.pod.clone(), fleet.unsettled_reason(sidecar, entries)))
        .collect();
    late.sort();
    match listed(&late, ", ") {
        pods if pods.is_empty() => shard_of(holder).to_owned(),
        pods => format!("{} ({pods})", shard_of(holder)),
    }
}

/// Says of whom objects are given to that others may still show.
pub(super) async fn tell(distributor: &Distributor, next: &Decision, fleet: &Fleet) {
    for (name, holders) in &next.plan.overtaking {
        if next.plan.waiting.contains_key(name) {
            continue;
        }
        distributor.context.metrics.distribution.overtaken.inc();
        let uids: BTreeSet<&String> = holders
            .iter()
            .filter_map(|holder| next.plan.overtaken.get(holder))
            .flatten()
            .collect();
        let overtaken = fleet.sidecars.iter().filter(|sidecar| uids.contains(&sidecar.uid));
        let pods: Vec<&str> = overtaken.map(|sidecar| sidecar.pod.as_str()).collect();
        let holders: BTreeSet<&str> = holders.iter().map(|holder| shard_of(holder)).collect();
        let holders: Vec<&str> = holders.into_iter().collect();
        let note = format!(
            "gets objects of {} without the word of pods that can't be reached: {}",
            holders.join(", "),
            pods.join(", ")
        );
        tracing::warn!(
            namespace = next.chain.namespace,
            entry = name,
            note,
            "a hand-over goes on without an acknowledgement"
        );
        let entry = next.chain.entries.iter().find(|entry| entry.name == *name);
        if let Some(origin) = entry.and_then(|entry| entry.origin.as_ref()) {
            let about = report::reference(&next.chain.namespace, origin);
            events::publish(&distributor.context, &about, EventType::Warning, "Overtaking", &note).await;
        }
    }
}

#[cfg(test)]
mod tests;
