//! Conditions that have no times yet. Every controller makes its conditions from these.

use serde_json::Value;

use super::{Condition, ConditionStatus};

/// Reason of a condition: one of the codes below, which users and tools match, and a message that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub code: &'static str,
    pub message: String,
}

/// The codes of all conditions. docs/manager.md and docs/registries.md explain each, which `tests/documents/reasons.rs` checks.
impl Reason {
    // Accepted.
    pub const ACCEPTED: &'static str = "Accepted";
    /// Also a reason of Distributed and Sharded.
    pub const INVALID: &'static str = "Invalid";

    // PluginsResolved.
    pub const RESOLVED: &'static str = "Resolved";
    /// The object can't be read, so its plugins are not looked up. The message is that of the last lookup.
    pub const UNRESOLVED: &'static str = "Unresolved";
    pub const FETCHING: &'static str = "Fetching";

    // PluginsResolved, and label `reason` of metrics: a pull has failed (`FailureReason` of the crate ctrlmesh-manager-oci).
    pub const INVALID_REFERENCE: &'static str = "InvalidReference";
    pub const REGISTRY_UNAVAILABLE: &'static str = "RegistryUnavailable";
    pub const NOT_FOUND: &'static str = "NotFound";
    pub const ACCESS_DENIED: &'static str = "AccessDenied";
    pub const PULL_SECRET: &'static str = "PullSecret";
    pub const UNSAFE_REDIRECT: &'static str = "UnsafeRedirect";
    pub const INVALID_ARTIFACT: &'static str = "InvalidArtifact";
    pub const DIGEST_MISMATCH: &'static str = "DigestMismatch";
    /// Also a reason of Distributed, about the chain.
    pub const TOO_LARGE: &'static str = "TooLarge";
    pub const SIGNATURE_INVALID: &'static str = "SignatureInvalid";
    pub const INCOMPATIBLE: &'static str = "Incompatible";

    // Distributed: the chain of the namespace can't be written.
    pub const INVALID_CHAIN: &'static str = "InvalidChain";
    pub const NO_GENERATION: &'static str = "NoGeneration";
    pub const NO_ROOM: &'static str = "NoRoom";
    pub const WRITE_FAILED: &'static str = "WriteFailed";

    // Distributed: the entries of the object.
    pub const DISTRIBUTED: &'static str = "Distributed";
    /// Also a reason of Enforced and Sharded.
    pub const PROGRESSING: &'static str = "Progressing";
    /// Also a reason of Enforced.
    pub const PLUGINS_UNRESOLVED: &'static str = "PluginsUnresolved";
    pub const SIDECAR_OUTDATED: &'static str = "SidecarOutdated";
    pub const SWITCHED_OFF: &'static str = "SwitchedOff";
    pub const HANDING_OVER: &'static str = "HandingOver";
    pub const SETTLING: &'static str = "Settling";

    // Distributed: the shard may not begin yet.
    pub const WITHOUT_SIDECAR: &'static str = "WithoutSidecar";
    /// Also a reason of Enforced.
    pub const NO_PODS: &'static str = "NoPods";
    pub const BEGINNING: &'static str = "Beginning";
    pub const PODS_UNKNOWN: &'static str = "PodsUnknown";

    // Distributed: the ShardingConfig is being deleted.
    /// Also a reason of Sharded.
    pub const DELETING: &'static str = "Deleting";
    pub const GATHERING: &'static str = "Gathering";
    pub const LOCKS_EXPIRING: &'static str = "LocksExpiring";

    // Enforced.
    pub const ENFORCED: &'static str = "Enforced";
    pub const NOTHING_TO_RUN: &'static str = "NothingToRun";
    pub const RESTARTING: &'static str = "Restarting";
    pub const EVICTION_REFUSED: &'static str = "EvictionRefused";

    // Bypassed.
    pub const NO_TRAFFIC: &'static str = "NoTraffic";
    pub const TRAFFIC_SEEN: &'static str = "TrafficSeen";

    // Sharded.
    pub const SHARDED: &'static str = "Sharded";
    pub const DISABLED: &'static str = "Disabled";
    pub const NAME_TAKEN: &'static str = "NameTaken";
    pub const REFUSED: &'static str = "Refused";

    // Sharded: the number of shards does not follow the replicas of the StatefulSet.
    pub const STATEFUL_SET_MISSING: &'static str = "StatefulSetMissing";
    pub const SCALED_TO_ZERO: &'static str = "ScaledToZero";
    pub const TOO_MANY_REPLICAS: &'static str = "TooManyReplicas";
    pub const ORDINALS_START: &'static str = "OrdinalsStart";

    // Overlapping.
    pub const NONE: &'static str = "None";
    pub const SHARED: &'static str = "Shared";
    pub const ORPHANED: &'static str = "Orphaned";
}

impl Reason {
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// A condition without its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionDraft {
    /// Type of the condition; see [`condition`](super::condition).
    pub kind: &'static str,
    pub status: ConditionStatus,
    pub reason: Reason,
}

impl ConditionDraft {
    pub fn new(kind: &'static str, status: ConditionStatus, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            status,
            reason: Reason::new(code, message),
        }
    }

    /// The condition of an object of this generation. If its status is the stored one's, so is the time of the last transition.
    #[must_use]
    pub fn into_condition(self, stored: Option<Condition>, generation: Option<i64>, now: &str) -> Condition {
        let unchanged = stored.filter(|stored| stored.status == self.status);
        Condition {
            kind: self.kind.to_owned(),
            status: self.status,
            reason: self.reason.code.to_owned(),
            message: self.reason.message,
            last_transition_time: unchanged.map_or_else(|| now.to_owned(), |stored| stored.last_transition_time),
            observed_generation: generation,
        }
    }
}

/// The condition of a type in a stored status.
#[must_use]
pub fn stored_condition(status: &Value, kind: &str) -> Option<Condition> {
    let list = status.get("conditions")?.as_array()?.iter();
    list.filter_map(|condition| serde_json::from_value::<Condition>(condition.clone()).ok())
        .find(|condition| condition.kind == kind)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-02T00:00:00Z";
    const BEFORE: &str = "2026-01-01T00:00:00Z";

    fn stored() -> Value {
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "Stored", "message": "m", "lastTransitionTime": BEFORE, "observedGeneration": 1,
            })
        };
        json!({ "conditions": [{ "type": "Sharded" }, condition("Other"), condition("Sharded")] })
    }

    #[test]
    fn condition_keeps_transition_time_while_status_is_unchanged() {
        for (status, expected) in [(ConditionStatus::True, BEFORE), (ConditionStatus::False, NOW)] {
            let draft = ConditionDraft::new("Sharded", status, "Code", "text");
            let condition = draft.into_condition(stored_condition(&stored(), "Sharded"), Some(2), NOW);
            assert_eq!(condition.last_transition_time, expected, "{status:?}");
            assert_eq!((&*condition.reason, &*condition.message), ("Code", "text"));
            assert_eq!(condition.observed_generation, Some(2));
        }
        let draft = ConditionDraft::new("Sharded", ConditionStatus::True, "Code", "text");
        assert_eq!(draft.into_condition(None, None, NOW).last_transition_time, NOW);
    }

    #[test]
    fn stored_condition_is_found_by_type_among_unreadable_ones() {
        assert_eq!(
            stored_condition(&stored(), "Sharded").map(|stored| stored.reason),
            Some("Stored".to_owned())
        );
        assert_eq!(stored_condition(&stored(), "Overlapping"), None);
        assert_eq!(stored_condition(&json!({}), "Sharded"), None);
    }
}
