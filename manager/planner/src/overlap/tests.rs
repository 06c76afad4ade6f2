//! Overlaps of shards that people wrote.

use ctrlmesh_contract::names::labels;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn shard(name: &str, resources: &Value, selector: &Value) -> ShardingConfig {
    let document = json!({
        "apiVersion": "ctrlmesh.kusionstack.io/v1alpha1",
        "kind": "ShardingConfig",
        "metadata": {"name": name, "namespace": "operators"},
        "spec": {
            "controller": {"leaderElectionName": "lock"},
            "selector": {"matchLabels": {"shard": name}},
            "limits": [{"relateResources": resources, "selector": selector}],
        },
    });
    serde_json::from_value(document).unwrap()
}

fn pods() -> Value {
    json!([{"apiGroups": ["*"], "resources": ["pods"]}])
}

fn in_namespaces(names: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": labels::NAMESPACE, "operator": "In", "values": names}]})
}

fn overlap_lines(shards: &[ShardingConfig], namespaces: &[&str]) -> Vec<String> {
    let namespaces: Vec<String> = namespaces.iter().map(|&name| name.to_owned()).collect();
    find_overlaps(shards, &namespaces, &LabelKeys::default())
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn object_in_two_shards_or_in_none_is_found() {
    let shards = [
        shard("a", &pods(), &in_namespaces(&["x", "y"])),
        shard("b", &pods(), &in_namespaces(&["y", "z"])),
    ];
    assert_eq!(
        overlap_lines(&shards, &["x", "y", "z", "w"]),
        [
            "pods (of any group) in namespace y can be in both a, b; let their selectors exclude each other",
            "the limits of a, b leave out pods (of any group) in namespace w; add the namespace or its hash bucket to one",
        ]
    );
    let shards = [
        shard("a", &pods(), &in_namespaces(&["x"])),
        shard("b", &pods(), &in_namespaces(&["y"])),
    ];
    assert_eq!(overlap_lines(&shards, &["x", "y"]), Vec::<String>::new());
}

#[test]
fn objects_own_labels_may_have_any_value() {
    let app = |operator: &str| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": ["web"]}]});
    let shards = [shard("a", &pods(), &app("In")), shard("b", &pods(), &app("NotIn"))];
    assert_eq!(overlap_lines(&shards, &["x"]), Vec::<String>::new());
    let shards = [
        shard("a", &pods(), &app("In")),
        shard("b", &pods(), &json!({"matchLabels": {"tier": "front"}})),
    ];
    assert_eq!(
        overlap_lines(&shards, &["x"]).len(),
        2,
        "an object may have both labels, or none"
    );
}

#[test]
fn resources_are_distinguished_by_group_and_wildcard() {
    let everything = json!([{"apiGroups": ["*"], "resources": ["*"]}]);
    let deployments = json!([{"apiGroups": ["apps"], "resources": ["deployments"]}]);
    let shards = [
        shard("a", &everything, &in_namespaces(&["x"])),
        shard("b", &deployments, &in_namespaces(&["y"])),
    ];
    let found = overlap_lines(&shards, &["x", "y"]);
    // Deployments are divided; of everything else, the second shard sees all.
    assert_eq!(
        found,
        ["other resources in namespace x can be in both a, b; let their selectors exclude each other"]
    );
}

#[test]
fn bucket_label_follows_namespace() {
    let buckets = |operator: &str| json!({"matchExpressions": [{"key": labels::SHARD_HASH, "operator": operator, "values": ["5"]}]});
    let shards = [
        shard("a", &pods(), &buckets("In")),
        shard("b", &pods(), &buckets("NotIn")),
    ];
    assert_eq!(overlap_lines(&shards, &["default", "x"]), Vec::<String>::new());
    let shards = [
        shard("a", &pods(), &buckets("In")),
        shard("b", &pods(), &in_namespaces(&["default"])),
    ];
    assert_eq!(overlap_lines(&shards, &["default"]).len(), 1);
}

#[test]
fn finding_names_few_namespaces_and_counts_the_rest() {
    let shards = [shard("a", &pods(), &json!({})), shard("b", &pods(), &json!({}))];
    let names: Vec<String> = (0..300).map(|n| format!("tenant-{n:04}")).collect();
    let found = find_overlaps(&shards, &names, &LabelKeys::default());
    assert_eq!(
        (found.len(), found[0].namespaces, found[0].examples.len()),
        (1, 300, MAX_EXAMPLES)
    );
    assert!(
        found[0].to_string().contains("tenant-0004 and 295 more"),
        "{}",
        found[0]
    );
}

/// 500 shards of one controller and 1,000 namespaces: divided by namespace, by a label of the objects' own, and not at all.
#[test]
fn full_cluster_is_checked_in_time() {
    let names: Vec<String> = (0..1000).map(|n| format!("tenant-{n:04}")).collect();
    let all = |part: &dyn Fn(usize) -> Value| {
        let shards: Vec<ShardingConfig> = (0..500)
            .map(|n| shard(&format!("s{n:03}"), &pods(), &part(n)))
            .collect();
        let begin = std::time::Instant::now();
        let found = find_overlaps(&shards, &names, &LabelKeys::default());
        let took = begin.elapsed();
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
        println!("{took:?} for {} findings", found.len());
        found
    };
    let two = |n: usize| in_namespaces(&[&names[2 * n], &names[2 * n + 1]]);
    assert_eq!(all(&two), []);
    let app = all(&|n| json!({"matchLabels": {"app": n.to_string()}}));
    assert_eq!(
        (app.len(), app[0].kind, app[0].namespaces),
        (1, OverlapKind::Orphaned, 1000)
    );
    assert_eq!(all(&|_| json!({})).len(), 500 * 499 / 2);
}

#[test]
fn other_controllers_and_roots_are_left_out() {
    let mut other = shard("b", &pods(), &json!({}));
    other.spec.controller.as_mut().unwrap().leader_election_name = "another".to_owned();
    let mut without = shard("c", &pods(), &json!({}));
    without.spec.controller = None;
    assert_eq!(
        overlap_lines(&[shard("a", &pods(), &json!({})), other, without], &["x"]),
        Vec::<String>::new()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The findings are what objects show: every namespace, with every value of the only label of their own.
    #[test]
    fn overlap_findings_are_exact(
        first in parts(), second in parts(), third in parts(),
    ) {
        let shards = [shard("a", &pods(), &first), shard("b", &pods(), &second), shard("c", &pods(), &third)];
        let namespaces = ["x", "y"].map(str::to_owned);
        let found = find_overlaps(&shards, &namespaces, &LabelKeys::default());
        for namespace in &namespaces {
            let (mut is_shared, mut is_orphaned) = (false, false);
            for app in [None, Some("web"), Some("db"), Some("other")] {
                let mut object: BTreeMap<String, String> = [(labels::NAMESPACE.to_owned(), namespace.clone())].into();
                object.extend(app.map(|app| ("app".to_owned(), app.to_owned())));
                let sees = |shard: &&ShardingConfig| {
                    let limit = &shard.spec.limits.as_ref().unwrap()[0];
                    limit.selector.as_ref().unwrap().matches(&object)
                };
                let count = shards.iter().filter(sees).count();
                is_shared |= count > 1;
                is_orphaned |= count == 0;
            }
            let has = |kind| found.iter().any(|it| it.kind == kind && it.examples.contains(namespace));
            prop_assert_eq!(has(OverlapKind::Shared), is_shared);
            prop_assert_eq!(has(OverlapKind::Orphaned), is_orphaned);
        }
    }
}

fn parts() -> impl Strategy<Value = Value> {
    let values = |of: &'static [&'static str]| prop::sample::subsequence(of, 1..=of.len());
    let app = (prop::bool::ANY, values(&["web", "db"])).prop_map(
        |(is_in, values)| json!({"key": "app", "operator": if is_in { "In" } else { "NotIn" }, "values": values}),
    );
    let namespace = (prop::bool::ANY, values(&["x", "y"])).prop_map(|(is_in, values)| {
        json!({"key": labels::NAMESPACE, "operator": if is_in { "In" } else { "NotIn" }, "values": values})
    });
    (prop::option::of(app), prop::option::of(namespace)).prop_map(|(app, namespace)| {
        let expressions: Vec<Value> = [app, namespace].into_iter().flatten().collect();
        json!({"matchExpressions": expressions})
    })
}

/// For one shard, the findings are those among all; there are none once the search is over.
#[test]
fn overlap_of_one_shard_compares_it_with_others() {
    let shard = |name: &str, names: &[&str]| shard(name, &pods(), &in_namespaces(names));
    let shards = [shard("a", &["x", "y"]), shard("b", &["x"]), shard("c", &["x"])];
    let (namespaces, keys) = (["x".to_owned(), "y".to_owned()], LabelKeys::default());
    let of_one = overlap_of("b", &shards, &namespaces, &keys, &|| false);
    let all = find_overlaps(&shards, &namespaces, &keys);
    let mine: Vec<Overlap> = all
        .into_iter()
        .filter(|it| it.shards.contains(&"b".to_owned()))
        .collect();
    assert_eq!(mine.len(), 2, "with a and with c: {mine:?}");
    assert_eq!(of_one, mine);
    assert!(overlap_of("b", &shards, &namespaces, &keys, &|| true).is_empty());
}
