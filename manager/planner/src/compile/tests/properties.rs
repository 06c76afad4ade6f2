//! Properties of every namespace's chain: it is deterministic, and sidecars accept it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

prop_compose! {
    fn pods()(labels in prop::collection::btree_map("[ab]", "[xy]", 0..2)) -> Value {
        json!({"matchLabels": labels})
    }
}

fn rules() -> impl Strategy<Value = Vec<Value>> {
    let policies = prop::sample::select(vec!["LimiterOnly", "Normal", "ForceOpened", "ForceClosed"]);
    prop::collection::vec(policies, 0..4).prop_map(|policies| {
        policies
            .iter()
            .enumerate()
            .map(|(n, policy)| limit(policy, &format!("r{n}")))
            .collect()
    })
}

fn lists() -> impl Strategy<Value = Vec<Value>> {
    let kinds = prop::sample::select(vec!["Whitelist", "Blacklist"]);
    prop::collection::vec(kinds, 0..3).prop_map(|kinds| {
        kinds
            .iter()
            .enumerate()
            .map(|(n, kind)| list(&format!("l{n}"), kind, "a.example"))
            .collect()
    })
}

prop_compose! {
    fn breakers()(list in prop::collection::vec((pods(), rules(), lists()), 0..4)) -> Vec<Value> {
        let breaker = |(n, (pods, rules, lists)): (usize, &(Value, Vec<Value>, Vec<Value>))| breaker(&format!("b{n}"), pods, rules, lists);
        list.iter().enumerate().map(breaker).collect()
    }
}

prop_compose! {
    fn shards()(list in prop::collection::vec((pods(), prop::sample::subsequence(vec!["rate-limit", "circuit-breaker", "fault-inject", "shard-selector", "own"], 0..3)), 0..3)) -> Vec<Value> {
        let shard = |(n, (pods, names)): (usize, &(Value, Vec<&str>))| {
            let plugins: Vec<Value> = names.iter().map(|name| plugin(name, 0)).collect();
            let mut shard = shard(&format!("s{n}"), &plugins);
            if pods["matchLabels"].as_object().is_some_and(|labels| !labels.is_empty()) {
                shard["spec"]["selector"] = pods.clone();
            }
            shard
        };
        list.iter().enumerate().map(shard).collect()
    }
}

prop_compose! {
    fn fixtures()(breakers in breakers(), shards in shards(), faulty in 0..3_usize) -> Fixture {
        let faults = (0..faulty).map(|n| faults(&format!("f{n}")));
        let documents: Vec<Value> = breakers.into_iter().chain(shards).chain(faults).collect();
        Fixture::new(&documents)
    }
}

/// Every combination of labels that the generated selectors distinguish.
fn all_pods() -> Vec<BTreeMap<String, String>> {
    let values = [None, Some("x"), Some("y"), Some("z")];
    let pod = |a: &Option<&str>, b: &Option<&str>| {
        let pairs = [("a", *a), ("b", *b)];
        pairs
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned())))
            .collect()
    };
    values
        .iter()
        .flat_map(|a| values.iter().map(move |b| pod(a, b)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn order_of_objects_does_not_matter(fixture in fixtures()) {
        let mut reversed = fixture.clone();
        reversed.configs.reverse();
        reversed.breakers.reverse();
        reversed.faults.reverse();
        let (one, other) = (fixture.compile(), reversed.compile());
        prop_assert_eq!(one.chain.to_json(), other.chain.to_json());
        prop_assert_eq!(one, other);
    }

    #[test]
    fn compiled_chain_is_read_by_sidecar_and_its_settings_by_plugins(fixture in fixtures()) {
        let compiled = fixture.compile();
        prop_assert_eq!(&compiled.refused, &vec![]);
        let text = compiled.chain.to_json();
        prop_assert_eq!(Chain::parse(text.as_bytes()).unwrap(), compiled.chain.clone());
        for entry in &compiled.chain.entries {
            let (plugin, _) = entry.name.split_once('/').unwrap();
            let own = entry.plugin == Digest::of(b"own");
            if let Some(built_in) = BuiltIn::from_name(plugin).filter(|_| !own) {
                let result = built_in.check(entry.settings.value(), "demo");
                prop_assert!(result.is_ok(), "{}: {:?}", entry.name, result);
            }
        }
    }

    /// Each pod runs each object's rules once, by the built-in plugin or by the one that its shard has in its place.
    #[test]
    fn each_pod_runs_rules_of_each_object_once(fixture in fixtures()) {
        let compiled = fixture.compile();
        let has = |breaker: &CircuitBreaker, limiter: bool| {
            let rules = &breaker.spec.rate_limitings;
            let is_limit = |rule: &ctrlmesh_manager_api::circuit_breaker::RateLimiting| crate::settings::plugin_of(rule) == BuiltIn::RateLimit;
            rules.iter().any(|rule| is_limit(rule) == limiter) || !limiter && !breaker.spec.traffic_intercept_rules.is_empty()
        };
        for pod in all_pods() {
            for breaker in &fixture.breakers {
                let selects = breaker.spec.selector.matches(&pod);
                for (plugin, expected) in [("rate-limit", has(breaker, true)), ("circuit-breaker", has(breaker, false))] {
                    let name = format!("{plugin}/{}", breaker.metadata.name.as_ref().unwrap());
                    let meets: Vec<&Entry> = compiled.chain.entries.iter()
                        .filter(|entry| entry.name == name || entry.name.starts_with(&format!("{name}/")))
                        .filter(|entry| entry.pod_selector.matches(&pod))
                        .collect();
                    prop_assert_eq!(meets.len(), usize::from(selects && expected), "{} {:?}", &name, &pod);
                    let is_replaced = fixture.configs.iter().any(|config| {
                        let selector = config.spec.selector.as_ref().unwrap();
                        selector.matches(&pod) && config.spec.plugins.iter().any(|it| it.name == plugin)
                    });
                    for entry in meets {
                        prop_assert_eq!(entry.plugin == Digest::of(b"own"), is_replaced);
                    }
                }
            }
        }
    }
}
