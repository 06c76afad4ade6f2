use std::cell::Cell;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;
use crate::chain::Snapshot;

const POD: &str = "/api/v1/namespaces/n/pods/p";

/// Targets that are remembered. Some only look alike.
const REMEMBERED: [&str; 18] = [
    "/",
    "/api",
    "/version",
    "/version?",
    "/api/v1/configmaps",
    "/api/v1/configmaps/",
    "/api/v1/configmaps?watch=0",
    "/api/v1/configmaps?limit=500&labelSelector=a%3D1",
    "/api/v1/configmaps?fieldSelector=metadata.name%3Dx",
    "/api/v1/namespaces/n",
    "/api/v1/namespaces/n/configmaps/a.b..c",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a",
    "/apis/custom.metrics.k8s.io/v1beta1/namespaces/n/pods/*/a|b",
    "/apis/apps/v1/namespaces/n/deployments/d/status",
    "/apis/apps/v1/namespaces/n/deployments/d",
    "/apis/apps/v1/namespaces/n/statefulsets/d",
    POD,
    "/api/v1/namespaces/n/pods/p?timeout=10s",
];

/// Targets that are refused, sent with another path, or not remembered for another reason.
const NEVER_REMEMBERED: [&str; 18] = [
    "*",
    "/api/v1/%zz",
    "/api/v1/watch",
    "/./api/v1/configmaps",
    "//api/v1/configmaps",
    "/api/v1/configmaps//",
    "/api/v1/configmaps;a",
    "/api/v1/namespaces//configmaps",
    "/api/v1/namespaces/%2Fconfigmaps",
    "/api/v1/namespaces/n%2Fconfigmaps",
    "/api/v1/%63onfigmaps",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aa",
    "/api/v1/configmaps?watch=1",
    "/api/v1/watch/configmaps",
    "/api/v1/namespaces/n/pods/p/exec?command=id",
    "/api/v1/namespaces/n/pods/p/log",
    "/api/v1/namespaces/n/services/s/proxy/a//../b",
    "/api/v1/proxy/nodes/x/pods",
];

const METHODS: [&str; 3] = ["GET", "DELETE", "OPTIONS"];

/// What is read of a request that is let through, and the path to send instead. `None`: the request is refused.
type Read = Option<(String, Option<String>)>;

fn uri(target: &str) -> Uri {
    target.parse().unwrap()
}

fn read_anew(method: &str, uri: &Uri) -> Read {
    let info = RequestInfo::parse(method, uri.path(), uri.query()).ok()?;
    info.check_path(uri.path()).ok()?;
    Some((format!("{info:?}"), info.path_without_empty_namespace()))
}

/// Reads a target, and remembers it as `handler` does. Returns whether it was remembered before.
fn read_and_remember(targets: &mut ParsedTargets, method: &str, uri: &Uri) -> (bool, Read) {
    let Ok(target) = targets.read(method, uri) else {
        return (false, None);
    };
    let remembered = target.remembered();
    if let Some(remembered) = remembered {
        assert_eq!(**remembered.facts(), Facts::new(target.info()), "{method} {uri}");
    }
    let Ok(cleaned) = target.check_path() else {
        return (remembered.is_some(), None);
    };
    if cleaned.is_none() {
        targets.remember(&target);
    }
    (remembered.is_some(), Some((format!("{:?}", target.info()), cleaned)))
}

/// Sends the same request several times. Returns for each whether its target was remembered.
fn are_remembered(targets: &mut ParsedTargets, method: &str, target: &str, times: usize) -> Vec<bool> {
    let uri = uri(target);
    let requests = (0..times).map(|_| {
        let (is_remembered, read) = read_and_remember(targets, method, &uri);
        assert_eq!(read, read_anew(method, &uri), "{method} {target}");
        is_remembered
    });
    requests.collect()
}

/// Targets of GET requests that share a slot.
fn targets_of_one_slot(targets: &ParsedTargets) -> [String; 5] {
    let slot = |target: &str| slot_of(targets.hashes.hash_one(("GET", target, None::<&str>)));
    let names = (0_u32..).map(|name| format!("/api/v1/namespaces/n/pods/{name}"));
    let mut same = names.filter(|target| slot(target) == 0);
    std::array::from_fn(|_| same.next().unwrap())
}

fn some_target() -> impl Strategy<Value = String> {
    let usual = select(&REMEMBERED[..]).prop_map(str::to_owned);
    let odd = select(&NEVER_REMEMBERED[..]).prop_map(str::to_owned);
    let path = "/{1,2}(api|apis/g|%61pi)/v1(/watch)?(/namespaces/(n|%6e|))?/(pods|p;|\\.\\.|p%2Fx)(/a)?(/exec|/)?";
    let query = "(\\?(watch=(1|0|false)|limit=x|fieldSelector=metadata\\.name%3Da|labelSelector=a|%zz)?)?";
    let any = (path, query).prop_map(|(path, query)| format!("{path}{query}"));
    prop_oneof![usual, odd, any]
}

