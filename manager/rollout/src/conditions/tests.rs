//! What a status says, and when it says something new.

use ctrlmesh_manager_api::sharding_config::LeaderStatus;
use ctrlmesh_manager_api::status::{BreakerState, LimitingSnapshot, TargetStatus};

use super::*;
use crate::start_gate::StartBlocker;

fn origin() -> Origin {
    Origin {
        kind: "CircuitBreaker".to_owned(),
        name: "a".to_owned(),
        ..Origin::default()
    }
}

fn enforced_of(facts: &Facts) -> (String, String) {
    let status = object_status(&origin(), facts, &Value::Null, "now");
    let list = status["conditions"].as_array().unwrap();
    let condition = list.iter().find(|condition| condition["type"] == "Enforced").unwrap();
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    (text("status"), text("reason"))
}

#[test]
fn withheld_object_without_entries_is_not_enforced() {
    let mut facts = Facts::default();
    assert_eq!(enforced_of(&facts), ("True".to_owned(), "NothingToRun".to_owned()));
    facts.withheld = Some(Reason::new("TooLarge", "too large"));
    assert_eq!(enforced_of(&facts), ("False".to_owned(), "Progressing".to_owned()));
}

#[test]
fn withheld_object_that_is_deleted_says_how_to_release_it() {
    let pending = "the shard is removed with the next chain. To release it by force: `kubectl patch`";
    let facts = Facts {
        withheld: Some(Reason::new("WriteFailed", "the chain can't be written")),
        deleted: Some(Reason::new("Deleting", pending)),
        ..Facts::default()
    };
    let drafts = drafts(&facts);
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
        let facts = Facts {
            chain,
            ..Facts::default()
        };
        object_status(&origin(), &facts, before, "now")
    };
    let before = of(3, &Value::Null);
    assert!(is_same(&before, &of(4, &before)));
    assert!(!is_same(&before, &of(4, &Value::Null)));
}

#[test]
fn accepted_condition_carries_warnings_when_object_is_valid() {
    let of = |warnings: &str, mistakes: &str| {
        let facts = Facts {
            warnings: warnings.to_owned(),
            mistakes: mistakes.to_owned(),
            ..Facts::default()
        };
        let status = object_status(&origin(), &facts, &Value::Null, "now");
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
    let after = object_status(&origin(), &Facts::default(), &Value::Null, "now");
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
        let facts = Facts {
            leader,
            ..Facts::default()
        };
        object_status(&shard, &facts, before, "now")
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

/// They would be written each time that anybody asks: what they are now is with the sidecar.
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
        let rollout = Rollout {
            targets: vec![target],
            ..Rollout::default()
        };
        let facts = Facts {
            rollout,
            ..Facts::default()
        };
        object_status(&origin(), &facts, &Value::Null, "now")
    };
    let before = of(2, BreakerState::Closed);
    assert_eq!(before["targetStatus"][0]["limitingSnapshots"][0]["requests"], 2);
    assert!(is_same(&before, &of(8, BreakerState::Closed)));
    assert!(!is_same(&before, &of(2, BreakerState::Opened)));
}

