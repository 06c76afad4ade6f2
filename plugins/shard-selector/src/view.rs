//! The selector and the hash ranges of each resource: the `limits`, validated and compiled once, looked up for each request.

use std::collections::BTreeSet;

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{MatchRule, ObjectPredicate, Verb};
use ctrlmesh_wire::is_dns_subdomain;
use ctrlmesh_wire::objects::MAX_HASH_RANGES;

use crate::hash_ranges::KeptObjects;
use crate::selector;
use crate::settings::{Limit, ResourceRule};

/// Bounds on all limits together, since all may match one request. Far above any shard in use, far below what the host and an API server
/// accept in a query.
const MAX_BYTES: usize = 16 * 1024;
const MAX_REQUIREMENTS: usize = 256;
/// Bounds on the resulting subscription: a host accepts 256 rules and 64 KiB of text, and the lock needs some.
const MAX_SCOPES: usize = 200;
const MAX_NAME_BYTES: usize = 32 * 1024;

/// Verbs with selectors.
const COLLECTION_VERBS: [Verb; 3] = [Verb::List, Verb::Watch, Verb::Deletecollection];
/// Verbs that write an object, or a subresource of it.
const OBJECT_VERBS: [Verb; 4] = [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete];
/// Subresources of pods through which clients run commands and send bytes. WebSocket clients, such as kubectl, open them by a get.
const TUNNELS: [&str; 3] = ["attach", "exec", "portforward"];

/// Whether a get of this subresource is as good as a write.
pub(crate) fn is_tunnel(subresource: &str) -> bool {
    TUNNELS.contains(&subresource)
}

#[derive(Debug, Default)]
pub(crate) struct View {
    limits: Vec<CompiledLimit>,
    /// Whether the shard is one of several that hashes divide.
    has_hash_ranges: bool,
    warnings: Vec<String>,
    used: UsedLimits,
}

/// Usage of the bounds so far, over all limits.
#[derive(Debug, Default)]
struct UsedLimits {
    requirements: usize,
    bytes: usize,
    scopes: usize,
    name_bytes: usize,
    hash_ranges: usize,
}

#[derive(Debug)]
struct CompiledLimit {
    scopes: Vec<Scope>,
    excepted: Vec<Scope>,
    /// `None`: labels restrict nothing.
    selector: Option<String>,
    /// `None`: hashes restrict nothing.
    kept: Option<KeptObjects>,
    /// The objects that the shard may write. `None`: all.
    own: Option<ObjectPredicate>,
}

/// All pairs of a group and a resource.
#[derive(Debug)]
struct Scope {
    groups: Names,
    resources: Names,
}

#[derive(Debug)]
enum Names {
    Any,
    /// Never empty.
    These(Vec<String>),
}

impl View {
    pub(crate) fn new(limits: &[Limit]) -> Result<Self, Invalid> {
        let mut view = Self {
            has_hash_ranges: limits.iter().any(|limit| limit.hash_ranges.is_some()),
            ..Self::default()
        };
        for (index, limit) in limits.iter().enumerate() {
            view.add_limit(index, limit)
                .map_err(|error| error.index(index).field("limits"))?;
        }
        Ok(view)
    }

    fn add_limit(&mut self, index: usize, limit: &Limit) -> Result<(), Invalid> {
        let scopes = self.compile_scopes(index, limit)?;
        let excepted = compile_exceptions(limit)?;
        let kept = self.compile_hash_ranges(limit)?;
        let requirements = limit.selector.as_ref().map(selector::requirements_of).transpose();
        let requirements = requirements
            .map_err(|error| error.field("selector"))?
            .unwrap_or_default();
        if requirements.is_empty() && kept.is_none() {
            self.warnings
                .push(format!("limits[{index}] has no selector and restricts nothing"));
            return Ok(());
        }
        let selector = requirements.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        self.used.requirements += requirements.len();
        self.used.bytes += selector.len();
        if self.used.bytes > MAX_BYTES || self.used.requirements > MAX_REQUIREMENTS {
            let message = format!(
                "up to here the selectors have {} bytes and {} requirements; at most {MAX_BYTES} and {MAX_REQUIREMENTS} \
                 fit a request; use fewer values",
                self.used.bytes, self.used.requirements
            );
            return Err(Invalid::new(message).field("selector"));
        }
        self.used.scopes += scopes.len() + excepted.len();
        self.used.name_bytes += scopes.iter().chain(&excepted).map(Scope::name_bytes).sum::<usize>();
        if self.used.scopes > MAX_SCOPES || self.used.name_bytes > MAX_NAME_BYTES {
            let message = format!(
                "up to here there are {} elements with {} bytes of names; at most {MAX_SCOPES} and {MAX_NAME_BYTES} are \
                 taken; put more resources into one element, or use \"*\"",
                self.used.scopes, self.used.name_bytes
            );
            return Err(Invalid::new(message).field("relateResources"));
        }
        if !scopes.is_empty() {
            let own = self.compile_own_objects(limit, &requirements, kept.as_ref());
            self.limits.push(CompiledLimit {
                scopes,
                excepted,
                selector: (!selector.is_empty()).then_some(selector),
                kept,
                own,
            });
        }
        Ok(())
    }

