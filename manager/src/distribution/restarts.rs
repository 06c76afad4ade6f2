//! Makes pods anew that are to see a change no other way (`reshard: Restart`): labels those that keep what they see, then has them
//! evicted one by one.
//!
//! Guarantee: whatever becomes of a pod that was evicted, its shard lacks no other one for it. How many pods there are lies on those that
//! wait ([`SHARD_PODS`]), and is written before each eviction if there are more by now; while there are fewer, nobody's turn comes,
//! however long it takes. Whether somebody scaled the shard down, or replacements are refused, can't be told from pods: a person says so,
//! by taking the annotation away. Then those that are there are all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::names::annotations::SHARD_PODS;
use ctrlmesh_contract::names::labels::KEEPS_LIMITS;
use ctrlmesh_contract::{Chain, Entry};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions};
use kube::runtime::events::EventType;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::decide::Reason;
use super::fleet::{Fleet, Report, Sidecar};
use super::leading::lock_name;
use super::memory::Memory;
use super::reconcile::{Decision, Distributor};
use super::{report, status};
use crate::events;
use crate::hand_over::restart::{Evict, Hold};
use crate::plain::plain;
use crate::rbac::{Rule, Scope};
use crate::timestamp;

/// What it needs, besides patches of pods.
pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: Scope::Cluster,
        group: "",
        resources: &["pods/eviction"],
        verbs: &["create"],
        names: &[],
    },
    Rule {
        scope: Scope::Cluster,
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get"],
        names: &[],
    },
];

/// Pods that a command for a person names.
const MAX_COMMAND: usize = 20;
/// Between two attempts, if an eviction is refused: doubled each time, from and to.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// What is known of the restart of a shard. Lost with the manager, it is found out again.
#[derive(Clone, Debug, Default)]
pub(super) struct Restarts {
    /// UIDs of pods that were evicted and may be seen as if they were not.
    evicted: BTreeSet<String>,
    /// Since when pods are missing, as far as this manager knows, by the shard's entry.
    missing: BTreeMap<String, Timestamp>,
    /// Evictions that were refused, by the shard's entry.
    refused: BTreeMap<String, Refused>,
}

/// An eviction that was refused.
#[derive(Clone, Debug)]
struct Refused {
    message: String,
    pause: Duration,
    until: Instant,
}

/// Whose turn it is.
#[derive(Debug, PartialEq)]
enum RestartStep {
    /// The next one's.
    Decision,
    /// Nobody's before this has happened.
    Wait(String),
    /// Nobody's before it is noted that so many are there: one that does not come back would not be missed.
    Count(usize),
    /// All are done.
    Written,
}

/// Why shards whose pods are made again are not done yet, by their entries.
pub(super) type RestartReasons = BTreeMap<String, Reason>;

/// Takes the next step of every restart.
pub(super) async fn restart(
    distributor: &Distributor,
    next: &Decision,
    fleet: &Fleet,
    memory: &mut Memory,
) -> RestartReasons {
    let namespace = &next.chain.namespace;
    let client = &distributor.context.client;
    for hold in &next.plan.hold {
        if let Err(error) = label(client, namespace, hold, fleet).await {
            tracing::warn!(error = plain(&error), %namespace, "not every pod was labelled; it is tried again");
        }
    }
    let restarts = &mut memory.restarts;
    restarts
        .evicted
        .retain(|uid| fleet.sidecars.iter().any(|sidecar| sidecar.uid == *uid));
    let is_at_work = |entry: &String| next.plan.evict.iter().any(|evict| evict.entry == *entry);
    restarts.missing.retain(|entry, _| is_at_work(entry));
    restarts.refused.retain(|entry, _| is_at_work(entry));
    let keep = || {
        Reason::new(
            "Restarting",
            "its pods are told to keep what they see until they are made again",
        )
    };
    let mut waits: RestartReasons = next
        .plan
        .preparing
        .iter()
        .map(|entry| (entry.clone(), keep()))
        .collect();
    for evict in &next.plan.evict {
        if let Some(wait) = step(distributor, next, evict, fleet, restarts).await {
            waits.insert(evict.entry.clone(), wait);
        }
    }
    waits
}

