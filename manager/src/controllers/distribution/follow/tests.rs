use futures_util::FutureExt as _;

use super::*;

fn status() -> Answer {
    Answer::Status(Box::default())
}

fn heard(answer: Answer, failures: u32) -> Heard {
    Heard {
        answer,
        asked: Some(Instant::now()),
        failures,
        is_fresh: true,
    }
}

#[test]
fn pauses_grow_until_there_is_news() {
    let longest = Duration::from_secs(10);
    let none = |failures| heard(Answer::None(String::new()), failures);
    let some = heard(status(), 0);
    let mut pauses = vec![SOON];
    for failures in 2..10 {
        pauses.push(next_pause(*pauses.last().unwrap(), true, &none(failures), longest));
    }
    assert_eq!(pauses[1], SOON * 2, "another failure is no news");
    assert_eq!(pauses[8], longest);
    assert_eq!(next_pause(longest, false, &some, longest), longest);
    assert_eq!(next_pause(longest, true, &some, longest), SOON);
    assert_eq!(
        next_pause(longest, false, &none(1), longest),
        SOON,
        "it has only just begun"
    );
    let stands = heard(status(), 1);
    assert_eq!(
        next_pause(longest, false, &stands, longest),
        SOON,
        "it has only just begun"
    );
}

#[test]
fn who_is_waited_for_is_asked_often_whether_it_answers_or_not() {
    let longest = Duration::from_secs(10);
    let none = Answer::None(String::new());
    assert_eq!(pause_now(longest, false, &none), longest);
    assert_eq!(pause_now(longest, false, &status()), longest);
    assert_eq!(pause_now(longest, true, &none), AWAITED_SILENT);
    assert_eq!(pause_now(longest, true, &status()), AWAITED);
    assert_eq!(pause_now(SOON, true, &none), SOON);
}

#[test]
fn an_answer_stands_until_two_questions_in_a_row_had_none() {
    let shared = Shared::new();
    let (none, start) = (|| Answer::None("does not answer".to_owned()), Instant::now());
    assert!(shared.note(start, none()), "it has never answered");
    assert!(shared.note(start, status()));
    let later = start + Duration::from_secs(1);
    assert!(!shared.note(later, none()), "one answer may be lost");
    let stands = shared.heard();
    assert_eq!(
        (&stands.answer, stands.asked, stands.failures),
        (&status(), Some(start), 1)
    );
    assert!(!stands.is_fresh);
    assert!(!shared.note(later, status()), "as if nothing had been");
    let again = shared.heard();
    assert_eq!((again.asked, again.failures, again.is_fresh), (Some(later), 0, true));
    assert!(!shared.note(later, none()));
    assert!(shared.note(later, none()), "two in a row");
    let lost = shared.heard();
    assert_eq!((lost.answer, lost.failures, lost.is_fresh), (none(), 2, true));
    assert!(!shared.note(later, none()), "known already");
    assert_eq!(shared.heard().failures, 3);
}

#[test]
fn what_only_counts_is_no_news() {
    let answer = |change: fn(&mut Status)| {
        let mut status = Status::default();
        change(&mut status);
        Answer::Status(Box::new(status))
    };
    let before = answer(|_| {});
    assert!(!is_news(&before, &answer(|status| status.counts.faults = 7)));
    assert!(is_news(&before, &answer(|status| status.chain.generation = 1)));
    assert!(is_news(&before, &answer(|status| status.chain.earlier.writes = 1)));
    assert!(is_news(&before, &Answer::None("gone".to_owned())));
}

#[test]
fn who_begins_or_ceases_to_lead_is_news_and_who_reads_of_another_is_not() {
    let answer = |holder: &str, leads: bool| {
        let election = LeaderElection {
            lock: "lock---a".to_owned(),
            holder: holder.to_owned(),
            leads,
            since: leads.then(|| "2026-01-01T00:00:00Z".to_owned()),
            ..LeaderElection::default()
        };
        Answer::Status(Box::new(Status {
            leader_elections: vec![election],
            ..Status::default()
        }))
    };
    assert!(!is_news(&status(), &answer("other", false)));
    assert!(!is_news(&answer("other", false), &answer("another", false)));
    assert!(is_news(&answer("other", false), &answer("me", true)));
    assert!(!is_news(&answer("me", true), &answer("me", true)));
    assert!(is_news(&answer("me", true), &answer("my next", true)));
    assert!(is_news(&answer("me", true), &answer("me", false)));
}