    /// The objects that the shard may write, of those that a limit names. `None`: all.
    fn compile_own_objects(
        &self,
        limit: &Limit,
        requirements: &BTreeSet<String>,
        kept: Option<&KeptObjects>,
    ) -> Option<ObjectPredicate> {
        // Pods that leave a shard are shown nothing of any resource, by a limit that names none. They go on writing what is not divided,
        // such as other locks.
        let names_resources = limit.relate_resources.as_ref().is_some_and(|rules| !rules.is_empty());
        if self.has_hash_ranges && names_resources && selects_nothing(requirements) {
            return Some(ObjectPredicate::any([]));
        }
        let divided = kept.filter(|kept| kept.is_divided);
        divided.map(|kept| kept.predicate.clone())
    }

    /// Refuses more ranges of all limits together than the host takes in one predicate.
    fn compile_hash_ranges(&mut self, limit: &Limit) -> Result<Option<KeptObjects>, Invalid> {
        let Some(hash) = &limit.hash_ranges else {
            return Ok(None);
        };
        self.used.hash_ranges += hash.ranges.len();
        if self.used.hash_ranges > MAX_HASH_RANGES {
            let message = format!(
                "up to here there are {} ranges; at most {MAX_HASH_RANGES} are taken; join neighbours, as in 0-340",
                self.used.hash_ranges
            );
            return Err(Invalid::new(message).field("ranges").field("hashRanges"));
        }
        let kept = KeptObjects::new(hash);
        kept.map(Some).map_err(|error| error.field("hashRanges"))
    }

    fn compile_scopes(&mut self, index: usize, limit: &Limit) -> Result<Vec<Scope>, Invalid> {
        let rules = limit.relate_resources.as_deref().unwrap_or_default();
        if rules.is_empty() {
            return Ok(vec![Scope {
                groups: Names::Any,
                resources: Names::Any,
            }]);
        }
        let mut scopes = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            match Scope::new(rule).map_err(|error| error.index(at).field("relateResources"))? {
                Some(scope) => scopes.push(scope),
                None => self.warnings.push(format!(
                    "limits[{index}].relateResources[{at}] matches nothing: name both apiGroups and resources"
                )),
            }
        }
        Ok(scopes)
    }

    /// Warnings about settings that are valid but have no effect.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// Match rules for the requests of [`View::selector_for`], [`View::predicate_for`] and [`View::own_objects`]. Resources that a limit
    /// leaves out are among them, and so are creates. `with_gets`: gets by name, too;
    /// otherwise only those that open tunnels into pods.
    pub(crate) fn match_rules(&self, with_gets: bool) -> impl Iterator<Item = MatchRule> {
        let own_pods = self.own_objects("", "pods").filter(|_| !with_gets);
        let tunnels = own_pods.map(|_| {
            let pods = MatchRule::api().groups([""]).resources(["pods"]);
            pods.verbs([Verb::Get]).subresources(TUNNELS)
        });
        let rules = self.limits.iter().flat_map(move |limit| {
            let is_fenced = limit.own.is_some();
            limit.scopes.iter().map(move |scope| {
                let rule = MatchRule::api()
                    .groups(scope.groups.match_rule_texts())
                    .resources(scope.resources.match_rule_texts());
                if !is_fenced {
                    return rule.verbs(COLLECTION_VERBS).subresources([""]);
                }
                let gets = with_gets.then_some(Verb::Get);
                rule.verbs(COLLECTION_VERBS.into_iter().chain(OBJECT_VERBS).chain(gets))
            })
        });
        rules.chain(tunnels)
    }

    /// The selectors of all matching limits, ANDed: each stays a requirement of its own, so that none can replace another.
    pub(crate) fn selector_for(&self, group: &str, resource: &str) -> Option<String> {
        let mut selectors = self
            .limits_of(group, resource)
            .filter_map(|limit| limit.selector.as_deref());
        let mut selector = selectors.next()?.to_owned();
        for other in selectors {
            selector.push(',');
            selector.push_str(other);
        }
        Some(selector)
    }

    /// The hash ranges of all matching limits: objects that are in the ranges of each.
    pub(crate) fn predicate_for(&self, group: &str, resource: &str) -> Option<ObjectPredicate> {
        let mut kept = self
            .limits_of(group, resource)
            .filter_map(|limit| Some(limit.kept.as_ref()?.predicate.clone()))
            .peekable();
        kept.peek()?;
        Some(ObjectPredicate::all(kept))
    }

    /// Whether a matching limit leaves out objects because of their hashes.
    pub(crate) fn is_divided(&self, group: &str, resource: &str) -> bool {
        let mut kept = self.limits_of(group, resource).filter_map(|limit| limit.kept.as_ref());
        kept.any(|kept| kept.is_divided)
    }

    /// The objects of a resource that the shard may write: those that each matching limit leaves in by their hashes. `None`: all.
    pub(crate) fn own_objects(&self, group: &str, resource: &str) -> Option<ObjectPredicate> {
        let limits = self
            .limits_of(group, resource)
            .filter(|limit| limit.is_fence_of(group, resource));
        let mut own = limits.filter_map(|limit| limit.own.clone()).peekable();
        own.peek()?;
        Some(ObjectPredicate::all(own))
    }

    fn limits_of(&self, group: &str, resource: &str) -> impl Iterator<Item = &CompiledLimit> {
        self.limits.iter().filter(move |limit| limit.matches(group, resource))
    }
}