/// Evicts a pod, or tells why not.
async fn step(
    distributor: &Distributor,
    next: &Decision,
    evict: &Evict,
    fleet: &Fleet,
    restarts: &mut Restarts,
) -> Option<Reason> {
    let now = Instant::now();
    let wait = |message: String| Some(Reason::new("Restarting", message));
    let kept = candidates(evict, fleet);
    let namespace = &next.chain.namespace;
    match restarts.turn(evict, &next.chain, fleet, Timestamp::now()) {
        RestartStep::Written => return None,
        RestartStep::Wait(message) => return wait(message),
        RestartStep::Count(here) => {
            let client = &distributor.context.client;
            return wait(match mark(client, namespace, &kept, &json!({}), here).await {
                Ok(()) => format!("its {here} pods are counted"),
                Err(error) => format!("its {here} pods can't be counted: {}", plain(&error)),
            });
        }
        RestartStep::Decision => {}
    }
    let refused = restarts.refused.get(&evict.entry);
    if let Some(refused) = refused.filter(|refused| now < refused.until) {
        return Some(Reason::new("EvictionRefused", refused.message.clone()));
    }
    // Nobody's turn comes by mistake.
    let leader = match leader(distributor, next, evict).await {
        Ok(leader) => leader,
        Err(error) => return wait(format!("it is not known who leads: {}", plain(&error))),
    };
    let pod = first(&kept, fleet, leader.as_deref())?;
    // The other clients would send it again: the 429 of a budget is no word about the API server.
    match ask(&distributor.context.urgent, namespace, pod).await {
        Ok(()) => {
            distributor.context.metrics.distribution.evicted.inc();
            restarts.refused.remove(&evict.entry);
            restarts.evicted.insert(pod.uid.clone());
            tell(distributor, next, evict, pod).await;
            wait(format!("{} is made again", pod.pod))
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => wait(format!("{} ends", pod.pod)),
        Err(error) => {
            distributor.context.metrics.distribution.evictions_refused.inc();
            let message = format!("{} can't be evicted: {}", pod.pod, why(&error));
            restarts.back_off(&evict.entry, message.clone(), now);
            Some(Reason::new("EvictionRefused", message))
        }
    }
}

impl Restarts {
    /// Whether a pod may be evicted now.
    ///
    /// Those that are to go need not be ready: who is not goes first ([`first`]), so no pod that works goes while another does not.
    fn turn(&mut self, evict: &Evict, chain: &Chain, fleet: &Fleet, now: Timestamp) -> RestartStep {
        if candidates(evict, fleet).is_empty() {
            return RestartStep::Written;
        }
        let all: Vec<&Sidecar> = fleet.selected(&evict.pods).collect();
        let is_going = |sidecar: &&&Sidecar| sidecar.is_ending || self.evicted.contains(&sidecar.uid);
        if let Some(sidecar) = all.iter().find(is_going) {
            return RestartStep::Wait(format!("{} ends", sidecar.pod));
        }
        let here = all.len();
        let noted = all.iter().filter_map(|sidecar| sidecar.shard_pods).max();
        let noted = noted.unwrap_or_default();
        if here < noted {
            let since = *self.missing.entry(evict.entry.clone()).or_insert(now);
            let count = format!("{here} of {noted}");
            return RestartStep::Wait(missing(&chain.namespace, &all, &count, since));
        }
        let new = all
            .iter()
            .filter(|sidecar| !evict.stale.has(&sidecar.uid, &sidecar.labels));
        let new: Vec<&Sidecar> = new.copied().collect();
        if let Some(message) = unfinished(&new, &chain.entries, fleet) {
            return RestartStep::Wait(message);
        }
        self.missing.remove(&evict.entry);
        if here > noted {
            RestartStep::Count(here)
        } else {
            RestartStep::Decision
        }
    }

    /// The next attempt is later each time.
    fn back_off(&mut self, entry: &str, message: String, now: Instant) {
        let before = self.refused.get(entry).map(|refused| refused.pause * 2);
        let pause = before.unwrap_or(BACK_OFF.0).min(BACK_OFF.1);
        let until = now + pause;
        let refused = Refused { message, pause, until };
        self.refused.insert(entry.to_owned(), refused);
    }
}

fn why(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let causes: Vec<&str> = causes.map(|cause| cause.message.as_str()).collect();
            format!("{} {}", status.message, causes.join("; "))
                .trim_end()
                .to_owned()
        }
        error => plain(error),
    }
}

/// Why a pod that has taken another's place does not do its work yet. Pure.
fn unfinished(new: &[&Sidecar], entries: &[Entry], fleet: &Fleet) -> Option<String> {
    let is_behind = |sidecar: &&&Sidecar| sidecar.ip.is_none() || !fleet.runs_chain(sidecar, entries);
    if let Some(sidecar) = new.iter().find(is_behind) {
        return Some(format!("{} does not run the chain yet", sidecar.pod));
    }
    let unready = new.iter().filter(|sidecar| !sidecar.is_ready);
    let unready: Vec<_> = unready
        .map(|sidecar| (sidecar.pod.clone(), "is not ready".to_owned()))
        .collect();
    (!unready.is_empty()).then(|| status::listed(&unready, ", "))
}

