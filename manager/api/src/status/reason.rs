//! Conditions that have no times yet. Every controller makes its conditions from these.

use serde_json::Value;

use super::{Condition, ConditionStatus};

/// Reason of a condition: a code of a closed set, which users and tools match, and a message that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub code: &'static str,
    pub message: String,
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