/// A line of a pod that runs and has answered now.
fn line(sidecar: &Sidecar) -> Line {
    let shared = Arc::new(Shared::new());
    shared.note(Instant::now(), status());
    let since = shared.heard().asked.unwrap();
    let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
    let sidecar = sidecar.clone();
    Line {
        sidecar,
        since,
        shared,
        task,
    }
}

fn sidecar() -> Sidecar {
    Sidecar {
        pod: "operator-0".to_owned(),
        uid: "uid".to_owned(),
        ip: Some("127.0.0.1".to_owned()),
        version: "1".to_owned(),
        ..Sidecar::default()
    }
}

fn is_woken(line: &Line) -> bool {
    line.shared.wake.notified().now_or_never().is_some()
}

#[tokio::test]
async fn an_answer_from_before_a_chain_or_before_labels_is_not_fresh_and_is_asked_for_again() {
    let first = sidecar();
    let mut line = line(&first);
    assert!(line.hear(&first, false).is_fresh);
    assert!(!is_woken(&line));
    assert!(!line.hear(&first, true).is_fresh, "another chain");
    assert!(is_woken(&line));
    assert!(!line.hear(&first, false).is_fresh, "not asked since");
    assert!(!is_woken(&line), "once is enough");
    line.shared.note(Instant::now(), status());
    assert!(line.hear(&first, false).is_fresh);
    let mut other = first.clone();
    other.labels.insert("shard".to_owned(), "b".to_owned());
    assert!(!line.hear(&other, false).is_fresh, "other labels");
    assert!(is_woken(&line));
    line.shared.note(Instant::now(), status());
    assert!(line.hear(&other, false).is_fresh, "they are known now");
    assert!(!is_woken(&line));
    let before = line.shared.heard().asked.unwrap();
    assert!(!line.hear(&other, true).is_fresh);
    line.shared.note(before, status());
    assert!(!line.hear(&other, false).is_fresh, "it was asked before");
    line.shared.note(Instant::now(), status());
    line.shared.note(Instant::now(), Answer::None("lost".to_owned()));
    assert!(!line.hear(&other, false).is_fresh, "the last answer was lost");
}

#[tokio::test]
async fn a_pod_that_changes_is_asked_at_once_if_it_did_not_answer() {
    let mut version = 1;
    let mut changed = || {
        version += 1;
        let version = version.to_string();
        Sidecar { version, ..sidecar() }
    };
    let mut line = line(&sidecar());
    assert!(line.hear(&changed(), false).is_fresh);
    assert!(!is_woken(&line), "it answers");
    let lost = || Answer::None("lost".to_owned());
    line.shared.note(Instant::now(), lost());
    line.hear(&changed(), false);
    assert!(is_woken(&line), "one answer was lost");
    line.shared.note(Instant::now(), lost());
    let last = changed();
    line.hear(&last, false);
    assert!(is_woken(&line), "it does not answer");
    line.hear(&last, false);
    assert!(!is_woken(&line), "nothing has changed");
}

fn follower() -> Follower {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let poller = Poller::new(1).unwrap();
    let counts = Arc::new(crate::metrics::Metrics::default());
    Follower::new(poller, Duration::from_secs(10), Arc::default(), counts)
}

