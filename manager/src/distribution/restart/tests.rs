use ctrlmesh_contract::{LabelSelector, Operator, Requirement};

use super::*;
use crate::samples;

/// A pod of the shard; `keeps`: it sees what it saw before.
fn pod(name: &str, keeps: bool) -> Sidecar {
    let keeps = keeps.then(|| (KEEPS_LIMITS.to_owned(), "before".to_owned()));
    Sidecar {
        pod: name.to_owned(),
        uid: format!("uid-{name}"),
        ip: Some("10.0.0.1".to_owned()),
        is_placed: true,
        labels: keeps.into_iter().collect(),
        shard_pods: Some(3),
        ..Sidecar::default()
    }
}

fn evict() -> Evict {
    let kept = Requirement {
        key: KEEPS_LIMITS.to_owned(),
        operator: Operator::In,
        values: vec!["before".to_owned()],
    };
    Evict {
        entry: "shard-selector/a".to_owned(),
        pods: LabelSelector::default(),
        kept: LabelSelector {
            match_expressions: vec![kept],
            ..LabelSelector::default()
        },
    }
}

fn entry() -> Entry {
    samples::entry("shard-selector/a")
}

fn answer() -> Answer {
    Answer::Status(Box::new(samples::running(0, &[entry()])))
}

/// Three pods that answer.
fn fleet(pods: [Sidecar; 3]) -> Fleet {
    let answers = pods.iter().map(|pod| (pod.pod.clone(), answer()));
    Fleet {
        fresh: pods.iter().map(|pod| pod.pod.clone()).collect(),
        answers: answers.collect(),
        sidecars: pods.to_vec(),
        ..Fleet::default()
    }
}

fn next(fleet: &Fleet) -> String {
    match turn(&evict(), &[entry()], fleet, &BTreeSet::new()) {
        Turn::Next => first(&candidates(&evict(), fleet), fleet, Some("a_1"))
            .unwrap()
            .pod
            .clone(),
        Turn::Wait(message) => message,
        Turn::Missing(count) => format!("{count} missing"),
        Turn::Done => "done".to_owned(),
    }
}

#[test]
fn leaders_are_last_and_who_may_lead_is_before_them() {
    let mut pods = fleet([pod("a", true), pod("b", true), pod("c", true)]);
    assert_eq!(next(&pods), "b");
    pods.answers
        .insert("b".to_owned(), Answer::None("does not answer".to_owned()));
    assert_eq!(next(&pods), "c");
    let pods = fleet([pod("a", true), pod("b", false), pod("c", false)]);
    assert_eq!(next(&pods), "a");
    assert_eq!(
        next(&fleet([pod("a", false), pod("b", false), pod("c", false)])),
        "done"
    );
    // The name of one begins like the other's.
    let pods = fleet([pod("a", true), pod("a-1", true), pod("a_", true)]);
    let kept = candidates(&evict(), &pods);
    assert_eq!(first(&kept, &pods, Some("a-1_6f")).unwrap().pod, "a");
    assert_eq!(first(&kept[..2], &pods, Some("a")).unwrap().pod, "a-1");
}

#[test]
fn the_next_is_evicted_when_the_one_before_is_back_and_acknowledges() {
    let whole = fleet([pod("a", true), pod("b", false), pod("c", true)]);
    assert_eq!(next(&whole), "c");
    let mut ending = whole.clone();
    ending.sidecars[2].is_ending = true;
    assert_eq!(next(&ending), "c ends");
    let evicted = BTreeSet::from(["uid-c".to_owned()]);
    assert_eq!(
        turn(&evict(), &[entry()], &whole, &evicted),
        Turn::Wait("c ends".to_owned()),
        "and that is not seen yet"
    );
    let mut gone = whole.clone();
    gone.sidecars.remove(1);
    assert_eq!(next(&gone), "1 missing");
    let mut starts = whole.clone();
    starts.sidecars[1].ip = None;
    assert_eq!(next(&starts), "b does not run the chain yet");
    let mut lags = whole.clone();
    lags.answers.insert("b".to_owned(), Answer::Status(Box::default()));
    assert_eq!(next(&lags), "b does not run the chain yet");
    // One that is to go does not have to be well.
    let mut ill = whole;
    ill.answers.remove("a");
    assert_eq!(next(&ill), "c");
}
