//! The next version of shard-selector, for demonstrations of a plugin update under load: the same view from other bytes. It counts its
//! decisions, and names the shard in each response that it changed.

use ctrlmesh_sdk::{
    Host, InstanceInfo, Phases, Plugin, Request, RequestVerdict, ResponseHead, ResponsePlan, ResponseVerdict,
    Subscription,
};

// Included instead of linked: the library is a component with exports of its own.
#[path = "../src/freshness.rs"]
mod freshness;
#[path = "../src/hash_ranges.rs"]
mod hash_ranges;
#[path = "../src/lock.rs"]
mod lock;
#[path = "../src/plugin.rs"]
mod plugin;
#[path = "../src/selector.rs"]
mod selector;
#[path = "../src/settings.rs"]
mod settings;
#[path = "../src/view.rs"]
mod view;

struct Next {
    selector: plugin::ShardSelector,
    shard: String,
}

impl Plugin for Next {
    type Settings = settings::Settings;

    fn configure(
        settings: Self::Settings,
        about: &InstanceInfo,
        host: &dyn Host,
    ) -> Result<(Self, Subscription), String> {
        let shard = settings.shard.clone().unwrap_or_else(|| about.entry.clone());
        let (selector, subscription) = plugin::ShardSelector::configure(settings, about, host)?;
        let phases = subscription.phases | Phases::ON_RESPONSE;
        Ok((Self { selector, shard }, Subscription { phases, ..subscription }))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        host.count("decisions", &self.shard, 1);
        self.selector.on_request(req, host)
    }

    fn on_response(&mut self, _: &dyn Request, _: &dyn ResponseHead, _: &dyn Host) -> ResponseVerdict {
        ResponseVerdict::edit(ResponsePlan::default().set_header("x-ctrlmesh-shard", self.shard.as_str()))
    }
}

ctrlmesh_sdk::export_plugin!(Next);

#[cfg(test)]
mod tests {
    use ctrlmesh_sdk::testing::{Bench, TestRequest, TestResponse};
    use ctrlmesh_sdk::{RequestEdit, ResponseVerdict};

    use super::*;

    const SETTINGS: &str = r#"{"limits": [{"selector": {"matchLabels": {"shard": "a"}}}], "shard": "a"}"#;

    #[test]
    fn next_version_keeps_the_view_and_counts_decisions() {
        let mut bench = Bench::<Next>::new(SETTINGS).unwrap();
        let pods = TestRequest::list("", "pods");
        assert!(
            bench.wakes(&pods)
                && bench
                    .subscription
                    .phases
                    .contains(Phases::ON_REQUEST | Phases::ON_RESPONSE)
        );
        let narrowed = RequestVerdict::edit([RequestEdit::and_label_selector("shard=a")]).reusable();
        assert_eq!(bench.on_request(&pods), narrowed);
        assert_eq!(bench.host.counter("decisions", "a"), 1);
        let marked = ResponseVerdict::edit(ResponsePlan::default().set_header("x-ctrlmesh-shard", "a"));
        assert_eq!(bench.on_response(&pods, &TestResponse::new(200)), marked);
    }

    #[test]
    fn entry_name_is_shown_without_a_shard() {
        let mut bench = Bench::<Next>::new("{}").unwrap();
        let marked = ResponseVerdict::edit(ResponsePlan::default().set_header("x-ctrlmesh-shard", "test"));
        assert_eq!(
            bench.on_response(&TestRequest::list("", "pods"), &TestResponse::new(200)),
            marked
        );
    }
}
