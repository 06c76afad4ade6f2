//! An example for each rule of the compiler.

use super::*;
use ctrlmesh_contract::FailurePolicy;
use ctrlmesh_contract::names::labels;
use ctrlmesh_manager_api::sharding_config::Controller;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

#[test]
fn entries_have_documented_order() {
    let plugins = [plugin("audit", 5), plugin("zebra", 0), plugin("apple", 0)];
    let both = [limit("LimiterOnly", "slow"), limit("Normal", "break")];
    let fixture = Fixture::new(&[shard("s", &plugins), breaker("b", &json!({}), &both, &[]), faults("f")]);
    let compiled = fixture.compile();
    assert_eq!(compiled.refused, []);
    assert_eq!(
        names(&compiled),
        [
            "fault-inject/f",
            "rate-limit/b",
            "circuit-breaker/b",
            "apple/s",
            "zebra/s",
            "audit/s",
            "shard-selector/s",
        ]
    );
    assert_eq!(
        find_entry(&compiled, "shard-selector/s").on_failure,
        FailurePolicy::Closed
    );
    assert_eq!(find_entry(&compiled, "rate-limit/b").on_failure, FailurePolicy::Open);
    let origin = find_entry(&compiled, "audit/s").origin.clone().unwrap();
    assert_eq!(
        (origin.kind.as_str(), origin.uid.as_str(), origin.generation),
        ("ShardingConfig", "uid-s", 3)
    );
}

#[test]
fn circuit_breaker_is_divided_between_two_plugins() {
    let mut limiter = limit("LimiterOnly", "slow");
    limiter["recoverPolicy"] = json!({"type": "Manual"});
    limiter["properties"] = json!({"a": "b"});
    let rules = [limiter, limit("ForceOpened", "stop")];
    let fixture = Fixture::new(&[breaker(
        "b",
        &json!({"matchLabels": {"app": "x"}}),
        &rules,
        &[list("l", "Blacklist", "a.example")],
    )]);
    let compiled = fixture.compile();
    let limits = find_entry(&compiled, "rate-limit/b").settings.value();
    assert_eq!(limits, &json!({"rateLimitings": [limit("LimiterOnly", "slow")]}));
    let breakers = find_entry(&compiled, "circuit-breaker/b").settings.value();
    let mut forced = limit("ForceOpened", "stop");
    // The bucket has no effect there.
    forced.as_object_mut().unwrap().remove("bucket");
    assert_eq!(breakers["rateLimitings"], json!([forced]));
    assert_eq!(
        breakers["trafficInterceptRules"],
        json!([list("l", "Blacklist", "a.example")])
    );
    assert_eq!(
        find_entry(&compiled, "rate-limit/b").pod_selector.match_labels["app"],
        "x"
    );
}

#[test]
fn shard_entry_has_limits_and_lock() {
    let compiled = Fixture::new(&[shard("s", &[])]).compile();
    let settings = find_entry(&compiled, "shard-selector/s").settings.value();
    assert_eq!(
        (&settings["leaderElectionName"], &settings["shard"]),
        (&json!("lock"), &json!("s"))
    );
    assert_eq!(
        settings["limits"][0]["relateResources"],
        json!([{"apiGroups": ["*"], "resources": ["pods"]}])
    );
}

#[test]
fn disabled_deleted_and_root_objects_have_no_entries() {
    let root = json!({
        "prefix": "p", "targetStatefulSet": "t", "auto": {"shardingSize": 1, "everyShardReplicas": 1},
        "resourceSelector": [{"relateResources": [{"apiGroups": ["*"], "resources": ["pods"]}]}],
    });
    let mut off = faults("off");
    off["spec"]["disabled"] = true.into();
    let rules = [limit("Normal", "r")];
    let mut fixture = Fixture::new(&[
        object("ShardingConfig", "root", &json!({"root": root})),
        off,
        faults("label"),
        faults("gone"),
        breaker("b", &json!({}), &rules, &[]),
    ]);
    let with = |label: &str| Some([(label.to_owned(), String::new())].into());
    fixture.faults[1].metadata.labels = with(labels::FAULT_INJECTION_DISABLE);
    fixture.faults[2].metadata.deletion_timestamp =
        Some(serde_json::from_value::<Time>(json!("2026-11-21T10:00:00Z")).unwrap());
    fixture.breakers[0].metadata.labels = with(labels::CIRCUIT_BREAKER_DISABLE);
    let compiled = fixture.compile();
    assert_eq!((names(&compiled), compiled.refused.len()), (vec![], 0));
}