/// What a person should know of a shard that lacks pods, `count` being how many there are of how many.
fn missing(namespace: &str, pods: &[&Sidecar], count: &str, since: Timestamp) -> String {
    let since = timestamp::text(since);
    let owners: BTreeSet<&str> = pods.iter().filter_map(|sidecar| sidecar.owner.as_deref()).collect();
    let owners = match Vec::from_iter(owners).join(" and ") {
        none if none.is_empty() => "whoever makes its pods".to_owned(),
        owners => owners,
    };
    let noted = || pods.iter().filter(|sidecar| sidecar.shard_pods.is_some());
    let pods: Vec<&str> = noted().take(MAX_COMMAND).map(|sidecar| sidecar.pod.as_str()).collect();
    let more = match noted().count().saturating_sub(MAX_COMMAND) {
        0 => String::new(),
        more => format!(" (and {more} more of it)"),
    };
    format!(
        "{count} pods are there since {since}, and no other is evicted before all are: see the events of {owners}. \
         If there are to be fewer: kubectl annotate pods -n {namespace} {} {SHARD_PODS}-{more}",
        pods.join(" ")
    )
}

fn candidates<'a>(evict: &Evict, fleet: &'a Fleet) -> Vec<&'a Sidecar> {
    let selected = fleet.selected(&evict.pods);
    selected
        .filter(|sidecar| evict.stale.has(&sidecar.uid, &sidecar.labels))
        .collect()
}

/// Who is not ready first. The leader last, as each eviction of one makes another; who does not answer before it. Pure.
fn first<'a>(kept: &[&'a Sidecar], fleet: &Fleet, leader: Option<&str>) -> Option<&'a Sidecar> {
    let is_leader = |pod: &str| {
        // client-go's identities are `<name of the host>_<random>`.
        leader.is_some_and(|leader| leader == pod || leader.strip_prefix(pod).is_some_and(|rest| rest.starts_with('_')))
    };
    let rank = |sidecar: &Sidecar| match fleet.reports.get(&sidecar.pod) {
        _ if is_leader(&sidecar.pod) => 2,
        Some(Report::Status(_)) => 0,
        _ => 1,
    };
    kept.iter()
        .copied()
        .min_by_key(|sidecar| (sidecar.is_ready, rank(sidecar), sidecar.pod.clone()))
}

/// Who holds the shard's lock, as it calls itself. `None`: nobody.
async fn leader(distributor: &Distributor, next: &Decision, evict: &Evict) -> Result<Option<String>, kube::Error> {
    let entry = next.chain.entries.iter().find(|entry| entry.name == evict.entry);
    let Some(name) = entry.and_then(lock_name) else {
        return Ok(None);
    };
    let api: Api<Lease> = Api::namespaced(distributor.context.client.clone(), &next.chain.namespace);
    let lease = api.get_opt(&name).await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity))
}

/// Labels the pods that are to keep what they see.
async fn label(client: &Client, namespace: &str, hold: &Hold, fleet: &Fleet) -> Result<(), kube::Error> {
    let pods: Vec<&Sidecar> = fleet.selected(&hold.pods).collect();
    let labels = json!({ KEEPS_LIMITS: hold.value });
    mark(client, namespace, &pods, &labels, pods.len()).await
}

/// Gives pods labels, and notes on them how many pods their shard has.
async fn mark(
    client: &Client,
    namespace: &str,
    pods: &[&Sidecar],
    labels: &Value,
    count: usize,
) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for sidecar in pods {
        let patch = json!({ "metadata": {
            "uid": sidecar.uid,
            "labels": labels,
            "annotations": { SHARD_PODS: count.to_string() },
        } });
        let patched = api
            .patch_metadata(&sidecar.pod, &PatchParams::default(), &Patch::Merge(&patch))
            .await;
        match patched {
            Ok(_) => {}
            // It is gone, or another of its name.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Asks for an eviction, which PodDisruptionBudgets may refuse (429).
async fn ask(client: &Client, namespace: &str, pod: &Sidecar) -> Result<(), kube::Error> {
    let only_it = Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: None,
    };
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(only_it),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    api.evict(&pod.pod, &params).await.map(drop)
}

async fn tell(distributor: &Distributor, next: &Decision, evict: &Evict, pod: &Sidecar) {
    tracing::info!(
        namespace = next.chain.namespace,
        entry = evict.entry,
        pod = pod.pod,
        "a pod was evicted to see its shard's new limits"
    );
    let entry = next.chain.entries.iter().find(|entry| entry.name == evict.entry);
    if let Some(origin) = entry.and_then(|entry| entry.origin.as_ref()) {
        let about = report::reference(&next.chain.namespace, origin);
        let note = format!(
            "{} was evicted: it sees the shard as it is now when it is made again",
            pod.pod
        );
        events::publish(&distributor.context, &about, EventType::Normal, "Restarting", &note).await;
    }
}

#[cfg(test)]
mod tests;
