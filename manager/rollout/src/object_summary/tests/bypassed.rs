use ctrlmesh_contract::status::ApiTraffic;
use ctrlmesh_manager_planner::samples;
use serde_json::json;

use super::super::*;

fn timestamp_of(second: i64) -> String {
    Timestamp::from_second(second).unwrap().to_string()
}

/// The status of a sidecar at the time `now`. It has taken requests since `since`, and had the last one at `last`.
fn status_with_traffic(now: i64, since: Option<i64>, last: Option<i64>) -> Status {
    Status {
        api_traffic: Some(ApiTraffic {
            now: timestamp_of(now),
            since: since.map(timestamp_of),
            last: last.map(timestamp_of),
            in_flight: Some(0),
        }),
        ..Status::default()
    }
}

#[test]
fn pod_is_bypassed_when_its_containers_run_for_a_minute_without_a_request() {
    assert!(
        !has_no_traffic(&status_with_traffic(1059, Some(1000), None), Some(1000)),
        "it had no time yet"
    );
    assert!(has_no_traffic(&status_with_traffic(1060, Some(1000), None), Some(1000)));
    assert!(
        !has_no_traffic(&status_with_traffic(1060, Some(1000), Some(1000)), Some(1000)),
        "a request came"
    );
}

#[test]
fn pod_is_bypassed_when_nothing_came_for_two_hours_and_nothing_is_in_flight() {
    let after = |seconds: i64| status_with_traffic(2000 + seconds, Some(1000), Some(2000));
    assert!(
        !has_no_traffic(&after(SILENCE - 1), Some(1000)),
        "it may ask once an hour"
    );
    assert!(
        has_no_traffic(&after(SILENCE), Some(1000)),
        "one request does not end the question"
    );
    let with = |in_flight: Option<u64>| {
        let mut status = after(10 * SILENCE);
        status.api_traffic.as_mut().unwrap().in_flight = in_flight;
        status
    };
    assert!(
        !has_no_traffic(&with(Some(1)), Some(1000)),
        "it has nothing to do, and watches"
    );
    assert!(
        !has_no_traffic(&with(None), Some(1000)),
        "an earlier sidecar, which may have a watch"
    );
}

#[test]
fn request_in_flight_counts_as_traffic_when_older_than_the_containers() {
    let mut status = status_with_traffic(2000, Some(900), Some(999));
    assert!(has_no_traffic(&status, Some(1000)));
    status.api_traffic.as_mut().unwrap().in_flight = Some(1);
    assert!(!has_no_traffic(&status, Some(1000)));
}

#[test]
fn bypass_counts_only_for_entries_with_api_rules() {
    let has_rules = |name: &str, settings: &serde_json::Value| {
        has_api_rules(&Entry {
            settings: ctrlmesh_contract::Settings::new(settings.clone()),
            ..samples::entry(name)
        })
    };
    let rest = json!({"restRules": [{"url": ["https://a/*"], "method": "GET"}]});
    let resources = json!({"resourceRules": [{"apiGroups": ["*"]}]});
    let paths = json!({"nonResourceRules": [{"nonResourceURLs": ["*"]}]});
    for name in ["rate-limit/a", "circuit-breaker/a/b"] {
        let of = |rules: &[&serde_json::Value]| has_rules(name, &json!({ "rateLimitings": rules }));
        assert!(!of(&[&rest]), "{name}");
        assert!(of(&[&rest, &resources]) && of(&[&paths]) && of(&[&json!({})]), "{name}");
    }
    let lists = json!({"trafficInterceptRules": [{"name": "a", "contents": ["b"]}]});
    assert!(!has_rules("circuit-breaker/a", &lists));
    let faults = |matching: &serde_json::Value| {
        has_rules(
            "fault-inject/a",
            &json!({"httpFault": [{"match": matching, "abort": {}}]}),
        )
    };
    assert!(!faults(&json!({"httpMatch": [{"host": {"exact": "a"}}]})));
    assert!(faults(&json!({"httpMatch": [{}], "resources": [{}]})) && faults(&json!({"nonResources": [{}]})));
    assert!(has_rules(
        "fault-inject/a",
        &json!({"httpFault": [{"do": "discoveryDown"}]})
    ));
    assert!(has_rules("shard-selector/a", &json!({})) && has_rules("mine/a", &json!({})));
}

#[test]
fn requests_older_than_the_containers_do_not_count() {
    // The requests of an init container, or of a container that was restarted since.
    assert!(has_no_traffic(
        &status_with_traffic(1060, Some(900), Some(999)),
        Some(1000)
    ));
    assert!(!has_no_traffic(
        &status_with_traffic(1059, Some(900), Some(999)),
        Some(1000)
    ));
}

#[test]
fn restarted_sidecar_has_its_own_minute() {
    assert!(!has_no_traffic(
        &status_with_traffic(2059, Some(2000), None),
        Some(1000)
    ));
    assert!(has_no_traffic(&status_with_traffic(2060, Some(2000), None), Some(1000)));
}

#[test]
fn pods_without_time_for_traffic_are_not_bypassed() {
    assert!(
        !has_no_traffic(&status_with_traffic(5000, Some(1000), None), None),
        "no container runs"
    );
    assert!(
        !has_no_traffic(&status_with_traffic(5000, None, None), Some(1000)),
        "nothing is taken yet"
    );
    assert!(!has_no_traffic(&Status::default(), Some(1000)), "an earlier sidecar");
    let mut not_ready = status_with_traffic(5000, Some(1000), None);
    not_ready.not_ready.push("listener".to_owned());
    assert!(!has_no_traffic(&not_ready, Some(1000)));
}

#[test]
fn bypassing_pods_are_those_that_entries_select() {
    let entry = samples::entry("shard-selector/a");
    let sidecar = |pod: &str| Sidecar {
        pod: pod.to_owned(),
        running_since: Some(1000),
        ..Sidecar::default()
    };
    let ending = Sidecar {
        is_ending: true,
        ..sidecar("ending")
    };
    let silent = || Report::Status(Box::new(status_with_traffic(2000, Some(1000), None)));
    let seen = Report::Status(Box::new(status_with_traffic(2000, Some(1000), Some(1500))));
    let fleet = Fleet {
        sidecars: vec![sidecar("silent"), sidecar("seen"), sidecar("unknown"), ending],
        reports: [("silent", silent()), ("ending", silent()), ("seen", seen)]
            .map(|(pod, report)| (pod.to_owned(), report))
            .into(),
        ..Fleet::default()
    };
    assert_eq!(bypassing_pods(&[&entry], &fleet), ["silent".to_owned()].into());
    let external = Entry {
        settings: ctrlmesh_contract::Settings::new(json!({"rateLimitings": [{"restRules": [{}]}]})),
        ..samples::entry("rate-limit/a")
    };
    assert!(
        bypassing_pods(&[&external], &fleet).is_empty(),
        "no rule for the API server"
    );
    assert!(bypassing_pods(&[], &fleet).is_empty());
}