#[test]
fn trim_objects_without_image_is_the_built_in_one_among_own_plugins() {
    let settings = json!({"rules": [{"resources": [{"resources": ["pods"]}], "userAgents": ["a"]}]});
    let built_in = json!({"name": "trim-objects", "order": 3, "onFailure": "Open", "settings": settings});
    let without_policy = json!({"name": "trim-objects", "settings": settings});
    let shards = [
        shard("s", &[built_in]),
        shard("t", &[plugin("trim-objects", 4)]),
        shard("u", &[without_policy]),
    ];
    let mut fixture = Fixture::new(&shards);
    for unresolved in ["s", "u"] {
        let key = (unresolved.to_owned(), "trim-objects".to_owned());
        fixture.resolved.own.remove(&key);
    }
    let compiled = fixture.compile();
    assert_eq!(compiled.refused, []);
    let entry = find_entry(&compiled, "trim-objects/s");
    assert_eq!(
        (entry.plugin, entry.order, entry.on_failure),
        (Digest::of(b"trim-objects"), 1003, FailurePolicy::Open)
    );
    assert_eq!(entry.settings.value(), &settings);
    let own = find_entry(&compiled, "trim-objects/t");
    assert_eq!((own.plugin, own.order), (Digest::of(b"own"), 1004));
    let by_default = find_entry(&compiled, "trim-objects/u").on_failure;
    assert_eq!(by_default, FailurePolicy::Closed);
    assert_eq!(by_default, BuiltIn::TrimObjects.on_failure());
}

#[test]
fn plugin_replaces_built_in_one_with_its_settings() {
    let mut selector = plugin("shard-selector", 0);
    selector["onFailure"] = "Open".into();
    selector["memoryMiB"] = 32.into();
    let compiled = Fixture::new(&[shard("s", &[selector]), shard("t", &[])]).compile();
    assert_eq!(names(&compiled), ["shard-selector/s", "shard-selector/t"]);
    let own = find_entry(&compiled, "shard-selector/s");
    assert_eq!(
        (own.plugin, own.on_failure, own.memory_mib),
        (Digest::of(b"own"), FailurePolicy::Open, 32)
    );
    assert_eq!(
        (&own.settings.value()["shard"], &own.settings.value()["mine"]),
        (&json!("s"), &json!(true))
    );
    let other = find_entry(&compiled, "shard-selector/t");
    assert_eq!(
        (other.plugin, &other.settings.value()["mine"]),
        (Digest::of(b"shard-selector"), &Value::Null)
    );
    assert_eq!(own.order, other.order);
}

#[test]
fn plugin_replaces_rate_limit_only_for_pods_of_its_shard() {
    let rules = [limit("LimiterOnly", "slow")];
    let documents = [
        shard("s", &[plugin("rate-limit", 0)]),
        breaker("b", &json!({"matchLabels": {"app": "x"}}), &rules, &[]),
    ];
    let compiled = Fixture::new(&documents).compile();
    assert_eq!(names(&compiled), ["rate-limit/b", "rate-limit/b/s", "shard-selector/s"]);
    let labels = |shard: &str| {
        [
            ("app".to_owned(), "x".to_owned()),
            ("shard".to_owned(), shard.to_owned()),
        ]
        .into()
    };
    let runs = |shard: &str| -> Vec<Digest> {
        let entries = compiled
            .chain
            .entries
            .iter()
            .filter(|entry| entry.name.starts_with("rate-limit"));
        entries
            .filter(|entry| entry.pod_selector.matches(&labels(shard)))
            .map(|entry| entry.plugin)
            .collect()
    };
    assert_eq!(
        (runs("s"), runs("t")),
        (vec![Digest::of(b"own")], vec![Digest::of(b"rate-limit")])
    );
    let settings = |name: &str| find_entry(&compiled, name).settings.value()["rateLimitings"].clone();
    assert_eq!(settings("rate-limit/b"), settings("rate-limit/b/s"));
}

