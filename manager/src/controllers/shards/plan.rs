//! Compares the desired shards of a root with the existing ones. Pure.

use ctrlmesh_contract::Mistakes;
use ctrlmesh_contract::names::finalizers::PROTECTED;
use ctrlmesh_contract::names::{annotations, labels};
use ctrlmesh_manager_api::ShardingConfig;
use ctrlmesh_manager_api::document::text_at;
use ctrlmesh_manager_api::status::{ConditionDraft, ConditionStatus, Reason, condition};
use ctrlmesh_manager_planner::auto_shard::{
    LabelKeys, MAX_SHARDS, Workload, auto_shard, follow_replicas, owner_uid, with_shards,
};
use ctrlmesh_manager_planner::validate::{Object, check_sharding_config, read};
use kube::Resource as _;
use serde_json::Value;

use super::status::has_status;

/// Maximum names in a condition.
const MAX_NAMED: usize = 5;

/// The changes for a root, in this order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Add the finalizer to the root.
    pub(super) protect: bool,
    /// Shards to create or edit.
    pub(super) writes: Vec<Write>,
    /// Shards to delete: name and UID.
    pub(super) deletes: Vec<(String, String)>,
    /// Names of all shards, in the order of their numbers; `None`: unchanged.
    pub(super) made: Option<Vec<String>>,
    /// The condition; `None`: the object is not a root (any more), so it has none.
    pub(super) condition: Option<ConditionDraft>,
    /// Remove the finalizer from the root.
    pub(super) release: bool,
}

/// A shard to write.
#[derive(Debug, PartialEq)]
pub(super) struct Write {
    /// The desired shard.
    pub(super) child: ShardingConfig,
    /// The version that was seen; `None`: no object has its name.
    pub(super) version: Option<String>,
}

/// Whether this ShardingConfig may need changes.
pub(super) fn needs_plan(document: &Value, documents: &[Value]) -> bool {
    let has_trace = has_finalizer(document) && !is_deleted(document) || has_status(document);
    is_root(document) || has_trace || children_of(document, documents).next().is_some()
}

/// What the shards of a namespace's roots depend on.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    /// All ShardingConfigs of the namespace.
    pub(super) documents: &'a [Value],
    /// The StatefulSet of the root. It matters only to a root that follows its replicas.
    pub(super) workload: Workload,
    /// Names of managed namespaces.
    pub(super) namespaces: &'a [String],
    pub(super) keys: &'a LabelKeys,
}

pub(super) fn plan_root(root: &Value, around: Surroundings<'_>) -> Plan {
    let documents = around.documents;
    if is_deleted(root) || !is_root(root) {
        return plan_without_shards(root, documents, None);
    }
    let config = match read(root) {
        Ok(Object::ShardingConfig(config)) => *config,
        Ok(_) => return Plan::default(),
        Err(mistakes) => return invalid_plan(&mistakes),
    };
    let mistakes = check_sharding_config(&config, around.keys).mistakes;
    if !mistakes.list().is_empty() {
        return invalid_plan(&mistakes);
    }
    let Some(spec) = config.spec.root.as_ref().filter(|spec| spec.disable != Some(true)) else {
        let disabled = not_sharded(Reason::DISABLED, "root.disable is true: no shard is made");
        return plan_without_shards(root, documents, Some(disabled));
    };
    let existing = last_shard(root, &spec.prefix, documents);
    let Some(size) = follow_replicas(spec, around.workload, existing) else {
        return plan_shards(root, &config, around);
    };
    let unfollowed = size.problem.map(|problem| not_sharded(problem.code, problem.message));
    if size.shards == 0 {
        return Plan {
            condition: unfollowed,
            ..Plan::default()
        };
    }
    let mut plan = plan_shards(root, &with_shards(&config, size.shards), around);
    if let (Some(condition), Some(unfollowed)) = (&mut plan.condition, unfollowed)
        && condition.status == ConditionStatus::True
    {
        *condition = unfollowed;
    }
    plan
}

/// The number of the last shard that was made from this root; 0: there is none.
fn last_shard(root: &Value, prefix: &str, documents: &[Value]) -> i32 {
    let number = |shard: &Value| -> Option<i32> {
        let name = text_at(shard, "/metadata/name").strip_prefix(prefix)?;
        name.strip_prefix('-')?.strip_suffix("-normal")?.parse().ok()
    };
    let shards = children_of(root, documents).filter(|shard| !is_deleted(shard));
    let numbers = shards
        .filter_map(number)
        .filter(|number| (1..=MAX_SHARDS).contains(number));
    numbers.max().unwrap_or_default()
}

