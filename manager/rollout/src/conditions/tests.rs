//! Conditions of a status, and when they change.

use ctrlmesh_manager_api::sharding_config::LeaderStatus;
use ctrlmesh_manager_api::status::{BreakerState, LimitingSnapshot, TargetStatus};

use super::*;
use crate::begin_gate::BeginBlocker;

fn origin() -> Origin {
    Origin {
        kind: "CircuitBreaker".to_owned(),
        name: "a".to_owned(),
        ..Origin::default()
    }
}

fn enforced_of(summary: &ObjectSummary) -> (String, String) {
    let status = object_status(&origin(), summary, &Value::Null, "now");
    let list = status["conditions"].as_array().unwrap();
    let condition = list.iter().find(|condition| condition["type"] == "Enforced").unwrap();
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    (text("status"), text("reason"))
}

#[test]
fn blocked_object_without_entries_is_not_enforced() {
    let mut summary = ObjectSummary::default();
    assert_eq!(enforced_of(&summary), ("True".to_owned(), "NothingToRun".to_owned()));
    summary.blocker = Some(Reason::new("TooLarge", "too large"));
    assert_eq!(enforced_of(&summary), ("False".to_owned(), "Progressing".to_owned()));
}

#[test]
fn blocked_object_that_is_deleted_says_how_to_release_it() {
    let pending = "the shard is removed with the next chain. To release it by force: `kubectl patch`";
    let summary = ObjectSummary {
        blocker: Some(Reason::new("WriteFailed", "the chain can't be written")),
        deleted: Some(Reason::new("Deleting", pending)),
        ..ObjectSummary::default()
    };
    let drafts = condition_drafts(&summary);
    let distributed = drafts
        .iter()
        .find(|draft| draft.kind == condition::DISTRIBUTED)
        .unwrap();
    assert_eq!(distributed.reason.code, "WriteFailed");
    let message = &distributed.reason.message;
    assert!(message.starts_with("the chain can't be written"), "{message}");
    assert!(message.contains("To release it by force: `kubectl patch`"), "{message}");
}

#[test]
fn status_stays_when_chain_changes_for_other_objects() {
    let of = |chain, before: &Value| {
        let summary = ObjectSummary {
            chain,
            ..ObjectSummary::default()
        };
        object_status(&origin(), &summary, before, "now")
    };
    let before = of(3, &Value::Null);
    assert!(is_same(&before, &of(4, &before)));
    assert!(!is_same(&before, &of(4, &Value::Null)));
}

#[test]
fn accepted_condition_carries_warnings_when_object_is_valid() {
    let of = |warnings: &str, mistakes: &str| {
        let summary = ObjectSummary {
            warnings: warnings.to_owned(),
            mistakes: mistakes.to_owned(),
            ..ObjectSummary::default()
        };
        let status = object_status(&origin(), &summary, &Value::Null, "now");
        let accepted = status["conditions"][0].clone();
        assert_eq!(accepted["type"], "Accepted");
        let text = |field: &str| accepted[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("message"))
    };
    let expect = |status: &str, message: &str| (status.to_owned(), message.to_owned());
    assert_eq!(of("", ""), expect("True", ""));
    assert_eq!(of("warning: a", ""), expect("True", "warning: a"));
    assert_eq!(of("", "b is wrong"), expect("False", "b is wrong"));
}

#[test]
fn status_patch_removes_foreign_values_and_keeps_foreign_conditions() {
    let after = object_status(&origin(), &ObjectSummary::default(), &Value::Null, "now");
    assert!(is_same(&after, &after));
    let theirs = json!({ "type": "Audited", "status": "True" });
    let mut before = after.clone();
    before["conditions"].as_array_mut().unwrap().push(theirs.clone());
    assert!(is_same(&before, &after), "it says nothing of ours");
    before["targetStatus"] = json!([{ "podName": "gone" }]);
    before["plugins"] = json!([{ "name": "old" }]);
    assert!(!is_same(&before, &after));
    let mut merged = json!({ "status": before });
    let patch = json!({ "status": status_patch(&before, after.clone(), Some("then")) });
    json_patch::merge(&mut merged, &patch);
    let merged = &merged["status"];
    assert!(is_same(merged, &after), "{merged}");
    assert_eq!(merged["targetStatus"], json!([]));
    assert!(merged.get("plugins").is_none());
    assert!(merged["conditions"].as_array().unwrap().contains(&theirs));
    assert_eq!(merged["lastUpdatedTime"], "then");
}

