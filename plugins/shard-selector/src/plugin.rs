//! The plugin: builds view and lock from the settings once, then looks them up for each request. Collections are narrowed to the shard's
//! objects. Writes of other objects of a divided kind are refused.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{
    Host, InstanceInfo, MatchRule, ObjectRefusal, Phases, Plugin, Request, RequestEdit, RequestVerdict, Subscription,
    Verb,
};

use crate::freshness;
use crate::lock::Lock;
use crate::settings::{NamedGets, Settings};
use crate::view::{self, View};

/// A selector that every object matches: no object has this label (`NO_OBJECT_KEY` of the contract).
const ALL_OBJECTS: &str = "!ctrlmesh.kusionstack.io/nothing";

/// One shard's view of the API.
pub(crate) struct ShardSelector {
    view: View,
    lock: Option<Lock>,
    consistent_reads: bool,
    named_gets: NamedGets,
}

impl Plugin for ShardSelector {
    type Settings = Settings;

    fn configure(settings: Settings, about: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let view = View::new(settings.limits.as_deref().unwrap_or_default())?;
        let lock = build_lock(&settings, about)?;
        for warning in view.warnings() {
            host.warn(warning);
        }
        let named_gets = settings.named_gets.unwrap_or_default();
        let rules: Vec<MatchRule> = view
            .match_rules(named_gets != NamedGets::Pass)
            .chain(lock.iter().flat_map(Lock::match_rules))
            .collect();
        if rules.is_empty() {
            host.warn("no limit has an effect and no leaderElectionName is set: this shard sees everything");
        }
        let plugin = Self {
            view,
            lock,
            consistent_reads: settings.consistent_reads.unwrap_or_default(),
            named_gets,
        };
        Ok((plugin, Subscription::new(Phases::ON_REQUEST, rules)))
    }

    fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
        // The verdict depends on nothing but the settings and the request.
        self.verdict_for(req).reusable()
    }
}

impl ShardSelector {
    /// Reads facts with few values first, and none that does not matter.
    fn verdict_for(&self, req: &dyn Request) -> RequestVerdict {
        // The lock comes first: it has no shard label, so a watch for it by name must not get the shard's selector.
        if let Some(lock) = self.lock.as_ref().filter(|lock| lock.is_about_lock(req)) {
            return RequestVerdict::edit([lock.rename_edit()]);
        }
        let reads_collection =
            matches!(req.verb(), Verb::List | Verb::Watch | Verb::Deletecollection) && req.subresource().is_empty();
        if !reads_collection {
            return self.verdict_for_object(req);
        }
        let (group, resource) = (req.group(), req.resource());
        let mut selector = self.view.selector_for(group, resource);
        let mut kept = self.view.predicate_for(group, resource);
        if req.verb() == Verb::Deletecollection && kept.is_some() && !self.view.is_divided(group, resource) {
            // The API server can delete the whole collection, and the host need not list it. But the host must see that the shard limits
            // the resource, as for reads with all ranges.
            kept = None;
            selector.get_or_insert_with(|| ALL_OBJECTS.to_owned());
        }
        let mut edits: Vec<RequestEdit> = selector.map(RequestEdit::AndLabelSelector).into_iter().collect();
        edits.extend(kept.map(RequestEdit::keep_objects));
        if self.consistent_reads && !edits.is_empty() {
            edits.extend(freshness::no_older_than_now(req));
        }
        RequestVerdict::edit(edits)
    }

    /// The verdict on a request that names one object. A create does so with a subresource only.
    fn verdict_for_object(&self, req: &dyn Request) -> RequestVerdict {
        let refusal = match (req.verb(), self.named_gets) {
            (Verb::Update | Verb::Patch | Verb::Delete, _) => ObjectRefusal::Conflict,
            (Verb::Create, _) if !req.subresource().is_empty() => ObjectRefusal::Conflict,
            (Verb::Get, _) if view::is_tunnel(req.subresource()) => ObjectRefusal::Conflict,
            (Verb::Get, NamedGets::NotFound) => ObjectRefusal::NotFound,
            (Verb::Get, NamedGets::Forbidden) => ObjectRefusal::Forbidden,
            _ => return RequestVerdict::proceed(),
        };
        let own = self.view.own_objects(req.group(), req.resource());
        RequestVerdict::edit(own.map(|own| RequestEdit::require_object_match(own, refusal)))
    }
}

fn build_lock(settings: &Settings, about: &InstanceInfo) -> Result<Option<Lock>, Invalid> {
    let Some(name) = &settings.leader_election_name else {
        return Ok(None);
    };
    let Some(shard) = &settings.shard else {
        return Err(Invalid::new("required with leaderElectionName: the lock becomes <lock>---<shard>").field("shard"));
    };
    Lock::new(name, shard, &about.pod_namespace).map(Some)
}