fn invalid_plan(mistakes: &Mistakes) -> Plan {
    let message = format!("{mistakes}; the shards stay as they are");
    Plan {
        condition: Some(not_sharded(Reason::INVALID, message)),
        ..Plan::default()
    }
}

/// The plan of a valid root that says how many shards it has.
fn plan_shards(root: &Value, config: &ShardingConfig, around: Surroundings<'_>) -> Plan {
    match desired_shards(config, around.namespaces, around.keys) {
        Ok(desired) => plan_changes(root, &desired, around.documents),
        Err(mistakes) => invalid_plan(&mistakes),
    }
}

/// The shards of a valid root. Fails if one of them is invalid.
fn desired_shards(
    config: &ShardingConfig,
    namespaces: &[String],
    keys: &LabelKeys,
) -> Result<Vec<ShardingConfig>, Mistakes> {
    let children = auto_shard(config, namespaces, keys)?;
    // The names of namespaces may make a shard invalid.
    for child in &children {
        let mistakes = check_sharding_config(child, keys).mistakes;
        if let Some(mistake) = mistakes.list().first() {
            let name = child.metadata.name.as_deref().unwrap_or_default();
            let mut mistakes = Mistakes::default();
            let problem = format!(
                "makes {name} with {}, which does not do: {}",
                mistake.path, mistake.problem
            );
            mistakes.add("spec.root", problem);
            return Err(mistakes);
        }
    }
    Ok(children)
}

/// The plan of an object that should have no shards.
fn plan_without_shards(root: &Value, documents: &[Value], condition: Option<ConditionDraft>) -> Plan {
    let children: Vec<&Value> = children_of(root, documents).collect();
    let condition = match (condition, waits_for(&children)) {
        (Some(mut condition), Some(waits)) => {
            condition.reason.message.push_str(&format!("; this waits for {waits}"));
            Some(condition)
        }
        (None, Some(waits)) if is_root(root) && is_deleted(root) => Some(not_sharded(
            Reason::DELETING,
            format!("this root is deleted when its shards are gone; it waits for {waits}"),
        )),
        (condition, _) => condition,
    };
    // If the object never was a root, distribution removes the finalizer when the object is deleted.
    let is_ours = is_root(root) || !is_deleted(root);
    Plan {
        deletes: children.iter().filter_map(|child| shard_to_delete(child)).collect(),
        made: Some(Vec::new()),
        condition,
        release: has_finalizer(root) && is_ours && children.is_empty(),
        ..Plan::default()
    }
}

/// The shards that still exist, and where to read why. `None`: there are none.
fn waits_for(children: &[&Value]) -> Option<String> {
    let names: Vec<&str> = children.iter().map(|child| text_at(child, "/metadata/name")).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: the condition Distributed of each shard says what it waits for, and has the command that releases it by force",
            joined_names(&names)
        )
    })
}

fn plan_changes(root: &Value, desired: &[ShardingConfig], documents: &[Value]) -> Plan {
    let names: Vec<String> = desired.iter().filter_map(|child| child.metadata.name.clone()).collect();
    if let Some(blocked) = blocking_reason(root, &names, documents) {
        return Plan {
            condition: Some(blocked),
            ..Plan::default()
        };
    }
    let of_name = |name: &str| {
        let mut named = documents.iter();
        named.find(|document| text_at(document, "/metadata/name") == name)
    };
    let write = |child: &ShardingConfig| {
        let stored = of_name(child.metadata.name.as_deref().unwrap_or_default());
        let is_same = stored.is_some_and(|stored| is_as_desired(stored, child));
        (!is_same).then(|| Write {
            child: child.clone(),
            version: stored.map(|stored| text_at(stored, "/metadata/resourceVersion").to_owned()),
        })
    };
    let others =
        children_of(root, documents).filter(|child| !names.iter().any(|name| name == text_at(child, "/metadata/name")));
    let message = format!("{} shards", names.len());
    Plan {
        protect: !has_finalizer(root),
        writes: desired.iter().filter_map(write).collect(),
        deletes: others.filter_map(shard_to_delete).collect(),
        made: Some(names),
        condition: Some(ConditionDraft::new(
            condition::SHARDED,
            ConditionStatus::True,
            Reason::SHARDED,
            message,
        )),
        release: false,
    }
}