#[test]
fn leader_is_removed_from_status_when_nobody_leads() {
    let shard = Origin {
        kind: "ShardingConfig".to_owned(),
        ..origin()
    };
    let of = |holder: Option<&str>, before: &Value| {
        let leader = holder.map(|holder| LeaderStatus {
            pod_name: "operator-0".to_owned(),
            holder_identity: holder.to_owned(),
            since: "2026-01-01T00:00:00Z".to_owned(),
        });
        let summary = ObjectSummary {
            leader,
            ..ObjectSummary::default()
        };
        object_status(&shard, &summary, before, "now")
    };
    let before = of(Some("me"), &Value::Null);
    assert_eq!(before["leader"]["podName"], "operator-0");
    assert!(is_same(&before, &of(Some("me"), &before)));
    assert!(!is_same(&before, &of(Some("my next"), &before)));
    let after = of(None, &before);
    assert!(!is_same(&before, &after));
    let mut merged = json!({ "status": before });
    json_patch::merge(
        &mut merged,
        &json!({ "status": status_patch(&before, after.clone(), None) }),
    );
    assert!(merged["status"].get("leader").is_none());
    assert!(is_same(&merged["status"], &after));
}

/// Counters would be written each time that anybody asks; the sidecar has their present values.
#[test]
fn status_stays_when_breakers_only_count() {
    let of = |requests: u64, state: BreakerState| {
        let snapshot = LimitingSnapshot {
            name: "a".to_owned(),
            key: String::new(),
            state,
            reason: String::new(),
            last_transition_time: None,
            recovers_at: None,
            requests,
            failures: requests / 2,
        };
        let target = TargetStatus {
            limiting_snapshots: vec![snapshot],
            ..TargetStatus::default()
        };
        let enforcement = Enforcement {
            targets: vec![target],
            ..Enforcement::default()
        };
        let summary = ObjectSummary {
            enforcement,
            ..ObjectSummary::default()
        };
        object_status(&origin(), &summary, &Value::Null, "now")
    };
    let before = of(2, BreakerState::Closed);
    assert_eq!(before["targetStatus"][0]["limitingSnapshots"][0]["requests"], 2);
    assert!(is_same(&before, &of(8, BreakerState::Closed)));
    assert!(!is_same(&before, &of(2, BreakerState::Opened)));
}

#[test]
fn bypassed_condition_names_pods_and_ends_when_they_send_requests() {
    let of = |pods: &[&str], before: &Value| {
        let summary = ObjectSummary {
            bypassed: pods.iter().map(|pod| (*pod).to_owned()).collect(),
            ..ObjectSummary::default()
        };
        object_status(&origin(), &summary, before, "now")
    };
    let said = |status: &Value| {
        let mut list = status["conditions"].as_array().unwrap().iter();
        let condition = list.find(|condition| condition["type"] == "Bypassed")?;
        let text = |field: &str| condition[field].as_str().unwrap().to_owned();
        Some((text("status"), text("reason"), text("message")))
    };
    let nothing = of(&[], &Value::Null);
    assert_eq!(said(&nothing), None, "there was nothing to say");
    let bypassed = of(&["b-1", "a-0"], &nothing);
    let (holds, reason, message) = said(&bypassed).unwrap();
    assert_eq!((&*holds, &*reason), ("True", "NoTraffic"));
    assert!(
        message.starts_with("containers of a-0, b-1 have sent nothing"),
        "{message}"
    );
    assert!(
        message.contains("annotation ctrlmesh.kusionstack.io/kubeconfig-arg"),
        "{message}"
    );
    assert!(!is_same(&nothing, &bypassed));
    let over = of(&[], &bypassed);
    let (holds, reason, _) = said(&over).unwrap();
    assert_eq!((&*holds, &*reason), ("False", "TrafficSeen"));
}

