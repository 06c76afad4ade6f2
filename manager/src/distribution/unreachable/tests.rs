use std::time::Duration;

use ctrlmesh_contract::status::Status;

use super::*;
use crate::samples;

fn sidecar(pod: &str, shard: &str) -> Sidecar {
    Sidecar {
        pod: pod.to_owned(),
        uid: format!("uid-{pod}"),
        ip: Some("10.0.0.1".to_owned()),
        is_placed: true,
        labels: [("shard".to_owned(), shard.to_owned())].into(),
        ..Sidecar::default()
    }
}

fn config(shard: &str, unreachable: serde_json::Value) -> ShardingConfig {
    let mut config: ShardingConfig = serde_json::from_value(samples::shard(shard, &[])).unwrap();
    config.spec.unreachable_pods = serde_json::from_value(unreachable).unwrap();
    config
}

fn fleet() -> Fleet {
    let silent = |pod: &str| (pod.to_owned(), Answer::None("can't be reached: no route".to_owned()));
    Fleet {
        sidecars: vec![sidecar("a", "s0"), sidecar("b", "s0"), sidecar("c", "s1")],
        answers: [
            silent("a"),
            silent("c"),
            ("b".to_owned(), Answer::Status(Box::<Status>::default())),
        ]
        .into(),
        ..Fleet::default()
    }
}

fn all() -> BTreeMap<String, BTreeSet<String>> {
    let pods = ["uid-a", "uid-b", "uid-c"].map(str::to_owned);
    [("shard-selector/s0".to_owned(), pods.into())].into()
}

#[test]
fn it_is_counted_from_the_first_question_that_had_no_answer() {
    let (start, mut fleet) = (Instant::now(), fleet());
    assert!(
        silent(&Silent::new(), &BTreeMap::new(), &fleet, start).is_empty(),
        "nobody waits"
    );
    let first = silent(&Silent::new(), &all(), &fleet, start);
    assert_eq!(first, [("a".to_owned(), start), ("c".to_owned(), start)].into());
    let later = start + Duration::from_secs(1);
    assert_eq!(silent(&first, &all(), &fleet, later), first);
    // It answers once: all over again.
    fleet.answers.insert("a".to_owned(), Answer::Status(Box::default()));
    let answered = silent(&first, &all(), &fleet, later);
    assert_eq!(answered, [("c".to_owned(), start)].into());
    fleet.sidecars[2].is_placed = false;
    assert!(silent(&answered, &all(), &fleet, later).is_empty(), "it does not run");
    // Who is given up stays so, though nobody waits.
    let mut fleet = self::fleet();
    fleet.given_up.insert("a".to_owned());
    assert_eq!(
        silent(&first, &BTreeMap::new(), &fleet, later),
        [("a".to_owned(), start)].into()
    );
}

#[test]
fn the_policy_of_its_shard_says_how_long_a_pod_is_waited_for() {
    let (start, fleet) = (Instant::now(), fleet());
    let silent = silent(&Silent::new(), &all(), &fleet, start);
    let given_up = |unreachable: serde_json::Value, seconds| {
        let configs = [config("s0", unreachable), config("s1", serde_json::Value::Null)];
        let now = start + Duration::from_secs(seconds);
        super::given_up(&silent, &fleet, &configs, now)
            .into_iter()
            .collect::<Vec<_>>()
    };
    let proceed = serde_json::json!({ "policy": "Proceed", "afterSeconds": 5 });
    assert!(given_up(proceed.clone(), 4).is_empty());
    assert_eq!(
        given_up(proceed, 5),
        ["a"],
        "not b, which answers, and not c of another shard"
    );
    assert!(given_up(serde_json::json!({ "policy": "Wait" }), 90000).is_empty());
    assert!(given_up(serde_json::Value::Null, 90000).is_empty());
    let proceed = serde_json::json!({ "policy": "Proceed" });
    assert!(given_up(proceed.clone(), 59).is_empty());
    assert_eq!(given_up(proceed, 60), ["a"]);
    // A pod that no shard selects any more is waited for.
    assert!(super::given_up(&silent, &fleet, &[], start + Duration::from_secs(90000)).is_empty());
}

#[test]
fn who_is_waited_for_is_named() {
    let mut fleet = fleet();
    fleet.quiet.insert("c".to_owned());
    let text = named("shard-selector/s0", &all(), &[], &fleet);
    assert_eq!(
        text,
        "shard-selector/s0 (a can't be reached: no route, b has done so and settles)"
    );
    assert_eq!(named("shard-selector/s1", &all(), &[], &fleet), "shard-selector/s1");
}