#[test]
fn bypassed_condition_names_pods_and_ends_when_they_send_requests() {
    let of = |pods: &[&str], before: &Value| {
        let facts = Facts {
            bypassed: pods.iter().map(|pod| (*pod).to_owned()).collect(),
            ..Facts::default()
        };
        object_status(&origin(), &facts, before, "now")
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

/// What happened, and the facts of it.
type Situation = (&'static str, Facts);

/// An object whose entries all its pods run.
fn facts_in_force() -> Facts {
    Facts {
        chain: 7,
        hash: "a".to_owned(),
        rollout: Rollout {
            selected: 2,
            enforced: 2,
            ..Rollout::default()
        },
        ..Facts::default()
    }
}

/// The same after a change.
fn facts_with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts_in_force();
    change(&mut facts);
    facts
}

fn situations_of_objects() -> Vec<Situation> {
    let mistake = "spec.limits[0].selector: is empty".to_owned();
    let invalid = Facts {
        mistakes: mistake.clone(),
        ..Facts::default()
    };
    let plugin = json!({ "name": "team/quota", "message": "registry answered 404; check spec.plugins" });
    vec![
        ("in force", facts_in_force()),
        ("disabled", Facts::default()),
        (
            "valid with warnings",
            facts_with(|facts| facts.warnings = "spec.limits[0]: selects no object".to_owned()),
        ),
        ("invalid from the start", invalid),
        (
            "invalid after a valid generation",
            facts_with(|facts| {
                facts.mistakes = mistake;
                facts.is_kept = true;
            }),
        ),
        (
            "plugin missing",
            facts_with(|facts| {
                facts.plugins = Some(vec![plugin]);
                facts.is_unresolved = true;
                facts.is_kept = true;
            }),
        ),
        (
            "chain can't be written",
            facts_with(|facts| {
                facts.withheld = Some(Reason::new("WriteFailed", "configmaps is forbidden (HTTP 403)"));
            }),
        ),
        (
            "deleted",
            facts_with(|facts| {
                facts.deleted = Some(Reason::new("Deleting", "the shard is removed with the next chain"))
            }),
        ),
    ]
}

fn situations_of_pods() -> Vec<Situation> {
    let blocked = |blocker: StartBlocker| facts_with(|facts| facts.start_blocker = Some(blocker.reason()));
    let uninjected = StartBlocker::Pods(["operator-0".to_owned()].into());
    let unknown = StartBlocker::Unknown("pods is forbidden (HTTP 403)".to_owned());
    vec![
        ("no pods", facts_with(|facts| facts.rollout = Rollout::default())),
        (
            "one pod lags",
            facts_with(|facts| {
                facts.rollout.enforced = 1;
                facts.rollout.lagging = vec![("operator-1".to_owned(), "runs generation 6".to_owned())];
            }),
        ),
        (
            "another shard has its objects",
            facts_with(|facts| facts.waits_for = vec!["left (operator-0: runs generation 6)".to_owned()]),
        ),
        (
            "another shard is to have its objects, too",
            facts_with(|facts| facts.overlaps = vec!["left".to_owned()]),
        ),
        ("pods without a sidecar", blocked(uninjected)),
        ("pods without a sidecar are gone", blocked(StartBlocker::NoPods)),
        (
            "pods without a sidecar have been gone for a moment",
            blocked(StartBlocker::Gone),
        ),
        ("pods can't be listed", blocked(unknown)),
        (
            "pods are replaced",
            facts_with(|facts| facts.restart = Some(Reason::new("Restarting", "replacing operator-0"))),
        ),
        (
            "a pod can't be evicted",
            facts_with(|facts| {
                let message =
                    "operator-0 can't be evicted: Cannot evict pod as it would violate the pod's disruption budget.";
                facts.restart = Some(Reason::new("EvictionRefused", message));
            }),
        ),
        (
            "traffic bypasses the sidecar",
            facts_with(|facts| facts.bypassed = ["manager in operator-0".to_owned()].into()),
        ),
    ]
}

#[test]
fn messages_of_conditions_are_reviewed() {
    let mut text = String::new();
    let bypassed = json!({ "conditions": [{ "type": "Bypassed", "status": "True" }] });
    let situations = situations_of_objects().into_iter().chain(situations_of_pods());
    let situations = situations.map(|(situation, facts)| (situation, facts, Value::Null));
    let over = ("traffic no longer bypasses the sidecar", facts_in_force(), bypassed);
    for (situation, facts, before) in situations.chain([over]) {
        let status = object_status(&origin(), &facts, &before, "now");
        text += &format!("{situation}:\n");
        for condition in status["conditions"].as_array().unwrap() {
            let field = |name: &str| condition[name].as_str().unwrap();
            let (kind, status, reason) = (field("type"), field("status"), field("reason"));
            text += &format!("  {kind}={status} {reason}: {}\n", field("message"));
        }
    }
    insta::assert_snapshot!(text);
}