/// A heading, and the summary of an object.
type Situation = (&'static str, ObjectSummary);

/// An object whose entries all its pods run.
fn summary_in_force() -> ObjectSummary {
    ObjectSummary {
        chain: 7,
        hash: "a".to_owned(),
        enforcement: Enforcement {
            selected: 2,
            enforced: 2,
            ..Enforcement::default()
        },
        ..ObjectSummary::default()
    }
}

/// The same after a change.
fn summary_with(change: impl FnOnce(&mut ObjectSummary)) -> ObjectSummary {
    let mut summary = summary_in_force();
    change(&mut summary);
    summary
}

fn situations_of_objects() -> Vec<Situation> {
    let mistake = "spec.limits[0].selector: is empty".to_owned();
    let invalid = ObjectSummary {
        mistakes: mistake.clone(),
        ..ObjectSummary::default()
    };
    let plugin = json!({ "name": "team/quota", "message": "registry answered 404; check spec.plugins" });
    vec![
        ("in force", summary_in_force()),
        ("disabled", ObjectSummary::default()),
        (
            "valid with warnings",
            summary_with(|summary| summary.warnings = "spec.limits[0]: selects no object".to_owned()),
        ),
        ("invalid from the start", invalid),
        (
            "invalid after a valid generation",
            summary_with(|summary| {
                summary.mistakes = mistake;
                summary.is_kept = true;
            }),
        ),
        (
            "plugin missing",
            summary_with(|summary| {
                summary.plugins = Some(vec![plugin]);
                summary.is_unresolved = true;
                summary.is_kept = true;
            }),
        ),
        (
            "chain can't be written",
            summary_with(|summary| {
                summary.blocker = Some(Reason::new("WriteFailed", "configmaps is forbidden (HTTP 403)"));
            }),
        ),
        (
            "deleted",
            summary_with(|summary| {
                summary.deleted = Some(Reason::new("Deleting", "the shard is removed with the next chain"))
            }),
        ),
    ]
}

fn situations_of_pods() -> Vec<Situation> {
    let blocked = |blocker: BeginBlocker| summary_with(|summary| summary.begin_blocker = Some(blocker.reason()));
    let uninjected = BeginBlocker::Pods(["operator-0".to_owned()].into());
    let unknown = BeginBlocker::Unknown("pods is forbidden (HTTP 403)".to_owned());
    vec![
        (
            "no pods",
            summary_with(|summary| summary.enforcement = Enforcement::default()),
        ),
        (
            "one pod lags",
            summary_with(|summary| {
                summary.enforcement.enforced = 1;
                summary.enforcement.lagging = vec![("operator-1".to_owned(), "runs generation 6".to_owned())];
            }),
        ),
        (
            "another shard has its objects",
            summary_with(|summary| summary.waits_for = vec!["left (operator-0: runs generation 6)".to_owned()]),
        ),
        (
            "another shard is to have its objects, too",
            summary_with(|summary| summary.overlaps = vec!["left".to_owned()]),
        ),
        ("pods without a sidecar", blocked(uninjected)),
        ("pods without a sidecar are gone", blocked(BeginBlocker::NoPods)),
        (
            "pods without a sidecar have been gone for a moment",
            blocked(BeginBlocker::Gone),
        ),
        ("pods can't be listed", blocked(unknown)),
        (
            "pods are replaced",
            summary_with(|summary| summary.restart = Some(Reason::new("Restarting", "replacing operator-0"))),
        ),
        (
            "a pod can't be evicted",
            summary_with(|summary| {
                let message =
                    "operator-0 can't be evicted: Cannot evict pod as it would violate the pod's disruption budget.";
                summary.restart = Some(Reason::new("EvictionRefused", message));
            }),
        ),
        (
            "traffic bypasses the sidecar",
            summary_with(|summary| summary.bypassed = ["manager in operator-0".to_owned()].into()),
        ),
    ]
}

#[test]
fn messages_of_conditions_match_snapshot() {
    let mut text = String::new();
    let bypassed = json!({ "conditions": [{ "type": "Bypassed", "status": "True" }] });
    let situations = situations_of_objects().into_iter().chain(situations_of_pods());
    let situations = situations.map(|(situation, summary)| (situation, summary, Value::Null));
    let over = ("traffic no longer bypasses the sidecar", summary_in_force(), bypassed);
    for (situation, summary, before) in situations.chain([over]) {
        let status = object_status(&origin(), &summary, &before, "now");
        text += &format!("{situation}:\n");
        for condition in status["conditions"].as_array().unwrap() {
            let field = |name: &str| condition[name].as_str().unwrap();
            let (kind, status, reason) = (field("type"), field("status"), field("reason"));
            text += &format!("  {kind}={status} {reason}: {}\n", field("message"));
        }
    }
    insta::assert_snapshot!(text);
}
