//! Shards that would begin to share objects are given a while in which the other's edit may come. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ctrlmesh_contract::Entry;

use super::fleet::Fleet;
use crate::hand_over::{Shown, newly_shared, shard_of, unshared};

/// How long what would be shared is not shown: objects of one `kubectl apply`, or of one sync of a GitOps tool, come within it.
pub(super) const OVERLAP_GRACE: Duration = Duration::from_secs(10);
/// Until it is looked again whether that is over.
const AGAIN: Duration = Duration::from_secs(1);

/// Since when shards would share: by who gains and who keeps.
pub(super) type Since = BTreeMap<(String, String), Instant>;

/// What is held back.
#[derive(Clone, Debug, Default)]
pub(super) struct OverlapGrace {
    /// Entries that show less than they shall for now, each with those that see the same.
    held: BTreeMap<String, BTreeSet<String>>,
    /// All that would share, also those that waited for long enough.
    pub(super) since: Since,
}

impl OverlapGrace {
    /// Which of the wanted entries are held back, and the entries as they may be now.
    pub(super) fn of(
        shown: Shown<'_>,
        wanted: Vec<Entry>,
        fleet: &Fleet,
        before: &Since,
        now: Instant,
    ) -> (Self, Vec<Entry>) {
        let mut held = newly_shared(shown, &wanted, fleet);
        let mut since = Since::new();
        for (name, others) in &mut held {
            others.retain(|other| {
                let pair = (name.clone(), other.clone());
                let begun = before.get(&pair).copied().unwrap_or(now);
                since.insert(pair, begun);
                now.duration_since(begun) < OVERLAP_GRACE
            });
        }
        held.retain(|_, others| !others.is_empty());
        let wanted = if held.is_empty() {
            wanted
        } else {
            unshared(shown.last, &wanted, held.keys())
        };
        (Self { held, since }, wanted)
    }

    /// The shards for whose edit an entry waits.
    pub(super) fn others_of(&self, name: &str) -> impl Iterator<Item = &str> {
        self.held.get(name).into_iter().flatten().map(|other| shard_of(other))
    }

    /// When to look again, if anything is held back.
    pub(super) fn again(&self) -> Option<Duration> {
        (!self.held.is_empty()).then_some(AGAIN)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fleet::Sidecar;
    use super::*;
    use crate::samples;

    fn shard(name: &str, values: &[&str]) -> Entry {
        let mut entry = samples::entry(&format!("shard-selector/{name}"));
        let resources = json!([{"apiGroups": [""], "resources": ["pods"]}]);
        let one_of = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
        let limits = json!([{"relateResources": resources, "selector": one_of}]);
        entry.settings = ctrlmesh_contract::Settings::new(json!({"leaderElectionName": "lock", "limits": limits}));
        entry
    }

    #[test]
    fn what_is_shared_is_held_back_once_for_a_while() {
        let sidecar = Sidecar {
            is_placed: true,
            ..Sidecar::default()
        };
        let fleet = Fleet {
            sidecars: vec![sidecar],
            ..Fleet::default()
        };
        let last = vec![shard("left", &["b"]), shard("right", &["c"])];
        let wanted = || vec![shard("left", &["b"]), shard("right", &["b", "c"])];
        let begun = Instant::now();
        let none = BTreeSet::new();
        let shown = |entries| Shown {
            last: entries,
            meant: entries,
            restarts: &none,
            of_roots: &none,
        };
        let of =
            |before: &Since, later: Duration| OverlapGrace::of(shown(&last), wanted(), &fleet, before, begun + later);
        let (settling, held) = of(&Since::new(), Duration::ZERO);
        assert_eq!(held, last);
        let name = "shard-selector/right".to_owned();
        assert_eq!(settling.others_of(&name).collect::<Vec<_>>(), ["left"]);
        assert_eq!(settling.again(), Some(AGAIN));
        let pair = (name, "shard-selector/left".to_owned());
        assert_eq!(settling.since, Since::from([(pair, begun)]));
        let (settling, held) = of(&settling.since, OVERLAP_GRACE - Duration::from_millis(1));
        assert_eq!(held, last, "the time does not begin anew");
        let (settling, held) = of(&settling.since, OVERLAP_GRACE);
        assert_eq!(held, wanted());
        assert_eq!(settling.again(), None);
        // The chain may be withheld for another reason: it is not held back once more when that is over.
        assert_eq!(of(&settling.since, OVERLAP_GRACE * 2).1, wanted());
        let (settling, _) = OverlapGrace::of(shown(&wanted()), wanted(), &fleet, &settling.since, begun);
        assert!(settling.since.is_empty());
    }
}
