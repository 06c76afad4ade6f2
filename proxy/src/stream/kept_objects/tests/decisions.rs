//! Decisions about the events of a watch.

use ctrlmesh_wire::objects::{HashKey, HashRange};

use super::*;

const RESUMES: WatchClient = WatchClient {
    takes_bookmarks: false,
    start: ClientStart::Resumed,
};

pub(super) const STARTS_EMPTY: WatchClient = WatchClient {
    start: ClientStart::Empty,
    ..RESUMES
};

const REPEATS: WatchClient = WatchClient {
    start: ClientStart::Repeated,
    ..RESUMES
};

fn decider(predicates: Vec<Predicate>, client: WatchClient) -> EventDecider {
    EventDecider::new(kept_objects(predicates).0, client)
}

fn decide(decider: &mut EventDecider, event_type: EventType, shard: &str) -> EventDecision {
    let object = ObjectMetadata {
        namespace: "a".into(),
        name: "x".into(),
        uid: "uid".into(),
        labels: vec![("shard".into(), shard.into())],
        ..ObjectMetadata::default()
    };
    decider.decide(event_type, &object, Instant::now())
}

/// Events of one object with their shards, and what is decided about them in a watch of shard `a`.
type Events = &'static [(EventType, &'static str, EventDecision)];

fn check_decisions(client: WatchClient, cases: &[Events]) {
    for events in cases {
        let mut decider = decider(vec![with_labels("shard=a")], client);
        for (index, (event_type, shard, expected)) in events.iter().enumerate() {
            let decision = decide(&mut decider, *event_type, shard);
            assert_eq!(decision, *expected, "event {index} of {events:?}");
        }
    }
}

#[test]
fn client_that_starts_empty_gets_objects_that_enter_and_leave_once() {
    use EventDecision::{Drop, Keep, KeepAs, Tombstone};
    use EventType::{Added, Deleted, Modified};
    check_decisions(
        STARTS_EMPTY,
        &[
            &[
                (Added, "b", Drop),
                (Modified, "b", Drop),
                (Modified, "a", KeepAs(Added)),
                (Modified, "a", Keep),
                (Modified, "b", Tombstone),
                (Modified, "b", Drop),
                (Modified, "a", KeepAs(Added)),
                (Deleted, "a", Keep),
            ],
            &[
                (Added, "a", Keep),
                (Added, "a", Keep),
                (Modified, "a", Keep),
                (Modified, "b", Tombstone),
                (Deleted, "b", Drop),
            ],
            &[(Added, "a", Keep), (Deleted, "b", Tombstone), (Deleted, "b", Drop)],
            &[(Added, "a", Keep), (Added, "b", Tombstone), (Added, "b", Drop)],
            &[(Modified, "b", Drop)],
            &[(Deleted, "a", Keep)],
            &[(Added, "b", Drop), (Deleted, "a", Keep)],
        ],
    );
}

#[test]
fn client_that_resumes_may_have_each_object_before_its_first_event() {
    use EventDecision::{Drop, Keep, KeepAs, Tombstone};
    use EventType::{Added, Deleted, Modified};
    check_decisions(
        RESUMES,
        &[
            &[
                (Modified, "a", Keep),
                (Modified, "b", Tombstone),
                (Modified, "b", Drop),
                (Modified, "a", KeepAs(Added)),
                (Modified, "a", Keep),
                (Deleted, "b", Tombstone),
            ],
            &[(Modified, "b", Tombstone), (Deleted, "b", Drop)],
            &[(Modified, "b", Tombstone), (Deleted, "a", Keep)],
            // It is new, so the client cannot have it.
            &[
                (Added, "b", Drop),
                (Modified, "b", Drop),
                (Modified, "a", KeepAs(Added)),
            ],
            &[(Deleted, "a", Keep)],
            // Deleted objects are forgotten.
            &[(Added, "b", Drop), (Deleted, "b", Drop), (Deleted, "b", Tombstone)],
        ],
    );
}

#[test]
fn client_that_gets_all_objects_again_may_have_each_that_is_added() {
    use EventDecision::{Drop, Keep, KeepAs, Tombstone};
    use EventType::{Added, Deleted, Modified};
    check_decisions(
        REPEATS,
        &[
            &[
                (Added, "b", Tombstone),
                (Added, "b", Drop),
                (Modified, "b", Drop),
                (Modified, "a", KeepAs(Added)),
            ],
            &[(Added, "a", Keep), (Modified, "a", Keep), (Modified, "b", Tombstone)],
            &[(Modified, "b", Tombstone), (Deleted, "b", Drop)],
        ],
    );
    let elsewhere = Predicate::all(vec![with_labels("shard=a"), in_namespace("b")]).unwrap();
    let mut decider = decider(vec![elsewhere], REPEATS);
    assert_eq!(decide(&mut decider, Added, "a"), Drop, "it can never match");
}

#[test]
fn client_is_told_of_every_departure_beyond_the_limit() {
    use EventDecision::{Keep, KeepAs, Tombstone};
    use EventType::{Added, Deleted, Modified};
    for (client, first) in [(RESUMES, Keep), (STARTS_EMPTY, KeepAs(Added))] {
        let mut decider = decider(vec![with_labels("shard=a")], client);
        let known = decider.known.as_mut().unwrap();
        for index in 0..known_objects::MAX_KNOWN_OBJECTS {
            known.remember(&index.to_string(), true);
        }
        // A client that starts empty is known to lack objects until one finds no room.
        for (event_type, shard, expected) in [
            (Modified, "a", first),
            (Modified, "a", Keep),
            (Modified, "b", Tombstone),
            (Modified, "b", Tombstone),
            (Modified, "a", Keep),
            (Deleted, "b", Tombstone),
        ] {
            let decision = decide(&mut decider, event_type, shard);
            assert_eq!(decision, expected, "{event_type:?} {shard} {client:?}");
        }
    }
}

#[test]
fn watch_remembers_objects_only_if_they_can_enter_and_leave() {
    let ranges_of = |key| Predicate::hash_ranges(key, vec![HashRange::ALL]).unwrap();
    for (predicates, remembers) in [
        (vec![in_namespace("a"), with_name("x")], false),
        (vec![ranges_of(HashKey::Uid)], false),
        (vec![ranges_of(HashKey::Namespace).negate().unwrap()], false),
        (vec![with_labels("shard=a")], true),
        (vec![in_namespace("a"), with_labels("shard=a")], true),
        (vec![ranges_of(HashKey::ControllerUid)], true),
        (vec![ranges_of(HashKey::Label("shard".into()))], true),
    ] {
        let shown = format!("{predicates:?}");
        let decider = decider(predicates, STARTS_EMPTY);
        assert_eq!(decider.known.is_some(), remembers, "{shown}");
        assert!(decider.fields().uid || !remembers, "{shown}");
    }
    assert!(!decider(vec![in_namespace("a")], RESUMES).fields().uid);
}

#[test]
fn objects_that_can_never_match_take_no_memory() {
    let elsewhere = Predicate::all(vec![with_labels("shard=a"), in_namespace("b")]).unwrap();
    let mut decider = decider(vec![elsewhere], RESUMES);
    assert_eq!(decide(&mut decider, EventType::Added, "a"), EventDecision::Drop);
    let known = decider.known.unwrap();
    assert_eq!(known.possession_of("uid"), Possession::Unknown);
}
