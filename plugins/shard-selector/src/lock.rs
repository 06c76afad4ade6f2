//! Leader election per shard: the controller uses its lock's name, the API server sees `<lock>---<shard>`. This file decides which
//! requests carry that name; the host finds it in path, query, body and response.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{MatchRule, Request, RequestEdit, Verb};
use ctrlmesh_wire::is_dns_subdomain;

/// Separates the names of lock and shard, as in existing deployments.
const SEPARATOR: &str = "---";

/// Resources that client-go's `resourcelock` has locks of, by group.
const LOCKS: [(&str, &[&str]); 2] = [("coordination.k8s.io", &["leases"]), ("", &["configmaps", "endpoints"])];
/// Groups whose events report a change of leader by the lock's name.
const EVENT_GROUPS: [&str; 2] = ["", "events.k8s.io"];
/// Verbs with the lock's name in path or field selector.
const NAMED: [Verb; 6] = [
    Verb::Get,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::List,
    Verb::Watch,
];

#[derive(Debug)]
pub(crate) struct Lock {
    name: String,
    sharded: String,
    namespace: String,
}

impl Lock {
    /// The lock `name` in `namespace`, for this shard.
    pub(crate) fn new(name: &str, shard: &str, namespace: &str) -> Result<Self, Invalid> {
        let sharded = format!("{name}{SEPARATOR}{shard}");
        for (field, value) in [("leaderElectionName", name), ("shard", shard)] {
            if !is_dns_subdomain(value) {
                let message = format!(
                    "{value:?} is not the name of an object: lower-case letters, digits, '-' and '.', with a letter or \
                     digit at both ends"
                );
                return Err(Invalid::new(message).field(field));
            }
        }
        if !is_dns_subdomain(&sharded) {
            let message = format!(
                "with the lock's name it makes {} characters, at most 253 are a name",
                sharded.len()
            );
            return Err(Invalid::new(message).field("shard"));
        }
        if namespace.is_empty() {
            let message =
                "the pod's namespace is not known to the sidecar, and the lock lies in it; set it, or remove this";
            return Err(Invalid::new(message).field("leaderElectionName"));
        }
        Ok(Self {
            name: name.to_owned(),
            sharded,
            namespace: namespace.to_owned(),
        })
    }

    /// Match rules for the requests of [`Lock::is_about_lock`].
    pub(crate) fn match_rules(&self) -> impl Iterator<Item = MatchRule> {
        let here = || {
            MatchRule::api()
                .namespaces([self.namespace.as_str()])
                .subresources([""])
        };
        let locks = LOCKS.into_iter().flat_map(move |(group, resources)| {
            let lock = || here().groups([group]).resources(resources.iter().copied());
            // A create has its name in the body, which only the host reads.
            [
                lock().verbs(NAMED).names([self.name.as_str()]),
                lock().verbs([Verb::Create]),
            ]
        });
        let events = here().groups(EVENT_GROUPS).resources(["events"]).verbs([Verb::Create]);
        locks.chain([events])
    }

    /// Whether a request is, or may be, about the lock.
    pub(crate) fn is_about_lock(&self, req: &dyn Request) -> bool {
        let is_create = req.verb() == Verb::Create;
        if !is_create && !NAMED.contains(&req.verb()) || !req.subresource().is_empty() {
            return false;
        }
        let (group, resource) = (req.group(), req.resource());
        let is_lock = LOCKS
            .iter()
            .any(|(lock_group, resources)| *lock_group == group && resources.contains(&resource));
        let is_event = || is_create && resource == "events" && EVENT_GROUPS.contains(&group);
        (is_lock || is_event()) && req.namespace() == self.namespace && (is_create || req.name() == self.name)
    }

    pub(crate) fn rename_edit(&self) -> RequestEdit {
        RequestEdit::rename_object(self.name.as_str(), self.sharded.as_str())
    }
}