/// Why nothing can be written now.
fn blocking_reason(root: &Value, names: &[String], documents: &[Value]) -> Option<ConditionDraft> {
    let is_desired = |document: &&Value| names.iter().any(|name| name == text_at(document, "/metadata/name"));
    let there: Vec<&Value> = documents.iter().filter(is_desired).collect();
    let named = |is_such: &dyn Fn(&Value) -> bool| -> Vec<&str> {
        let such = there.iter().filter(|document| is_such(document));
        such.map(|document| text_at(document, "/metadata/name")).collect()
    };
    let taken = named(&|document| !is_child(document, root));
    if !taken.is_empty() {
        let problem = format!(
            "these have names of its shards and were not made from this root, so the shards stay as they are: {}. Delete them, or write \
             another root.prefix",
            joined_names(&taken)
        );
        return Some(not_sharded(Reason::NAME_TAKEN, problem));
    }
    let going = named(&is_deleted);
    let problem = || {
        format!(
            "these shards are being deleted, and are made again when they are gone: {}",
            joined_names(&going)
        )
    };
    (!going.is_empty()).then(|| not_sharded(Reason::PROGRESSING, problem()))
}

fn not_sharded(code: &'static str, message: impl Into<String>) -> ConditionDraft {
    ConditionDraft::new(condition::SHARDED, ConditionStatus::False, code, message)
}

/// The condition while the API server refuses a shard.
pub(super) fn refused_condition(problem: &str) -> ConditionDraft {
    let message = format!("the API server rejects a shard, so all shards stay as they are: {problem}");
    not_sharded(Reason::REFUSED, message)
}

fn joined_names(names: &[&str]) -> String {
    let some: Vec<&str> = names.iter().copied().take(MAX_NAMED).collect();
    match names.len().saturating_sub(MAX_NAMED) {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}

/// `None`: it is being deleted already.
fn shard_to_delete(child: &Value) -> Option<(String, String)> {
    let field = |pointer: &str| text_at(child, pointer).to_owned();
    (!is_deleted(child)).then(|| (field("/metadata/name"), field("/metadata/uid")))
}

/// Whether a write would change nothing. Additions by others do not matter, unless they are in the spec.
fn is_as_desired(stored: &Value, child: &ShardingConfig) -> bool {
    let Ok(Object::ShardingConfig(stored)) = read(stored) else {
        return false;
    };
    let (has, wants) = (stored.meta(), child.meta());
    let has_labels = wants.labels.iter().flatten().all(|(key, value)| {
        let labels = has.labels.as_ref();
        labels.and_then(|labels| labels.get(key)) == Some(value)
    });
    let has_annotations = wants.annotations.iter().flatten().all(|(key, value)| {
        let annotations = has.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(key)) == Some(value)
    });
    let owners = has.owner_references.as_deref().unwrap_or_default();
    let has_owner = wants
        .owner_references
        .iter()
        .flatten()
        .all(|owner| owners.contains(owner));
    is_same_spec(&stored, child) && has_labels && has_annotations && has_owner
}

/// Whether two objects have the same spec.
pub(super) fn is_same_spec(stored: &ShardingConfig, desired: &ShardingConfig) -> bool {
    stored.spec == desired.spec
}

/// The shards that were made from this root.
fn children_of<'a>(root: &'a Value, documents: &'a [Value]) -> impl Iterator<Item = &'a Value> {
    documents.iter().filter(move |document| is_child(document, root))
}

fn is_child(document: &Value, root: &Value) -> bool {
    let label = document
        .get("metadata")
        .and_then(|metadata| metadata.get("labels")?.get(labels::AUTO_SHARDING_ROOT)?.as_str());
    if label != Some(text_at(root, "/metadata/name")) {
        return false;
    }
    match owner_uid(document) {
        Some(uid) => uid == text_at(root, "/metadata/uid"),
        None => is_root(root) && was_made_by_kusionstack(document),
    }
}

/// KusionStack's manager gave shards no owner, but a hash.
fn was_made_by_kusionstack(document: &Value) -> bool {
    let Some(metadata) = document.get("metadata") else {
        return false;
    };
    let owners = metadata.get("ownerReferences").and_then(Value::as_array);
    let hash = metadata
        .get("annotations")
        .and_then(|all| all.get(annotations::AUTO_SHARDING_HASH));
    owners.is_none_or(Vec::is_empty) && hash.is_some()
}

fn is_root(document: &Value) -> bool {
    document.pointer("/spec/root").is_some_and(|root| !root.is_null())
}

fn is_deleted(document: &Value) -> bool {
    document.pointer("/metadata/deletionTimestamp").is_some()
}

pub(super) fn has_finalizer(document: &Value) -> bool {
    let finalizers = document.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|list| list.iter().any(|finalizer| finalizer == PROTECTED))
}
