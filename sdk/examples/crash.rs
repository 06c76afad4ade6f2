//! A plugin that is broken on purpose: it traps on every request that it sees. For the demo, which swaps it in and shows
//! what it costs (one instance, and nothing else).

use ctrlmesh_sdk::{Host, InstanceInfo, MatchRule, Phases, Plugin, Request, RequestVerdict, Subscription};

struct Crash;

impl Plugin for Crash {
    // Any settings: it takes the place of other plugins, which have their own.
    type Settings = serde::de::IgnoredAny;

    fn configure(_: Self::Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        Ok((Crash, Subscription::new(Phases::ON_REQUEST, [MatchRule::api()])))
    }

    #[expect(clippy::panic, reason = "to crash is what this plugin is for")]
    fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
        panic!("broken on purpose, at {:?} {}", req.verb(), req.resource());
    }
}

ctrlmesh_sdk::export_plugin!(Crash);
