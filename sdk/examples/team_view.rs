//! Shows a team the objects of its namespaces, and those of a common namespace that are shared with it. Where names decide, a predicate
//! says so; who an object is shared with is in a list in an annotation, which no predicate reads.
//!
//! ```yaml
//! settings:
//!   team: blue                # its namespaces are blue and blue-…
//!   commonNamespace: common
//! ```

use ctrlmesh_sdk::{
    Host, InstanceInfo, MatchRule, NameSet, ObjectMetadata, ObjectPredicate, Phases, Plugin, Refusal, Request,
    RequestEdit, RequestVerdict, Subscription, Verb,
};

/// The teams that see an object, separated by commas.
const SHARED_WITH: &str = "example.com/shared-with";

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    team: String,
    common_namespace: String,
}

struct TeamView {
    team: String,
    common_namespace: String,
    kept: ObjectPredicate,
}

impl Plugin for TeamView {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        let Settings { team, common_namespace } = settings;
        if team.is_empty() {
            return Err("team: write the name of a team".to_owned());
        }
        let own = NameSet::new([&team, &common_namespace]).prefixes([format!("{team}-")]);
        let rule = MatchRule::api()
            .verbs([Verb::List, Verb::Watch, Verb::Deletecollection])
            .groups([""])
            .resources(["configmaps"]);
        let plugin = TeamView {
            kept: ObjectPredicate::namespaces(own),
            team,
            common_namespace,
        };
        Ok((plugin, Subscription::new(Phases::ON_REQUEST, [rule])))
    }

    fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
        let verdict = match req.verb() {
            Verb::Deletecollection => RequestVerdict::refuse(Refusal::new(403, "delete config maps by name")),
            _ => RequestVerdict::edit([
                RequestEdit::keep_objects(self.kept.clone()),
                RequestEdit::ask_about_objects([SHARED_WITH]),
            ]),
        };
        verdict.reusable()
    }

    /// Is called only with objects that match the predicate.
    fn on_objects(&mut self, _: &dyn Request, objects: &[ObjectMetadata], _: &dyn Host) -> Vec<bool> {
        objects.iter().map(|object| self.is_shown(object)).collect()
    }
}

impl TeamView {
    fn is_shown(&self, object: &ObjectMetadata) -> bool {
        let teams = object.annotation(SHARED_WITH).unwrap_or_default();
        object.namespace != self.common_namespace || teams.split(',').any(|team| team.trim() == self.team)
    }
}

ctrlmesh_sdk::export_plugin!(TeamView);

#[cfg(test)]
mod tests {
    use ctrlmesh_sdk::RequestAction;
    use ctrlmesh_sdk::testing::{Bench, TestRequest};

    use super::*;

    fn bench() -> Bench<TeamView> {
        Bench::new(r#"{"team": "blue", "commonNamespace": "common"}"#).unwrap()
    }

    fn shared(name: &str, teams: &str) -> ObjectMetadata {
        ObjectMetadata::new("common", name).with_annotation(SHARED_WITH, teams)
    }

    #[test]
    fn common_objects_are_shown_if_they_are_shared() {
        let mut bench = bench();
        let list = TestRequest::list("", "configmaps");
        bench.on_request(&list);
        let objects = [
            ObjectMetadata::new("blue-prod", "own"),
            shared("ours", "red, blue"),
            shared("theirs", "red,bluebird"),
            ObjectMetadata::new("common", "unshared"),
        ];
        let kept = bench.kept_objects(&list, &objects);
        let names: Vec<&str> = kept.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["own", "ours"]);
    }

    #[test]
    fn predicate_keeps_namespaces_of_the_team() {
        let mut bench = bench();
        let RequestAction::Proceed(edits) = bench.on_request(&TestRequest::watch("", "configmaps")).action else {
            panic!("the watch shall go on");
        };
        let own = NameSet::new(["blue", "common"]).prefixes(["blue-"]);
        assert_eq!(edits[0], RequestEdit::keep_objects(ObjectPredicate::namespaces(own)));
    }

    #[test]
    fn collection_is_not_deleted() {
        let delete = TestRequest::api(Verb::Deletecollection, "", "configmaps");
        let mut bench = bench();
        assert!(bench.wakes(&delete));
        let action = bench.on_request(&delete).action;
        assert!(matches!(action, RequestAction::Refuse(refusal) if refusal.code == 403));
    }
}
