use std::collections::BTreeSet;

use ctrlmesh_manager_planner::samples;
use serde_json::{Value, json};

use super::*;
use crate::fleet::Fleet;
use crate::pods::PodStates;

const NEEDED: Interface = Interface(0, 1, 1);

/// An entry of the ShardingConfig `name`, of pods with the label `app: <name>`.
fn entry(plugin: &str, name: &str, bytes: &str, settings: Value) -> Entry {
    let mut entry = samples::entry(&format!("{plugin}/{name}"));
    entry.plugin = Digest::of(bytes.as_bytes());
    entry.pod_selector.match_labels = [("app".to_owned(), name.to_owned())].into();
    entry.settings = ctrlmesh_contract::Settings::new(settings);
    entry.origin = Some(Origin {
        kind: "ShardingConfig".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        generation: 1,
    });
    entry
}

fn shard(name: &str, lock: &str, value: &str) -> Entry {
    entry(
        "shard-selector",
        name,
        "old",
        json!({"leaderElectionName": lock, "a": value}),
    )
}

fn guard(name: &str, bytes: &str) -> Entry {
    entry("guard", name, bytes, json!({}))
}

/// One pod for each of these, with what its sidecar says that it supports.
fn fleet(pods: &[(&str, Option<&[&str]>)]) -> Fleet {
    let mut fleet = Fleet::default();
    for (app, plugins) in pods {
        fleet.sidecars.push(Sidecar {
            pod: format!("{app}-0"),
            labels: [("app".to_owned(), (*app).to_owned())].into(),
            is_scheduled: true,
            ..Sidecar::default()
        });
        let mut status = samples::running(1, []);
        status.supports = plugins.map(|plugins| Support {
            plugins: plugins.iter().map(|version| (*version).to_owned()).collect(),
            ..Support::baseline()
        });
        fleet
            .reports
            .insert(format!("{app}-0"), Report::Status(Box::new(status)));
    }
    fleet
}

fn interfaces() -> Interfaces {
    let of = |bytes: &str, version| (Digest::of(bytes.as_bytes()), version);
    [of("old", Interface(0, 1, 0)), of("new", NEEDED)].into()
}

fn hold_back(desired: Vec<Entry>, intended: &[Entry], fleet: &Fleet) -> (Unsupported, Vec<Entry>) {
    let states = PodStates::default();
    Unsupported::hold_back(desired, intended, &interfaces(), Pods { fleet, states: &states })
}

fn unreadable_reason(fleet: &Fleet) -> Option<Reason> {
    let states = PodStates::default();
    unreadable_documents(Pods { fleet, states: &states })
}

fn names(entries: &[Entry]) -> BTreeSet<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

fn reason<'u>(unsupported: &'u Unsupported, name: &str) -> &'u str {
    let origin = Origin {
        kind: "ShardingConfig".to_owned(),
        name: name.to_owned(),
        ..Origin::default()
    };
    unsupported.message_of(&origin).unwrap_or_default()
}

#[test]
fn object_keeps_its_entries_while_a_sidecar_lacks_what_new_ones_need() {
    let meant = vec![guard("a", "old"), guard("b", "old")];
    let desired = || vec![guard("a", "new"), guard("b", "new")];
    // A sidecar that says nothing of it is one of the baseline.
    let fleet_of = |b| fleet(&[("a", Some(&["0.1.1"])), ("b", b)]);
    let held = |fleet: &Fleet| hold_back(desired(), &meant, fleet);
    let (unsupported, entries) = held(&fleet_of(None));
    assert_eq!(entries, [guard("a", "new"), guard("b", "old")]);
    assert_eq!(reason(&unsupported, "a"), "");
    let text = reason(&unsupported, "b");
    assert!(
        text.contains("ctrlmesh:plugin@0.1.1") && text.contains("b-0 (0.1.0)"),
        "{text}"
    );
    let (unsupported, entries) = held(&fleet_of(Some(&["0.1.4"])));
    assert_eq!((unsupported, entries), (Unsupported::default(), desired()));
}

#[test]
fn new_object_is_held_back_as_a_whole() {
    let desired = vec![guard("a", "new"), shard("a", "lock", "x"), guard("b", "old")];
    let fleet = fleet(&[("a", None), ("b", None)]);
    let (unsupported, entries) = hold_back(desired, &[], &fleet);
    assert_eq!(names(&entries), BTreeSet::from(["guard/b"]));
    assert!(!reason(&unsupported, "a").is_empty() && reason(&unsupported, "b").is_empty());
}