#[test]
fn host_allowed_by_one_object_is_allowed_for_all_its_pods() {
    let everyone = breaker(
        "all",
        &json!({}),
        &[],
        &[
            list("anywhere", "Whitelist", "b.example"),
            list("never", "Blacklist", "c.example"),
        ],
    );
    let some = breaker(
        "some",
        &json!({"matchLabels": {"app": "x"}}),
        &[],
        &[list("mine", "Whitelist", "a.example")],
    );
    let compiled = Fixture::new(&[everyone, some]).compile();
    let lists = |name: &str| {
        let lists = find_entry(&compiled, name).settings.value()["trafficInterceptRules"].clone();
        let names: Vec<Value> = lists
            .as_array()
            .unwrap()
            .iter()
            .map(|list| list["name"].clone())
            .collect();
        names
    };
    assert_eq!(lists("circuit-breaker/some"), ["mine", "anywhere"]);
    assert_eq!(
        lists("circuit-breaker/all"),
        ["anywhere", "never"],
        "other pods must not get what some are allowed"
    );
}

#[test]
fn generation_grows_only_with_changes() {
    let mut fixture = Fixture::new(&[faults("f")]);
    let first = fixture.compile().chain;
    assert_eq!(first.generation, 1);
    let mut shuffled = first.clone();
    shuffled.entries.reverse();
    fixture.last = Some(shuffled);
    assert_eq!(fixture.compile().chain.generation, 1);
    fixture.faults[0].spec.seed = Some(7);
    let second = fixture.compile().chain;
    assert_eq!(second.generation, 2);
    fixture.last = Some(second);
    fixture.faults.clear();
    let third = fixture.compile().chain;
    assert_eq!((third.generation, third.entries.len()), (3, 0));
}

#[test]
fn shard_of_incomplete_set_keeps_its_entries() {
    let mut fixture = Fixture::new(&[shard("a", &[])]);
    let first = fixture.compile().chain;
    let mut changed = shard("a", &[]);
    changed["spec"]["limits"][0]["selector"] = json!({"matchLabels": {"app": "y"}});
    fixture = Fixture::new(&[changed, shard("b", &[])]);
    fixture.held = ["uid-a", "uid-b"].map(str::to_owned).into();
    fixture.last = Some(first.clone());
    assert_eq!(fixture.compile().chain.entries, first.entries, "and a new one has none");
    fixture.held.clear();
    let whole = fixture.compile().chain.entries;
    assert_eq!((whole.len(), whole[0] == first.entries[0]), (2, false));
}

#[test]
fn refused_object_keeps_its_entries_and_blocks_no_other() {
    let mut fixture = Fixture::new(&[faults("f"), faults("g")]);
    fixture.last = Some(fixture.compile().chain);
    let before = find_entry(&fixture.compile(), "fault-inject/f").clone();
    fixture.faults[0].spec.http_fault[0].abort.as_mut().unwrap().http_status = 200;
    fixture.faults[1].spec.seed = Some(9);
    let compiled = fixture.compile();
    assert_eq!(find_entry(&compiled, "fault-inject/f"), &before);
    assert_eq!(find_entry(&compiled, "fault-inject/g").settings.value()["seed"], 9);
    assert!(compiled.refused[0].is_kept);
    let refused = reasons(&compiled);
    assert!(
        refused.len() == 1 && refused[0].starts_with("f: spec.httpFault[0].abort.httpStatus: "),
        "{refused:?}"
    );
    // A new object of the same name has no entries to keep.
    fixture.faults[0].metadata.uid = Some("another".to_owned());
    let compiled = fixture.compile();
    assert_eq!(
        (names(&compiled), compiled.refused[0].is_kept),
        (vec!["fault-inject/g"], false)
    );
}

