//! Gives the verdicts of its settings; `../src/script.rs` has the whole grammar.
//!
//! ```yaml
//! subscribe: [{verbs: [list], resources: [pods]}]          # default: everything
//! onRequest:
//! - when: {verb: list, headers: {x-case: "7"}}
//!   delayMs: 5
//!   outcomes: [{tally: t, cells: [c], failures: 3}]
//!   then: {proceed: [{andLabelSelector: shard=a}, {setHeader: {name: x-a, value: b}}]}
//! - then: {refuse: {code: 429, message: no, retryAfterSeconds: 2}}
//! onResponse:
//! - status: 200
//!   echo: content-type
//!   then: {proceed: {edits: [{removeHeader: etag}], body: {cutAfter: 10, reset: close}}}
//! onObjects: {labels: {shard: a}}                          # with the edit askAboutObjects
//! ```

use ctrlmesh_sdk::{
    Crossing, Host, InstanceInfo, MatchRule, ObjectMetadata, Outcome, Phases, Plugin, Request, RequestVerdict,
    ResponseHead, ResponseVerdict, Subscription,
};
use ctrlmesh_test_guests::script::Script;

struct Scripted(Script);

impl Plugin for Scripted {
    type Settings = Script;

    fn configure(mut script: Script, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        let rules = match script.subscribe.take() {
            Some(lines) => lines.into_iter().map(Into::into).collect(),
            None => vec![MatchRule::any()],
        };
        let mut phases = Phases::empty();
        phases.set(Phases::ON_REQUEST, !script.on_request.is_empty());
        phases.set(Phases::ON_RESPONSE, !script.on_response.is_empty());
        phases.set(Phases::ON_COMPLETE, script.count_completed);
        Ok((Scripted(script), Subscription::new(phases, rules)))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        host.count("requests", "", 1);
        let line = self.0.on_request.iter().find(|line| line.is_for(req));
        line.map_or_else(RequestVerdict::proceed, |line| line.verdict(req, host))
    }

    fn on_response(&mut self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        host.count("responses", "", 1);
        let line = self.0.on_response.iter().find(|line| line.is_for(req, res));
        line.map_or_else(ResponseVerdict::proceed, |line| line.verdict(req, res))
    }

    fn on_objects(&mut self, req: &dyn Request, objects: &[ObjectMetadata], host: &dyn Host) -> Vec<bool> {
        self.0.on_objects.flags(req, objects, host)
    }

    fn on_complete(&mut self, _: &dyn Request, outcome: &Outcome, host: &dyn Host) {
        host.count("completed", &outcome.status.to_string(), 1);
    }

    fn on_crossed(&mut self, crossings: &[Crossing], host: &dyn Host) {
        for crossing in crossings {
            host.count("crossed", &crossing.tally, 1);
        }
    }
}

ctrlmesh_sdk::export_plugin!(Scripted);
