//! Events of Kubernetes, which `kubectl describe` shows, and the texts of those that are about no condition.

use ctrlmesh_manager_api::{FIELD_MANAGER, MANAGED_BY};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder};

use crate::cluster::{Context, RbacRule, Scope, error_text};

/// Permissions at the API server. An Event is in the namespace of its object.
pub const RULES: &[RbacRule] = &[RbacRule {
    scope: Scope::Cluster,
    group: "events.k8s.io",
    resources: &["events"],
    verbs: &["create"],
    names: &[],
}];

/// Maximum length of a note in bytes (`validation.NoteLengthLimit`).
const MAX_NOTE: usize = 1024;

/// An Event before it is published.
#[derive(Debug)]
pub(crate) struct EventDraft {
    pub(crate) type_: EventType,
    /// Also the action.
    pub(crate) reason: String,
    pub(crate) note: String,
}

impl EventDraft {
    pub(crate) fn normal(reason: &str, note: String) -> Self {
        Self {
            type_: EventType::Normal,
            reason: reason.to_owned(),
            note,
        }
    }

    pub(crate) fn warning(reason: &str, note: String) -> Self {
        Self {
            type_: EventType::Warning,
            ..Self::normal(reason, note)
        }
    }

    /// A shard gets objects that unreachable pods may still show. `note`: [`Overtaking::note_text`].
    ///
    /// [`Overtaking::note_text`]: ctrlmesh_manager_rollout::decision::Overtaking::note_text
    pub(crate) fn overtaking(note: &str) -> Self {
        Self::warning("Overtaking", note.to_owned())
    }

    /// A pod of a shard was evicted.
    pub(crate) fn restarting(pod: &str) -> Self {
        let note = format!("evicted {pod}; its replacement will see the shard as it is now");
        Self::normal("Restarting", note)
    }

    /// An object that pods mount was made by somebody else.
    pub(crate) fn not_ours() -> Self {
        let note = format!(
            "Pods of this namespace have sidecars that serve TLS, and mount this object. ctrlmesh-manager did not make it and leaves it unchanged. \
             Delete it, or give it the label {MANAGED_BY}={FIELD_MANAGER}, unless its content is intended"
        );
        Self::warning("NotOurs", note)
    }

    /// An object that pods mount could not be written. `problem`: the error.
    pub(crate) fn not_written(problem: &str) -> Self {
        let note = format!(
            "Pods of this namespace have sidecars that serve TLS, and mount this object. ctrlmesh-manager {problem}. It retries"
        );
        Self::warning("NotWritten", note)
    }
}

#[cfg(test)]
impl std::fmt::Display for EventDraft {
    /// A line of a snapshot.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}: {}", self.type_, self.reason, self.note)
    }
}

/// Publishes an Event about an object. Failures are logged and stop nothing.
///
/// For rare Events whose notes differ. (A `Recorder` that lives on counts the second Event of a reason on the first, whose note
/// stays; that is a patch, which [`RULES`] do not allow.)
pub(crate) async fn publish(context: &Context, about: &ObjectReference, draft: &EventDraft) {
    let EventDraft { type_, reason, note } = draft;
    let event = Event {
        type_: *type_,
        reason: reason.clone(),
        note: Some(truncate_note(note).to_owned()),
        action: reason.clone(),
        secondary: None,
    };
    let recorder = Recorder::new(context.client.clone(), context.reporter());
    if let Err(error) = recorder.publish(&event, about).await {
        tracing::warn!(error = error_text(&error), reason, note, "failed to write Event");
    }
}

fn truncate_note(note: &str) -> &str {
    note.get(..note.floor_char_boundary(MAX_NOTE)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_rollout::decision::Overtaking;

    use super::*;

    #[test]
    fn events_about_no_condition_match_snapshot() {
        let events = [
            EventDraft::not_ours(),
            EventDraft::not_written("failed to write ConfigMap ctrlmesh-ca: configmaps is forbidden (HTTP 403)"),
            EventDraft::overtaking(&Overtaking::note_text(&["left", "middle"], &["left-0", "middle-0"])),
            EventDraft::restarting("left-0"),
        ];
        insta::assert_snapshot!(events.map(|event| event.to_string()).join("\n"));
    }

    #[test]
    fn long_notes_are_cut_between_letters() {
        assert_eq!(truncate_note("short"), "short");
        let long = format!("x{}", "é".repeat(MAX_NOTE));
        assert_eq!(truncate_note(&long).len(), MAX_NOTE - 1);
    }
}