#[test]
fn shard_keeps_its_lock_until_it_is_gone() {
    let mut fixture = Fixture::new(&[shard("s", &[])]);
    fixture.last = Some(fixture.compile().chain);
    let before = find_entry(&fixture.compile(), "shard-selector/s").clone();
    let lock = |name: Option<&str>| {
        name.map(|name| Controller {
            leader_election_name: name.to_owned(),
        })
    };
    for (name, problem) in [(Some("other"), "is \"other\", but "), (None, "is missing, but ")] {
        fixture.configs[0].spec.controller = lock(name);
        let compiled = fixture.compile();
        assert_eq!(find_entry(&compiled, "shard-selector/s"), &before);
        let refused = reasons(&compiled);
        let start = format!(
            "s: spec.controller.leaderElectionName: {problem}pods of this shard elect their leader by \"lock\""
        );
        assert!(refused.len() == 1 && refused[0].starts_with(&start), "{refused:?}");
    }
    // A recreated object keeps nothing, and waits until the old shard is gone.
    fixture.configs[0].metadata.uid = Some("another".to_owned());
    fixture.configs[0].spec.controller = lock(Some("other"));
    assert_eq!(names(&fixture.compile()), Vec::<&str>::new());
    fixture.last = Some(fixture.compile().chain);
    assert_eq!(names(&fixture.compile()), ["shard-selector/s"]);
    // A shard without a lock may get one.
    fixture.configs[0].spec.controller = None;
    fixture.last = Some(fixture.compile().chain);
    fixture.configs[0].spec.controller = lock(Some("lock"));
    assert_eq!(reasons(&fixture.compile()), Vec::<String>::new());
}

#[test]
fn unresolved_plugins_are_reported() {
    let mut fixture = Fixture::new(&[shard("s", &[plugin("audit", 0)]), faults("f")]);
    let key = ("s".to_owned(), "audit".to_owned());
    fixture
        .resolved
        .own
        .insert(key.clone(), Err("could not be pulled: 404; check the tag".to_owned()));
    fixture.resolved.built_in.remove(&BuiltIn::FaultInject);
    assert_eq!(
        reasons(&fixture.compile()),
        [
            "s: spec.plugins[0].image: could not be pulled: 404; check the tag",
            "f: spec: needs the built-in plugin fault-inject, which this manager does not carry",
        ]
    );
    fixture.resolved.own.remove(&key);
    assert_eq!(
        reasons(&fixture.compile())[0],
        "s: spec.plugins[0].image: is not fetched yet; wait"
    );
}

