//! Which pods are to be told of the chain now: once, so that kubelet does not let them wait for a minute, and again while a pod
//! answers and has not got it. Kubelet may have synced with what its own watch had shown it before. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ctrlmesh_contract::Entry;

use super::fleet::Fleet;
use super::memory::MAX_UNSEEN;

/// Until a pod is told again, after each time that it was. After the last one kubelet syncs by itself.
const AGAIN: [Duration; 3] = [Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30)];

/// When pods were nudged, by UID.
pub(super) type NudgeHistory = BTreeMap<String, LastNudge>;

/// When a pod was told last, or found to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastNudge {
    generation: u64,
    at: Instant,
    /// How often it was told again.
    again: u32,
}

/// A pod that is to be nudged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodNudge {
    pub(super) pod: String,
    uid: String,
    /// How often it was told of the same chain before.
    pub(super) again: u32,
}

/// Who is to be told now, and in how long the next one is. What was told is written on pods, so it does not matter who nudged, or when.
pub(super) fn due_nudges(
    history: &mut NudgeHistory,
    fleet: &Fleet,
    entries: &[Entry],
    generation: u64,
    now: Instant,
) -> (Vec<PodNudge>, Option<Duration>) {
    let is_there = |uid: &String| fleet.sidecars.iter().any(|sidecar| sidecar.uid == *uid);
    history.retain(|uid, last| last.generation == generation && is_there(uid));
    let (mut due, mut next) = (Vec::new(), None::<Duration>);
    for sidecar in fleet.behind(entries) {
        let bump = |again| PodNudge {
            pod: sidecar.pod.clone(),
            uid: sidecar.uid.clone(),
            again,
        };
        if sidecar.nudged != Some(generation) {
            let last = history.get(&sidecar.uid);
            if last.is_none_or(|last| now.duration_since(last.at) >= MAX_UNSEEN) {
                due.push(bump(0));
            }
            continue;
        }
        // Who is silent or has refused it has nothing from one more sync.
        if fleet.lag_reason(sidecar, entries, generation) != Some("behind") {
            continue;
        }
        let known = sidecar.renudged.filter(|(of, _)| *of == generation);
        let last = history.entry(sidecar.uid.clone()).or_insert(LastNudge {
            generation,
            at: now,
            again: 0,
        });
        let again = known.map_or(0, |(_, again)| again).max(last.again);
        let Some(pause) = usize::try_from(again).ok().and_then(|again| AGAIN.get(again)) else {
            continue;
        };
        match pause.saturating_sub(now.duration_since(last.at)) {
            Duration::ZERO => due.push(bump(again.saturating_add(1))),
            left => next = Some(next.map_or(left, |next| next.min(left))),
        }
    }
    (due, next)
}

/// Remembers that a pod was nudged.
pub(super) fn record_nudge(history: &mut NudgeHistory, bump: &PodNudge, generation: u64, now: Instant) {
    let last = LastNudge {
        generation,
        at: now,
        again: bump.again,
    };
    history.insert(bump.uid.clone(), last);
}

#[cfg(test)]
mod tests;