/// Whether one requirement is the opposite of another, as in the selector of a shard that has none of these objects.
fn selects_nothing(requirements: &BTreeSet<String>) -> bool {
    let mut keys = requirements.iter().filter_map(|text| text.strip_prefix('!'));
    keys.any(|key| requirements.contains(key))
}

/// Unlike `relateResources`, an empty list is no resource.
fn compile_exceptions(limit: &Limit) -> Result<Vec<Scope>, Invalid> {
    let rules = limit.except_resources.as_deref().unwrap_or_default();
    let mut scopes = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        let scope = Scope::new(rule).map_err(|error| error.index(at).field("exceptResources"))?;
        scopes.extend(scope);
    }
    Ok(scopes)
}

impl CompiledLimit {
    fn matches(&self, group: &str, resource: &str) -> bool {
        let has = |scopes: &[Scope]| scopes.iter().any(|scope| scope.contains(group, resource));
        has(&self.scopes) && !has(&self.excepted)
    }

    /// Whether writes are limited, too. Those of events are only if the limit names them: a controller updates its own events, whose
    /// hashes say nothing.
    fn is_fence_of(&self, group: &str, resource: &str) -> bool {
        let is_event = resource == "events" && matches!(group, "" | "events.k8s.io");
        let mut scopes = self.scopes.iter();
        !is_event || scopes.any(|scope| scope.resources.are_named() && scope.contains(group, resource))
    }
}

impl Scope {
    fn contains(&self, group: &str, resource: &str) -> bool {
        self.resources.contains_name(resource) && self.groups.contains_name(group)
    }

    /// `None` if it matches nothing.
    fn new(rule: &ResourceRule) -> Result<Option<Self>, Invalid> {
        let groups = Names::new(rule.api_groups.as_deref(), check_group).map_err(|error| error.field("apiGroups"))?;
        let resources = Names::new(rule.resources.as_deref(), check_resource);
        let resources = resources.map_err(|error| error.field("resources"))?;
        Ok(groups
            .zip(resources)
            .map(|(groups, resources)| Self { groups, resources }))
    }

    fn name_bytes(&self) -> usize {
        [&self.groups, &self.resources].into_iter().map(Names::text_bytes).sum()
    }
}

impl Names {
    /// `None` for an empty list, which matches nothing.
    fn new(names: Option<&[String]>, check: fn(&str) -> Result<(), String>) -> Result<Option<Self>, Invalid> {
        let names = names.unwrap_or_default();
        if names.iter().any(|name| name == "*") {
            if names.len() > 1 {
                return Err(Invalid::new(
                    "\"*\" must be the only element: it already matches everything; remove it or the others",
                ));
            }
            return Ok(Some(Self::Any));
        }
        for (index, name) in names.iter().enumerate() {
            check(name).map_err(|error| Invalid::new(error).index(index))?;
        }
        Ok((!names.is_empty()).then(|| Self::These(names.to_vec())))
    }

    fn contains_name(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::These(names) => names.iter().any(|candidate| candidate == name),
        }
    }

    /// Whether it is a list of names, and no wildcard.
    fn are_named(&self) -> bool {
        matches!(self, Self::These(_))
    }

    /// Size as the host counts it: one more for each name.
    fn text_bytes(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::These(names) => names.iter().map(|name| name.len() + 1).sum(),
        }
    }

    /// As a field of a match rule, where an empty list matches everything.
    fn match_rule_texts(&self) -> Vec<String> {
        match self {
            Self::Any => Vec::new(),
            Self::These(names) => names.clone(),
        }
    }
}

fn check_group(group: &str) -> Result<(), String> {
    if group.is_empty() || is_dns_subdomain(group) {
        return Ok(());
    }
    Err(format!(
        "invalid API group {group:?}: write the group without version, such as \"apps\", \"\" for the core group, or \"*\" \
         alone"
    ))
}

fn check_resource(resource: &str) -> Result<(), String> {
    if resource.contains('/') {
        return Err(format!(
            "{resource:?} names a subresource: only whole resources are listed; remove what follows the slash"
        ));
    }
    if !resource.contains('.') && is_dns_subdomain(resource) {
        return Ok(());
    }
    Err(format!(
        "invalid resource {resource:?}: write the plural name in lower case, such as \"pods\", or \"*\" alone"
    ))
}