#[test]
fn object_keeps_previous_entries_until_plugins_resolve() {
    let documents = [
        shard("s", &[plugin("rate-limit", 0), plugin("audit", 0)]),
        breaker("b", &json!({}), &[limit("LimiterOnly", "slow")], &[]),
    ];
    let mut fixture = Fixture::new(&documents);
    let first = fixture.compile();
    assert_eq!(find_entry(&first, "rate-limit/b/s").plugin, Digest::of(b"own"));
    for resolved in fixture.resolved.own.values_mut() {
        *resolved = Err("is being fetched".to_owned());
    }
    // There was no replacement before, so the built-in plugin is used.
    let alone = fixture.compile();
    assert_eq!(names(&alone), ["rate-limit/b"]);
    assert!(!alone.refused[0].is_kept);
    fixture.last = Some(first.chain.clone());
    let compiled = fixture.compile();
    assert_eq!(compiled.chain, first.chain);
    let refused = &compiled.refused[0];
    assert!(refused.is_unresolved && refused.is_kept && compiled.refused.len() == 1);
    // Other objects are not blocked: a changed limit changes for all pods.
    fixture.breakers[0].spec.rate_limitings[0]
        .bucket
        .as_mut()
        .unwrap()
        .burst = 7;
    let compiled = fixture.compile();
    let settings = |name: &str| find_entry(&compiled, name).settings.clone();
    assert_eq!(
        settings("rate-limit/b").value()["rateLimitings"][0]["bucket"]["burst"],
        7
    );
    assert_eq!(find_entry(&compiled, "rate-limit/b/s").plugin, Digest::of(b"own"));
    assert_eq!(
        settings("rate-limit/b/s").value()["rateLimitings"],
        settings("rate-limit/b").value()["rateLimitings"]
    );
}

#[test]
fn object_of_another_namespace_is_refused() {
    let mut fixture = Fixture::new(&[faults("f")]);
    fixture.faults[0].metadata.namespace = Some("other".to_owned());
    assert_eq!(
        reasons(&fixture.compile()),
        ["f: metadata.namespace: is \"other\", and this is the chain of \"demo\""]
    );
}

#[test]
fn name_too_long_for_entry_is_refused() {
    let mut fixture = Fixture::new(&[shard("s", &[plugin(&"p".repeat(63), 0)])]);
    let name = vec!["n".repeat(63); 4].join(".").chars().take(240).collect::<String>();
    fixture.configs[0].metadata.name = Some(name.clone());
    fixture.configs[0].spec.controller = None;
    fixture
        .resolved
        .own
        .insert((name, "p".repeat(63)), Ok(Digest::of(b"own")));
    let refused = reasons(&fixture.compile());
    assert_eq!(refused, Vec::<String>::new(), "303 bytes fit");
}

#[test]
fn too_many_objects_refuse_whole_chain() {
    let documents: Vec<Value> = (0..1025).map(|n| faults(&format!("f{n}"))).collect();
    let fixture = Fixture::new(&documents);
    let objects = Objects {
        namespace: "demo",
        sharding_configs: &[],
        circuit_breakers: &[],
        fault_injections: &fixture.faults,
        resolved: &fixture.resolved,
        held: &fixture.held,
        last: None,
        keys: &LabelKeys::default(),
    };
    let message = compile(&objects).unwrap_err().to_string();
    assert!(message.contains("entries: has more than 1024 entries"), "{message}");
}

#[test]
fn shard_without_lock_beside_another_is_warned_of() {
    let unlocked = |name: &str| {
        let mut shard = shard(name, &[]);
        shard["spec"]["controller"] = json!(null);
        shard
    };
    let warned = |documents: &[Value]| {
        let compiled = Fixture::new(documents).compile();
        assert!(reasons(&compiled).is_empty());
        let of = |warned: &WarnedObject| {
            let paths = warned.warnings.list().iter().map(|it| it.path.clone());
            paths.map(|path| (warned.origin.name.clone(), path)).collect::<Vec<_>>()
        };
        compiled.warned.iter().flat_map(of).collect::<Vec<_>>()
    };
    let at_controller = |name: &str| (name.to_owned(), "spec.controller".to_owned());
    assert_eq!(warned(&[unlocked("a")]), []);
    assert_eq!(
        warned(&[unlocked("a"), unlocked("b")]),
        [at_controller("a"), at_controller("b")]
    );
    assert_eq!(warned(&[shard("a", &[]), unlocked("b")]), [at_controller("b")]);
    // Beside another warning.
    let mut served = unlocked("b");
    served["spec"]["webhook"] = json!({"certDir": "/certs", "port": 9443});
    let both = [("b".to_owned(), "spec.webhook".to_owned()), at_controller("b")];
    assert_eq!(warned(&[shard("a", &[]), served]), both);
}