proptest! {
    #[test]
    fn remembered_target_is_read_like_new_one(
        targets in prop::collection::vec(some_target(), 1..6),
        requests in prop::collection::vec((select(&METHODS[..]), any::<Index>()), 1..80),
    ) {
        let mut parsed = ParsedTargets::default();
        for (method, at) in requests {
            let target: &String = at.get(&targets);
            let uri = uri(target);
            let (_, read) = read_and_remember(&mut parsed, method, &uri);
            prop_assert_eq!(read, read_anew(method, &uri), "{} {}", method, uri);
        }
    }
}

#[test]
fn target_is_remembered_when_it_comes_again() {
    for target in REMEMBERED {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
            let requests = are_remembered(&mut ParsedTargets::default(), method, target, 4);
            assert_eq!(requests, [false, false, true, true], "{method} {target}");
        }
    }
}

#[test]
fn odd_targets_and_streams_are_never_remembered() {
    let longest = format!(
        "/api/v1/configmaps/{}",
        "a".repeat(MAX_TARGET_BYTES - "/api/v1/configmaps/".len())
    );
    let too_long = format!("{longest}a");
    let too_long_query = format!("/api/v1/configmaps?limit={}", "1".repeat(MAX_TARGET_BYTES));
    let requests = are_remembered(&mut ParsedTargets::default(), "GET", &longest, 3);
    assert_eq!(requests, [false, false, true]);
    let odd = NEVER_REMEMBERED.map(|target| ("GET", target));
    let others = [
        ("GET", &*too_long),
        ("GET", &*too_long_query),
        ("OPTIONS", POD),
        ("PURGE", POD),
    ];
    for (method, target) in odd.into_iter().chain(others) {
        let requests = are_remembered(&mut ParsedTargets::default(), method, target, 4);
        assert_eq!(requests, [false; 4], "{method} {target}");
    }
}

#[test]
fn method_path_and_query_are_compared() {
    for (method, target) in [
        ("DELETE", POD),
        ("HEAD", POD),
        ("GET", "/api/v1/namespaces/n/pods/q"),
        ("GET", "/api/v1/namespaces/n/pods/p?"),
        ("GET", "/api/v1/namespaces/n/pods/p?timeout=1s"),
    ] {
        let mut targets = ParsedTargets::default();
        are_remembered(&mut targets, "GET", POD, 2);
        let (other, known) = (uri(target), uri(POD));
        let hash = targets.hashes.hash_one(("GET", known.path(), known.query()));
        let same = |method, uri: &Uri| targets.find(hash, method, uri.path(), uri.query()).is_some();
        assert!(same("GET", &known));
        assert!(
            !same(method, &other),
            "{method} {target}: other targets may have the same hash"
        );
        assert_eq!(
            are_remembered(&mut targets, method, target, 1),
            [false],
            "{method} {target}"
        );
    }
}

#[test]
fn target_that_comes_again_replaces_other_one_in_its_slot() {
    let mut targets = ParsedTargets::default();
    let [first, second, read_once @ ..] = targets_of_one_slot(&targets);
    are_remembered(&mut targets, "GET", &first, 2);
    for target in read_once {
        assert_eq!(are_remembered(&mut targets, "GET", &target, 1), [false]);
        assert_eq!(are_remembered(&mut targets, "GET", &first, 1), [true]);
    }
    assert_eq!(are_remembered(&mut targets, "GET", &second, 3), [false, false, true]);
    assert_eq!(are_remembered(&mut targets, "GET", &first, 3), [false, false, true]);
    assert_eq!(targets.slots.len(), MAX_TARGETS);
}

#[test]
fn entries_are_searched_for_again_under_other_chain_and_for_other_user_agent() {
    let mut targets = ParsedTargets::default();
    are_remembered(&mut targets, "GET", POD, 2);
    let pod = uri(POD);
    let target = targets.read("GET", &pod).unwrap();
    let target = target.remembered().unwrap();
    let searches = Cell::new(0_u64);
    let search = |snapshot, user_agent: &str| {
        let matched = target.matching_entries(snapshot, user_agent, || {
            searches.set(searches.get() + 1);
            Matched::from_bits(searches.get())
        });
        assert!(!matched.is_empty());
        (matched, searches.get())
    };
    let matched = |search: u64| (Matched::from_bits(search), search);
    assert_eq!(search(1, "a"), matched(1));
    assert_eq!(search(1, "a"), matched(1));
    assert_eq!(search(1, "b"), matched(2));
    assert_eq!(search(1, ""), matched(3));
    assert_eq!(search(2, ""), matched(4));
    assert_eq!(search(2, ""), matched(4));
    assert_eq!(search(1, ""), matched(5));
    let long = "a".repeat(MAX_USER_AGENT_BYTES + 1);
    assert_eq!(search(1, &long), matched(6));
    assert_eq!(search(1, &long), matched(7));
    assert_eq!(search(1, ""), (Matched::from_bits(5), 7));
}

#[test]
fn snapshots_have_different_ids() {
    assert_ne!(Snapshot::without_document().id, Snapshot::without_document().id);
}
