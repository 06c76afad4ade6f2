use futures_util::{FutureExt as _, StreamExt as _};

use super::*;

fn status() -> Report {
    Report::Status(Box::default())
}

fn last_report_of(report: Report, failures: u32) -> LastReport {
    LastReport {
        report,
        polled_at: Some(Instant::now()),
        failures,
        is_fresh: true,
    }
}

#[test]
fn poll_pauses_grow_until_there_is_news() {
    let longest = Duration::from_secs(10);
    let none = |failures| last_report_of(Report::Unavailable(String::new()), failures);
    let some = last_report_of(status(), 0);
    let mut pauses = vec![PAUSE_AFTER_CHANGE];
    for failures in 2..10 {
        pauses.push(next_pause(*pauses.last().unwrap(), true, &none(failures), longest));
    }
    assert_eq!(pauses[1], PAUSE_AFTER_CHANGE * 2, "another failure is no news");
    assert_eq!(pauses[8], longest);
    assert_eq!(next_pause(longest, false, &some, longest), longest);
    assert_eq!(next_pause(longest, true, &some, longest), PAUSE_AFTER_CHANGE);
    assert_eq!(
        next_pause(longest, false, &none(1), longest),
        PAUSE_AFTER_CHANGE,
        "it has only just begun"
    );
    let stands = last_report_of(status(), 1);
    assert_eq!(
        next_pause(longest, false, &stands, longest),
        PAUSE_AFTER_CHANGE,
        "it has only just begun"
    );
}

#[test]
fn awaited_pod_is_polled_often_whether_it_answers_or_not() {
    let longest = Duration::from_secs(10);
    let none = Report::Unavailable(String::new());
    assert_eq!(awaited_pause(longest, false, &none), longest);
    assert_eq!(awaited_pause(longest, false, &status()), longest);
    assert_eq!(awaited_pause(longest, true, &none), AWAITED_SILENT_PAUSE);
    assert_eq!(awaited_pause(longest, true, &status()), AWAITED_PAUSE);
    assert_eq!(awaited_pause(PAUSE_AFTER_CHANGE, true, &none), PAUSE_AFTER_CHANGE);
}

#[test]
fn report_stands_until_two_polls_in_a_row_fail() {
    let shared = Shared::new();
    let (none, start) = (|| Report::Unavailable("does not answer".to_owned()), Instant::now());
    assert!(shared.record(start, none()), "it has never answered");
    assert!(shared.record(start, status()));
    let later = start + Duration::from_secs(1);
    assert!(!shared.record(later, none()), "one response may be lost");
    let stands = shared.last_report();
    assert_eq!(
        (&stands.report, stands.polled_at, stands.failures),
        (&status(), Some(start), 1)
    );
    assert!(!stands.is_fresh);
    assert!(!shared.record(later, status()), "as if nothing had been");
    let again = shared.last_report();
    assert_eq!(
        (again.polled_at, again.failures, again.is_fresh),
        (Some(later), 0, true)
    );
    assert!(!shared.record(later, none()));
    assert!(shared.record(later, none()), "two in a row");
    let lost = shared.last_report();
    assert_eq!((lost.report, lost.failures, lost.is_fresh), (none(), 2, true));
    assert!(!shared.record(later, none()), "known already");
    assert_eq!(shared.last_report().failures, 3);
}

#[test]
fn counters_are_no_change_of_a_report() {
    let report = |change: fn(&mut Status)| {
        let mut status = Status::default();
        change(&mut status);
        Report::Status(Box::new(status))
    };
    let before = report(|_| {});
    assert!(!is_change(&before, &report(|status| status.counts.faults = 7)));
    assert!(is_change(&before, &report(|status| status.chain.generation = 1)));
    assert!(is_change(&before, &report(|status| status.chain.earlier.writes = 1)));
    assert!(is_change(&before, &Report::Unavailable("gone".to_owned())));
}

#[test]
fn own_leadership_is_a_change_of_a_report_and_that_of_others_is_not() {
    let report = |holder: &str, leads: bool| {
        let election = LeaderElection {
            lock: "lock---a".to_owned(),
            holder: holder.to_owned(),
            leads,
            since: leads.then(|| "2026-01-01T00:00:00Z".to_owned()),
            ..LeaderElection::default()
        };
        Report::Status(Box::new(Status {
            leader_elections: vec![election],
            ..Status::default()
        }))
    };
    assert!(!is_change(&status(), &report("other", false)));
    assert!(!is_change(&report("other", false), &report("another", false)));
    assert!(is_change(&report("other", false), &report("me", true)));
    assert!(!is_change(&report("me", true), &report("me", true)));
    assert!(is_change(&report("me", true), &report("my next", true)));
    assert!(is_change(&report("me", true), &report("me", false)));
}

