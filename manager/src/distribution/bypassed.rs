//! Pods whose containers run and send nothing to the API server through their sidecars: they may go past them. Pure.
//!
//! A controller that waits for its lock asks for it all the time, and one that has nothing to do keeps its watches open, so silence is what
//! neither does. Another container of the pod may send a request, so one request does not end the question. Times are those of the pod's node:
//! kubelet says when containers have started, the sidecar what time it is and when requests came.

use std::collections::BTreeSet;

use ctrlmesh_contract::Entry;
use ctrlmesh_contract::names::pod;
use ctrlmesh_contract::status::{ApiTraffic, Status};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::fleet::{Fleet, Report, Sidecar};
use crate::built_in::BuiltIn;

/// How long a container may run before its first request, in seconds.
const SETTLED: i64 = 60;
/// How long nothing may come after a request while none is in flight, in seconds. A program that neither watches nor elects a leader may ask
/// only once an hour.
const QUIET: i64 = 2 * 60 * 60;

/// Since when containers of a pod run, apart from the sidecar: the one that has run for longest. Seconds since 1970.
pub(super) fn running_since(pod: &Pod) -> Option<i64> {
    let containers = pod.status.as_ref()?.container_statuses.iter().flatten();
    let others = containers.filter(|container| container.name != pod::SIDECAR);
    let started = |container: &ContainerStatus| {
        let running = container.state.as_ref()?.running.as_ref()?;
        Some(running.started_at.as_ref()?.0.as_second())
    };
    others.filter_map(started).min()
}

/// Leaves of containers what is used of them.
pub(super) fn running(mut containers: Vec<ContainerStatus>) -> Vec<ContainerStatus> {
    containers.retain(|container| container.name != pod::SIDECAR);
    let slim = containers.into_iter().filter_map(|container| {
        let running = container.state?.running?;
        let state = ContainerState {
            running: Some(running),
            ..ContainerState::default()
        };
        Some(ContainerStatus {
            name: container.name,
            state: Some(state),
            ..ContainerStatus::default()
        })
    });
    slim.collect()
}

/// Pods that may go past their sidecars, and so past the rules for API traffic among these entries.
pub(super) fn bypassed(entries: &[&Entry], fleet: &Fleet) -> BTreeSet<String> {
    let for_api: Vec<&Entry> = entries.iter().copied().filter(|entry| has_api_rules(entry)).collect();
    let is_concerned = |sidecar: &&Sidecar| sidecar.own(for_api.iter().copied()).next().is_some();
    let is_bypassed = |sidecar: &&Sidecar| match fleet.reports.get(&sidecar.pod) {
        Some(Report::Status(status)) => !sidecar.is_ending && is_silent(status, sidecar.running_since),
        Some(Report::Unavailable(_)) | None => false,
    };
    let pods = fleet.sidecars.iter().filter(is_concerned).filter(is_bypassed);
    pods.map(|sidecar| sidecar.pod.clone()).collect()
}

/// Whether an entry has a rule for requests to the API server. Of a plugin that is not built in it is not known.
fn has_api_rules(entry: &Entry) -> bool {
    let plugin = entry.name.split('/').next().and_then(BuiltIn::of);
    let settings = entry.settings.value();
    let has = |rule: &Value, list: &str| {
        rule.get(list)
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
    };
    let rules = |list: &str, is_for_api: &dyn Fn(&Value) -> bool| {
        let rules = settings.get(list).and_then(Value::as_array);
        rules.into_iter().flatten().any(is_for_api)
    };
    match plugin {
        Some(BuiltIn::RateLimit | BuiltIn::CircuitBreaker) => rules("rateLimitings", &|rule| {
            has(rule, "resourceRules") || has(rule, "nonResourceRules") || !has(rule, "restRules")
        }),
        Some(BuiltIn::FaultInject) => rules("httpFault", &|fault| {
            // Faults without a match are of API traffic: `groupDown`.
            let is_external = |matching: &Value| {
                has(matching, "httpMatch") && !has(matching, "resources") && !has(matching, "nonResources")
            };
            !fault.get("match").is_some_and(is_external)
        }),
        Some(BuiltIn::ShardSelector) | None => true,
    }
}

/// Whether the containers run, had time for a request, and send none.
fn is_silent(status: &Status, running_since: Option<i64>) -> bool {
    let (Some(traffic), Some(running_since)) = (&status.api_traffic, running_since) else {
        return false;
    };
    status.not_ready.is_empty() && has_none(traffic, running_since).unwrap_or_default()
}

/// `None`: the sidecar takes no requests yet, or says no times.
fn has_none(traffic: &ApiTraffic, running_since: i64) -> Option<bool> {
    let time = |text: &str| Some(text.parse::<Timestamp>().ok()?.as_second());
    let (now, since) = (time(&traffic.now)?, time(traffic.since.as_deref()?)?);
    let last = traffic.last.as_deref().and_then(time);
    let had_time = now.saturating_sub(since.max(running_since)) >= SETTLED;
    Some(match last.filter(|last| *last >= running_since) {
        // What an earlier container has left open is closed with it.
        None => had_time && traffic.in_flight.unwrap_or_default() == 0,
        // A sidecar that does not say what is in flight may have a watch.
        Some(last) => traffic.in_flight == Some(0) && now.saturating_sub(last) >= QUIET,
    })
}

