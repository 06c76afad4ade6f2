//! The host's part in `on-objects`: which annotations a plugin is told, and how many flags it returns.

use std::collections::BTreeSet;

use super::bench::Bench;
use super::request::TestRequest;
use crate::{ObjectMetadata, Plugin, RequestAction, RequestEdit, RequestVerdict};

/// Bounds of the contract (`wit/types.wit`, `ask-about-objects`; `wit/plugin.wit`, `on-objects`).
const MAX_ANNOTATIONS: usize = 16;
const MAX_KEY_BYTES: usize = 317;
const MAX_BATCH: usize = 256;

/// Keys of the annotations that a verdict asks for; `None` if it does not ask about objects.
///
/// # Panics
///
/// There are too many, or one is invalid.
pub(super) fn asked_annotations(verdict: &RequestVerdict) -> Option<BTreeSet<String>> {
    let RequestAction::Proceed(edits) = &verdict.action else {
        return None;
    };
    let mut asked: Option<BTreeSet<String>> = None;
    for edit in edits {
        if let RequestEdit::AskAboutObjects(keys) = edit {
            asked.get_or_insert_default().extend(keys.iter().cloned());
        }
    }
    if let Some(keys) = &asked {
        assert!(
            keys.len() <= MAX_ANNOTATIONS,
            "more than {MAX_ANNOTATIONS} annotations: {keys:?}"
        );
        let invalid = keys.iter().find(|key| key.is_empty() || key.len() > MAX_KEY_BYTES);
        assert_eq!(invalid, None, "an annotation has a key of 1 to {MAX_KEY_BYTES} bytes");
    }
    asked
}

impl<P: Plugin> Bench<P> {
    /// Does what a host does when these objects of a response arrive: calls `on_objects` in batches, and returns the objects that the
    /// client gets. The plugin is told only the annotations that its last verdict on this request asks for.
    ///
    /// # Panics
    ///
    /// The plugin was not asked for a verdict on this request ([`Bench::on_request`]), its verdict does not ask about objects
    /// ([`RequestEdit::ask_about_objects`]), or it returns another number of flags than it got objects.
    #[track_caller]
    pub fn kept_objects(&mut self, req: &TestRequest, objects: &[ObjectMetadata]) -> Vec<ObjectMetadata> {
        let asked = req.kept_verdict().and_then(|kept| kept.asked_annotations);
        assert!(
            asked.is_some(),
            "the verdict on this request does not ask about objects"
        );
        let asked = asked.unwrap_or_default();
        let mut kept = Vec::new();
        for batch in objects.chunks(MAX_BATCH) {
            let told: Vec<ObjectMetadata> = batch.iter().map(|object| told_about(object, &asked)).collect();
            let flags = self.plugin.on_objects(req, &told, &self.host);
            self.host.cell_log.forget_reads();
            assert_eq!(flags.len(), batch.len(), "on_objects returns a flag for each object");
            let flagged = batch.iter().zip(flags).filter(|(_, is_kept)| *is_kept);
            kept.extend(flagged.map(|(object, _)| object.clone()));
        }
        kept
    }
}

fn told_about(object: &ObjectMetadata, asked: &BTreeSet<String>) -> ObjectMetadata {
    let mut told = object.clone();
    told.annotations.retain(|(key, _)| asked.contains(key));
    told
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::NoSettings;
    use crate::{Host, InstanceInfo, MatchRule, Phases, Request, Subscription};

    /// Keeps objects of its team, as an annotation says; of config maps it decides on none.
    struct OfTeam {
        batches: Vec<usize>,
        told: BTreeSet<String>,
    }

    impl Plugin for OfTeam {
        type Settings = NoSettings;

        fn configure(_: NoSettings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
            let subscription = Subscription::new(Phases::ON_REQUEST, [MatchRule::any()]);
            let (batches, told) = (Vec::new(), BTreeSet::new());
            Ok((Self { batches, told }, subscription))
        }

        fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
            match req.resource() {
                "secrets" => RequestVerdict::proceed(),
                "endpoints" => {
                    RequestVerdict::edit([RequestEdit::ask_about_objects((0..17).map(|key| key.to_string()))])
                }
                _ => RequestVerdict::edit([
                    RequestEdit::ask_about_objects(["team"]),
                    RequestEdit::ask_about_objects(["owner"]),
                ]),
            }
        }

        fn on_objects(&mut self, req: &dyn Request, objects: &[ObjectMetadata], _: &dyn Host) -> Vec<bool> {
            self.batches.push(objects.len());
            let keys = objects.iter().flat_map(|object| &object.annotations);
            self.told.extend(keys.map(|(key, _)| key.clone()));
            match req.resource() {
                "configmaps" => Vec::new(),
                _ => objects
                    .iter()
                    .map(|object| object.annotation("team") == Some("a"))
                    .collect(),
            }
        }
    }

    fn asked(resource: &str) -> (Bench<OfTeam>, TestRequest) {
        let mut bench = Bench::<OfTeam>::new("{}").unwrap();
        let req = TestRequest::list("", resource);
        bench.on_request(&req);
        (bench, req)
    }

    #[test]
    fn plugin_is_told_only_annotations_that_it_asked_for() {
        let (mut bench, req) = asked("pods");
        let of_team = |name: &str, team: &str| {
            let object = ObjectMetadata::new("ns", name).with_annotation("team", team);
            object.with_annotation("other", "x").with_annotation("owner", "y")
        };
        let objects = [of_team("x", "a"), of_team("y", "b")];
        assert_eq!(bench.kept_objects(&req, &objects), objects[..1]);
        assert_eq!(bench.plugin.told.iter().collect::<Vec<_>>(), ["owner", "team"]);
    }

    #[test]
    fn many_objects_come_in_batches() {
        let (mut bench, req) = asked("pods");
        let objects: Vec<_> = (0..600)
            .map(|index| ObjectMetadata::new("ns", index.to_string()))
            .collect();
        assert_eq!(bench.kept_objects(&req, &objects), []);
        assert_eq!(bench.plugin.batches, [256, 256, 88]);
    }

    #[test]
    #[should_panic(expected = "on_objects returns a flag for each object")]
    fn wrong_number_of_flags_is_noticed() {
        let (mut bench, req) = asked("configmaps");
        bench.kept_objects(&req, &[ObjectMetadata::new("ns", "x")]);
    }

    #[test]
    #[should_panic(expected = "does not ask about objects")]
    fn objects_of_request_without_question_are_noticed() {
        let (mut bench, req) = asked("secrets");
        bench.kept_objects(&req, &[ObjectMetadata::new("ns", "x")]);
    }

    #[test]
    #[should_panic(expected = "more than 16 annotations")]
    fn too_many_annotations_are_noticed() {
        asked("endpoints");
    }
}