/// A poll of a pod that runs and has answered now.
fn poll(sidecar: &Sidecar) -> PollTask {
    let shared = Arc::new(Shared::new());
    shared.record(Instant::now(), status());
    let since = shared.last_report().polled_at.unwrap();
    let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
    let sidecar = sidecar.clone();
    PollTask {
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

fn is_woken(poll: &PollTask) -> bool {
    poll.shared.wake.notified().now_or_never().is_some()
}

#[tokio::test]
async fn report_older_than_chain_or_labels_is_not_fresh_and_pod_is_polled_again() {
    let first = sidecar();
    let mut poll = poll(&first);
    assert!(poll.last_report(&first, false).is_fresh);
    assert!(!is_woken(&poll));
    assert!(!poll.last_report(&first, true).is_fresh, "another chain");
    assert!(is_woken(&poll));
    assert!(!poll.last_report(&first, false).is_fresh, "not polled since");
    assert!(!is_woken(&poll), "once is enough");
    poll.shared.record(Instant::now(), status());
    assert!(poll.last_report(&first, false).is_fresh);
    let mut other = first.clone();
    other.labels.insert("shard".to_owned(), "b".to_owned());
    assert!(!poll.last_report(&other, false).is_fresh, "other labels");
    assert!(is_woken(&poll));
    poll.shared.record(Instant::now(), status());
    assert!(poll.last_report(&other, false).is_fresh, "they are known now");
    assert!(!is_woken(&poll));
    let before = poll.shared.last_report().polled_at.unwrap();
    assert!(!poll.last_report(&other, true).is_fresh);
    poll.shared.record(before, status());
    assert!(!poll.last_report(&other, false).is_fresh, "it was polled before");
    poll.shared.record(Instant::now(), status());
    poll.shared
        .record(Instant::now(), Report::Unavailable("lost".to_owned()));
    assert!(!poll.last_report(&other, false).is_fresh, "the last response was lost");
}

#[tokio::test]
async fn silent_pod_is_polled_at_once_when_it_changes() {
    let mut version = 1;
    let mut changed = || {
        version += 1;
        let version = version.to_string();
        Sidecar { version, ..sidecar() }
    };
    let mut poll = poll(&sidecar());
    assert!(poll.last_report(&changed(), false).is_fresh);
    assert!(!is_woken(&poll), "it answers");
    let lost = || Report::Unavailable("lost".to_owned());
    poll.shared.record(Instant::now(), lost());
    poll.last_report(&changed(), false);
    assert!(is_woken(&poll), "one response was lost");
    poll.shared.record(Instant::now(), lost());
    let last = changed();
    poll.last_report(&last, false);
    assert!(is_woken(&poll), "it does not answer");
    poll.last_report(&last, false);
    assert!(!is_woken(&poll), "nothing has changed");
}

fn poller() -> SidecarPoller {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let poller = StatusClient::new(1).unwrap();
    let counts = Arc::new(Metrics::default());
    SidecarPoller::new(poller, Duration::from_secs(10), Arc::default(), counts)
}

#[tokio::test]
async fn polling_starts_anew_for_a_replaced_pod_and_ends_with_its_pod() {
    let poller = poller();
    let last_report = |sidecars: &[Sidecar]| {
        poller
            .track("demo", sidecars, false)
            .remove("operator-0")
            .map(|report| report.polled_at)
    };
    let task = || poller.poll_tasks().by_namespace["demo"]["operator-0"].task.clone();
    let record_status = || {
        let tasks = poller.poll_tasks();
        tasks.by_namespace["demo"]["operator-0"]
            .shared
            .record(Instant::now(), status());
    };
    let first = sidecar();
    assert_eq!(last_report(std::slice::from_ref(&first)), Some(None));
    record_status();
    assert!(last_report(std::slice::from_ref(&first)).unwrap().is_some());
    for (uid, ip) in [("other", "127.0.0.1"), ("other", "127.0.0.2")] {
        let before = task();
        let (uid, ip) = (uid.to_owned(), Some(ip.to_owned()));
        let again = [Sidecar { uid, ip, ..sidecar() }];
        assert_eq!(last_report(&again), Some(None));
        record_status();
        assert!(last_report(&again).unwrap().is_some(), "it is followed");
        tokio::task::yield_now().await;
        assert!(before.is_finished());
    }
    let last = task();
    assert_eq!(last_report(&[]), None);
    tokio::task::yield_now().await;
    assert!(last.is_finished());
    last_report(&[first]);
    let last = task();
    poller.retain(|namespace| namespace != "demo");
    tokio::task::yield_now().await;
    assert!(last.is_finished());
}

#[tokio::test]
async fn awaited_pod_is_woken_once() {
    let poller = poller();
    poller.track("demo", &[sidecar()], false);
    let is_woken = || is_woken(&poller.poll_tasks().by_namespace["demo"]["operator-0"]);
    poller.prioritize("demo", &BTreeSet::from(["operator-1".to_owned()]));
    assert!(!is_woken());
    for expected in [true, false] {
        poller.prioritize("demo", &BTreeSet::from(["operator-0".to_owned()]));
        assert_eq!(is_woken(), expected);
    }
    poller.prioritize("demo", &BTreeSet::new());
    assert!(!is_woken());
}

#[tokio::test]
async fn lost_pods_do_not_use_permits_of_answering_or_starting_pods() {
    let permits = PollPermits::default();
    let is_silent = |shared: &Shared| std::ptr::eq(permits.for_sidecar(shared), &raw const permits.silent);
    let first = sidecar();
    let mut poll = poll(&first);
    let none = || Report::Unavailable("does not answer".to_owned());
    assert!(!is_silent(&Shared::new()), "it was not polled yet");
    assert!(!is_silent(&poll.shared));
    poll.shared.record(Instant::now(), none());
    assert!(!is_silent(&poll.shared), "one response was lost");
    poll.shared.record(Instant::now(), none());
    assert!(is_silent(&poll.shared));
    poll.last_report(&first, true);
    assert!(is_silent(&poll.shared), "another chain makes it no other");
    let version = "2".to_owned();
    poll.last_report(&Sidecar { version, ..first }, false);
    assert!(!is_silent(&poll.shared), "it may have begun to answer");
    drop(permits.acquire(&poll.shared).await.unwrap());
    assert!(is_silent(&poll.shared), "it was polled");
    poll.shared.record(Instant::now(), status());
    assert!(!is_silent(&poll.shared));
    let all: Vec<_> = std::iter::from_fn(|| permits.silent.try_acquire().ok()).collect();
    assert_eq!(all.len(), SILENT_CONCURRENCY);
    assert!(permits.answering.try_acquire().is_ok());
}

#[tokio::test]
async fn poll_permits_are_passed_on() {
    let poller = poller();
    let mut version = 1;
    let mut failures = |is_changed: bool| {
        version += u64::from(is_changed);
        let version = version.to_string();
        let report = poller.track("demo", &[Sidecar { version, ..sidecar() }], false);
        report["operator-0"].failures
    };
    let mut until = async |least: u32, is_changed: bool| {
        let begun = Instant::now();
        while failures(is_changed) < least {
            assert!(begun.elapsed() < Duration::from_secs(30));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until(1, false).await;
    let answering = poller.permits.answering.acquire_many(CONCURRENCY.try_into().unwrap());
    let answering = answering.await.unwrap();
    until(4, false).await;
    drop(answering);
    let silent = poller
        .permits
        .silent
        .acquire_many(SILENT_CONCURRENCY.try_into().unwrap());
    let _silent = silent.await.unwrap();
    until(7, true).await;
}

#[test]
fn pods_of_a_lost_node_do_not_wait_for_permits() {
    let takes = POLL_TIMEOUT;
    let permits = u32::try_from(SILENT_CONCURRENCY).unwrap();
    let every = |pods: u32| (takes * pods / permits).max(takes + AWAITED_SILENT_PAUSE);
    assert_eq!(every(96), Duration::from_secs(3), "none waits for another");
    assert_eq!(every(400), Duration::from_millis(12_500), "some nodes");
}

#[tokio::test]
async fn dirty_namespaces_are_deduplicated_and_none_is_lost() {
    let dirty = Arc::new(DirtyNamespaces::default());
    let mut namespaces = std::pin::pin!(dirty.namespaces());
    for namespace in ["a", "b", "a"] {
        dirty.add(namespace);
    }
    for expected in ["a", "b"] {
        assert_eq!(namespaces.next().await.unwrap().name, expected);
    }
    assert!(namespaces.next().now_or_never().is_none());
    let later = async {
        tokio::task::yield_now().await;
        dirty.add("c");
    };
    let (next, ()) = tokio::join!(namespaces.next(), later);
    assert_eq!(next.unwrap().name, "c");
}