#[cfg(test)]
mod tests {
    use ctrlmesh_contract::status::ApiTraffic;
    use serde_json::json;

    use super::*;
    use crate::samples;

    fn second(second: i64) -> String {
        Timestamp::from_second(second).unwrap().to_string()
    }

    /// What a sidecar says at a time, that takes requests since another, and had the last one then.
    fn says(now: i64, since: Option<i64>, last: Option<i64>) -> Status {
        Status {
            api_traffic: Some(ApiTraffic {
                now: second(now),
                since: since.map(second),
                last: last.map(second),
                in_flight: Some(0),
            }),
            ..Status::default()
        }
    }

    #[test]
    fn pod_is_bypassed_when_its_containers_run_for_a_minute_without_a_request() {
        assert!(
            !is_silent(&says(1059, Some(1000), None), Some(1000)),
            "it had no time yet"
        );
        assert!(is_silent(&says(1060, Some(1000), None), Some(1000)));
        assert!(
            !is_silent(&says(1060, Some(1000), Some(1000)), Some(1000)),
            "a request came"
        );
    }

    #[test]
    fn pod_is_bypassed_when_nothing_came_for_two_hours_and_nothing_is_in_flight() {
        let after = |seconds: i64| says(2000 + seconds, Some(1000), Some(2000));
        assert!(!is_silent(&after(QUIET - 1), Some(1000)), "it may ask once an hour");
        assert!(
            is_silent(&after(QUIET), Some(1000)),
            "one request does not end the question"
        );
        let with = |in_flight: Option<u64>| {
            let mut status = after(10 * QUIET);
            status.api_traffic.as_mut().unwrap().in_flight = in_flight;
            status
        };
        assert!(
            !is_silent(&with(Some(1)), Some(1000)),
            "it has nothing to do, and watches"
        );
        assert!(
            !is_silent(&with(None), Some(1000)),
            "an earlier sidecar, which may have a watch"
        );
    }

    #[test]
    fn request_that_is_in_flight_is_traffic_also_if_it_came_before_the_containers() {
        let mut status = says(2000, Some(900), Some(999));
        assert!(is_silent(&status, Some(1000)));
        status.api_traffic.as_mut().unwrap().in_flight = Some(1);
        assert!(!is_silent(&status, Some(1000)));
    }

    #[test]
    fn only_entries_with_rules_for_api_traffic_name_pods() {
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
    fn requests_from_before_the_containers_do_not_count() {
        // Of an init container, or of one that was started again since.
        assert!(is_silent(&says(1060, Some(900), Some(999)), Some(1000)));
        assert!(!is_silent(&says(1059, Some(900), Some(999)), Some(1000)));
    }

    #[test]
    fn sidecar_that_was_started_again_has_its_own_minute() {
        assert!(!is_silent(&says(2059, Some(2000), None), Some(1000)));
        assert!(is_silent(&says(2060, Some(2000), None), Some(1000)));
    }

    #[test]
    fn pods_that_need_not_have_traffic_yet_are_not_silent() {
        assert!(!is_silent(&says(5000, Some(1000), None), None), "no container runs");
        assert!(!is_silent(&says(5000, None, None), Some(1000)), "nothing is taken yet");
        assert!(!is_silent(&Status::default(), Some(1000)), "an earlier sidecar");
        let mut not_ready = says(5000, Some(1000), None);
        not_ready.not_ready.push("listener".to_owned());
        assert!(!is_silent(&not_ready, Some(1000)));
    }

    #[test]
    fn oldest_running_container_counts_and_the_sidecar_does_not() {
        let started = |name: &str, state: &serde_json::Value| json!({"name": name, "state": state, "image": "", "imageID": "", "ready": true, "restartCount": 0});
        let running = |at: i64| json!({"running": {"startedAt": second(at)}});
        let of = |statuses: serde_json::Value| {
            let pod: Pod = serde_json::from_value(json!({"status": {"containerStatuses": statuses}})).unwrap();
            running_since(&pod)
        };
        let others = json!([
            started("ctrlmesh-proxy", &running(10)),
            started("manager", &running(30)),
            started("helper", &running(20)),
            started("waits", &json!({"waiting": {}})),
        ]);
        assert_eq!(of(others), Some(20));
        assert_eq!(of(json!([started("ctrlmesh-proxy", &running(10))])), None);
    }

    #[test]
    fn pods_of_the_entries_are_named() {
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
        let silent = || Report::Status(Box::new(says(2000, Some(1000), None)));
        let seen = Report::Status(Box::new(says(2000, Some(1000), Some(1500))));
        let fleet = Fleet {
            sidecars: vec![sidecar("silent"), sidecar("seen"), sidecar("unknown"), ending],
            reports: [("silent", silent()), ("ending", silent()), ("seen", seen)]
                .map(|(pod, answer)| (pod.to_owned(), answer))
                .into(),
            ..Fleet::default()
        };
        assert_eq!(bypassed(&[&entry], &fleet), ["silent".to_owned()].into());
        let external = Entry {
            settings: ctrlmesh_contract::Settings::new(json!({"rateLimitings": [{"restRules": [{}]}]})),
            ..samples::entry("rate-limit/a")
        };
        assert!(bypassed(&[&external], &fleet).is_empty(), "no rule for the API server");
        assert!(bypassed(&[], &fleet).is_empty());
    }
}