#[test]
fn shards_of_a_lock_are_held_back_together() {
    let meant = vec![
        shard("a", "lock", "x"),
        shard("b", "lock", "y"),
        shard("c", "other", "z"),
        shard("same", "lock", "s"),
    ];
    // `a` gives x to `b`, and gets a plugin that its sidecar can't run. `c` is of another lock.
    let desired = vec![
        guard("a", "new"),
        shard("a", "lock", "none"),
        shard("b", "lock", "x, y"),
        shard("c", "other", "zz"),
        shard("same", "lock", "s"),
    ];
    let fleet = fleet(&[("a", None), ("b", Some(&["0.1.1"])), ("c", None)]);
    let (unsupported, entries) = hold_back(desired, &meant, &fleet);
    let expected = [
        shard("a", "lock", "x"),
        shard("b", "lock", "y"),
        shard("c", "other", "zz"),
        shard("same", "lock", "s"),
    ];
    assert_eq!(entries, expected);
    for held in ["a", "b"] {
        assert!(reason(&unsupported, held).contains("a-0"), "{held}");
    }
    for going_on in ["c", "same"] {
        assert_eq!(reason(&unsupported, going_on), "");
    }
}

#[test]
fn sibling_follows_through_an_edit_of_the_lock() {
    let meant = vec![shard("a", "one", "x"), shard("b", "two", "y"), shard("c", "three", "z")];
    let desired = vec![
        guard("a", "new"),
        shard("a", "two", "x"),
        shard("b", "three", "y"),
        shard("c", "three", "y, z"),
    ];
    let (_, entries) = hold_back(desired, &meant, &fleet(&[("a", None)]));
    assert_eq!(entries, meant);
}

#[test]
fn deleted_entries_go_and_running_ones_need_no_support() {
    let meant = vec![shard("a", "lock", "x"), shard("gone", "lock", "y"), guard("b", "new")];
    let desired = vec![guard("a", "new"), shard("a", "lock", "x, y"), guard("b", "new")];
    let fleet = fleet(&[("a", None), ("b", None), ("gone", None)]);
    let (unsupported, entries) = hold_back(desired, &meant, &fleet);
    assert_eq!(names(&entries), BTreeSet::from(["guard/b", "shard-selector/a"]));
    assert!(entries.contains(&shard("a", "lock", "x")));
    assert_eq!(reason(&unsupported, "b"), "");
}

#[test]
fn sidecars_without_a_report_hold_back_nothing() {
    let mut fleet = fleet(&[("a", None)]);
    fleet.reports.insert(
        "a-0".to_owned(),
        Report::Unavailable("does not answer in time".to_owned()),
    );
    let (unsupported, entries) = hold_back(vec![guard("a", "new")], &[], &fleet);
    assert_eq!(
        (unsupported, entries),
        (Unsupported::default(), vec![guard("a", "new")])
    );
    assert_eq!(unreadable_reason(&fleet), None);
}

#[test]
fn documents_unreadable_for_a_sidecar_are_not_written() {
    let mut fleet = fleet(&[("a", None), ("b", None)]);
    assert_eq!(unreadable_reason(&fleet), None);
    let Some(Report::Status(status)) = fleet.reports.get_mut("b-0") else {
        panic!()
    };
    status.supports = Some(Support {
        documents: vec!["chain.ctrlmesh.kusionstack.io/v9".to_owned()],
        ..Support::baseline()
    });
    let Reason { code, message } = unreadable_reason(&fleet).unwrap();
    assert_eq!(code, Reason::SIDECAR_OUTDATED);
    assert!(message.contains("b-0") && !message.contains("a-0"), "{message}");
}

fn digest(id: &str) -> Digest {
    Digest::of(id.as_bytes())
}

fn sizes(of: &[(&str, usize)]) -> BTreeMap<Digest, usize> {
    of.iter().map(|(id, bytes)| (digest(id), *bytes)).collect()
}

#[test]
fn plugins_stay_in_place_and_go_when_unused() {
    let mut now = PluginSlots::default();
    now[3] = sizes(&[("a", 10), ("old", 10)]);
    now[5] = sizes(&[("gone", 10)]);
    let slots = assign_slots(&now, &sizes(&[("a", 10), ("b", 10)]), &[digest("old")].into()).unwrap();
    assert_eq!(slots[3], sizes(&[("a", 10), ("old", 10)]));
    assert_eq!((&slots[0], &slots[5]), (&sizes(&[("b", 10)]), &BTreeMap::new()));
    let slots = assign_slots(&slots, &sizes(&[("a", 10), ("b", 10)]), &BTreeSet::new()).unwrap();
    assert_eq!(slots[3], sizes(&[("a", 10)]));
}

#[test]
fn large_plugin_gets_its_own_config_map() {
    let large = MAX_SLOT_BYTES - 5;
    let slots = assign_slots(
        &PluginSlots::default(),
        &sizes(&[("a", large), ("b", large)]),
        &BTreeSet::new(),
    )
    .unwrap();
    assert_eq!(slots.iter().filter(|slot| slot.len() == 1).count(), 2);
    let error = assign_slots(&slots, &sizes(&[("c", MAX_SLOT_BYTES + 1)]), &BTreeSet::new()).unwrap_err();
    assert_eq!((error.digest, error.bytes), (digest("c"), MAX_SLOT_BYTES + 1));
    let nine: Vec<String> = (0..9).map(|id| id.to_string()).collect();
    let nine: Vec<(&str, usize)> = nine.iter().map(|id| (id.as_str(), large)).collect();
    assert!(assign_slots(&PluginSlots::default(), &sizes(&nine), &BTreeSet::new()).is_err());
}
