//! Events of Kubernetes, which `kubectl describe` shows.

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

fn truncate_note(note: &str) -> &str {
    note.get(..note.floor_char_boundary(MAX_NOTE)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_cut_between_letters() {
        assert_eq!(truncate_note("short"), "short");
        let long = format!("x{}", "é".repeat(MAX_NOTE));
        assert_eq!(truncate_note(&long).len(), MAX_NOTE - 1);
    }
}
