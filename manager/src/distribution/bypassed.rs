//! Pods whose containers run and send nothing to the API server through their sidecars: they may go past them. Pure.
//!
//! A controller that waits for its lock asks for it all the time, so silence is not what a standby does. Times are those of the pod's
//! node: kubelet says when containers have started, the sidecar what time it is and when requests came.

use std::collections::BTreeSet;

use ctrlmesh_contract::Entry;
use ctrlmesh_contract::names::pod;
use ctrlmesh_contract::status::Status;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};
use k8s_openapi::jiff::Timestamp;

use super::fleet::{Answer, Fleet, Sidecar};

/// How long a container may run before its first request, in seconds.
const SETTLED: i64 = 60;

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

/// Pods with any of these entries that may go past their sidecars.
pub(super) fn bypassed(entries: &[&Entry], fleet: &Fleet) -> BTreeSet<String> {
    let is_concerned = |sidecar: &&Sidecar| sidecar.own(entries.iter().copied()).next().is_some();
    let is_bypassed = |sidecar: &&Sidecar| match fleet.answers.get(&sidecar.pod) {
        Some(Answer::Status(status)) => !sidecar.is_ending && is_silent(status, sidecar.running_since),
        Some(Answer::None(_)) | None => false,
    };
    let pods = fleet.sidecars.iter().filter(is_concerned).filter(is_bypassed);
    pods.map(|sidecar| sidecar.pod.clone()).collect()
}

/// Whether no request has come since the containers run, although there was time for it.
fn is_silent(status: &Status, running_since: Option<i64>) -> bool {
    let traffic = status.api_traffic.as_ref();
    let times = traffic.and_then(|traffic| {
        let time = |text: &str| Some(text.parse::<Timestamp>().ok()?.as_second());
        let last = traffic.last.as_deref().and_then(time);
        Some((time(&traffic.now)?, time(traffic.since.as_deref()?)?, last))
    });
    let (Some((now, since, last)), Some(running_since)) = (times, running_since) else {
        // It does not run, or does not say.
        return false;
    };
    let had_time = now.saturating_sub(since.max(running_since)) >= SETTLED;
    had_time && last.is_none_or(|last| last < running_since) && status.not_ready.is_empty()
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
        assert!(
            !is_silent(&says(5000, Some(1000), Some(1001)), Some(1000)),
            "long ago, but it knows the way"
        );
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
        let silent = || Answer::Status(Box::new(says(2000, Some(1000), None)));
        let seen = Answer::Status(Box::new(says(2000, Some(1000), Some(1500))));
        let fleet = Fleet {
            sidecars: vec![sidecar("silent"), sidecar("seen"), sidecar("unknown"), ending],
            answers: [("silent", silent()), ("ending", silent()), ("seen", seen)]
                .map(|(pod, answer)| (pod.to_owned(), answer))
                .into(),
            ..Fleet::default()
        };
        assert_eq!(bypassed(&[&entry], &fleet), ["silent".to_owned()].into());
        assert!(bypassed(&[], &fleet).is_empty());
    }
}