#[tokio::test]
async fn a_pod_that_is_made_again_was_not_asked_yet_and_one_that_is_gone_is_asked_no_more() {
    let follower = follower();
    let hear = |sidecars: &[Sidecar]| {
        follower
            .follow("demo", sidecars, false)
            .remove("operator-0")
            .map(|heard| heard.asked)
    };
    let task = || follower.lines().of["demo"]["operator-0"].task.clone();
    let note = || {
        let lines = follower.lines();
        lines.of["demo"]["operator-0"].shared.note(Instant::now(), status());
    };
    let first = sidecar();
    assert_eq!(hear(std::slice::from_ref(&first)), Some(None));
    note();
    assert!(hear(std::slice::from_ref(&first)).unwrap().is_some());
    for (uid, ip) in [("other", "127.0.0.1"), ("other", "127.0.0.2")] {
        let before = task();
        let (uid, ip) = (uid.to_owned(), Some(ip.to_owned()));
        let again = [Sidecar { uid, ip, ..sidecar() }];
        assert_eq!(hear(&again), Some(None));
        note();
        assert!(hear(&again).unwrap().is_some(), "it is followed");
        tokio::task::yield_now().await;
        assert!(before.is_finished());
    }
    let last = task();
    assert_eq!(hear(&[]), None);
    tokio::task::yield_now().await;
    assert!(last.is_finished());
    hear(&[first]);
    let last = task();
    follower.retain(|namespace| namespace != "demo");
    tokio::task::yield_now().await;
    assert!(last.is_finished());
}

#[tokio::test]
async fn who_is_awaited_is_woken_once() {
    let follower = follower();
    follower.follow("demo", &[sidecar()], false);
    let is_woken = || is_woken(&follower.lines().of["demo"]["operator-0"]);
    follower.awaits("demo", &BTreeSet::from(["operator-1"]));
    assert!(!is_woken());
    for expected in [true, false] {
        follower.awaits("demo", &BTreeSet::from(["operator-0"]));
        assert_eq!(is_woken(), expected);
    }
    follower.awaits("demo", &BTreeSet::new());
    assert!(!is_woken());
}

#[tokio::test]
async fn pods_that_are_lost_hold_up_none_that_answers_or_starts() {
    let turns = Turns::default();
    let is_silent = |shared: &Shared| std::ptr::eq(turns.of(shared), &raw const turns.silent);
    let first = sidecar();
    let mut line = line(&first);
    let none = || Answer::None("does not answer".to_owned());
    assert!(!is_silent(&Shared::new()), "it was not asked yet");
    assert!(!is_silent(&line.shared));
    line.shared.note(Instant::now(), none());
    assert!(!is_silent(&line.shared), "one answer was lost");
    line.shared.note(Instant::now(), none());
    assert!(is_silent(&line.shared));
    line.hear(&first, true);
    assert!(is_silent(&line.shared), "another chain makes it no other");
    let version = "2".to_owned();
    line.hear(&Sidecar { version, ..first }, false);
    assert!(!is_silent(&line.shared), "it may have begun to answer");
    drop(turns.take(&line.shared).await.unwrap());
    assert!(is_silent(&line.shared), "it was asked");
    line.shared.note(Instant::now(), status());
    assert!(!is_silent(&line.shared));
    let all: Vec<_> = std::iter::from_fn(|| turns.silent.try_acquire().ok()).collect();
    assert_eq!(all.len(), SILENT_CONCURRENCY);
    assert!(turns.answering.try_acquire().is_ok());
}

#[tokio::test]
async fn whoever_may_be_asked_is_asked() {
    let follower = follower();
    let mut version = 1;
    let mut failures = |is_changed: bool| {
        version += u64::from(is_changed);
        let version = version.to_string();
        let heard = follower.follow("demo", &[Sidecar { version, ..sidecar() }], false);
        heard["operator-0"].failures
    };
    let mut until = async |least: u32, is_changed: bool| {
        let begun = Instant::now();
        while failures(is_changed) < least {
            assert!(begun.elapsed() < Duration::from_secs(30));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until(1, false).await;
    let answering = follower.turns.answering.acquire_many(CONCURRENCY.try_into().unwrap());
    let answering = answering.await.unwrap();
    until(4, false).await;
    drop(answering);
    let silent = follower
        .turns
        .silent
        .acquire_many(SILENT_CONCURRENCY.try_into().unwrap());
    let _silent = silent.await.unwrap();
    until(7, true).await;
}

#[test]
fn pods_of_a_lost_node_wait_for_no_turn() {
    let takes = crate::controllers::distribution::poll::DEADLINE;
    let turns = u32::try_from(SILENT_CONCURRENCY).unwrap();
    let every = |pods: u32| (takes * pods / turns).max(takes + AWAITED_SILENT);
    assert_eq!(every(96), Duration::from_secs(3), "none waits for another");
    assert_eq!(every(400), Duration::from_millis(12_500), "some nodes");
}
