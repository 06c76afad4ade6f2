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

/// Publishes an Event about an object. Failures are logged and stop nothing.
///
/// For rare Events whose notes differ. (A `Recorder` that lives on counts the second Event of a reason on the first, whose note
/// stays; that is a patch, which [`RULES`] do not allow.)
pub async fn publish(context: &Context, about: &ObjectReference, type_: EventType, reason: &str, note: &str) {
    let event = Event {
        type_,
        reason: reason.to_owned(),
        note: Some(truncate_note(note).to_owned()),
        action: reason.to_owned(),
        secondary: None,
    };
    let recorder = Recorder::new(context.client.clone(), context.reporter());
    if let Err(error) = recorder.publish(&event, about).await {
        tracing::warn!(error = error_text(&error), reason, note, "failed to write Event");
    }
}

/// The note of `Restarting`: a pod of a shard was evicted.
pub(crate) fn restarting_note(pod: &str) -> String {
    format!("evicted {pod}; its replacement will see the shard as it is now")
}

/// The note of `NotOurs`: an object that pods mount was made by somebody else.
pub(crate) fn not_ours_note() -> String {
    format!(
        "Pods of this namespace have sidecars that serve TLS, and mount this object. ctrlmesh-manager did not make it and leaves it unchanged. \
         Delete it, or give it the label {MANAGED_BY}={FIELD_MANAGER}, unless its content is intended"
    )
}

/// The note of `NotWritten`: an object that pods mount could not be written. `problem`: the error.
pub(crate) fn not_written_note(problem: &str) -> String {
    format!(
        "Pods of this namespace have sidecars that serve TLS, and mount this object. ctrlmesh-manager {problem}. It retries"
    )
}

fn truncate_note(note: &str) -> &str {
    note.get(..note.floor_char_boundary(MAX_NOTE)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use ctrlmesh_manager_rollout::Overtaking;

    use super::*;

    #[test]
    fn notes_of_events_match_snapshot() {
        let notes = [
            ("NotOurs", not_ours_note()),
            (
                "NotWritten",
                not_written_note("failed to write ConfigMap ctrlmesh-ca: configmaps is forbidden (HTTP 403)"),
            ),
            (
                "Overtaking",
                Overtaking::note_text(&["left", "middle"], &["left-0", "middle-0"]),
            ),
            ("Restarting", restarting_note("left-0")),
        ];
        insta::assert_snapshot!(notes.map(|(reason, note)| format!("{reason}: {note}")).join("\n"));
    }

    #[test]
    fn long_notes_are_cut_between_letters() {
        assert_eq!(truncate_note("short"), "short");
        let long = format!("x{}", "é".repeat(MAX_NOTE));
        assert_eq!(truncate_note(&long).len(), MAX_NOTE - 1);
    }
}
