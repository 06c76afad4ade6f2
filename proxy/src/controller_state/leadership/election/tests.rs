use std::time::Duration;

use super::*;

/// One lock, with its exchanges at seconds since the start.
struct ElectionTimeline {
    start: Instant,
    wall: SystemTime,
    election: Election,
}

/// A record of the lock: this holder for 15 s, renewed at this second, after so many changes of hands.
fn lock_record(holder: &str, renewed: u64, transitions: i64) -> LockRecord {
    LockRecord {
        name: "lock".to_owned(),
        holder: holder.to_owned(),
        lease_duration: Duration::from_secs(15),
        renew_time: renewed.to_string(),
        transitions: Some(transitions),
    }
}

impl ElectionTimeline {
    fn new() -> Self {
        let lock = Lock {
            resource: "leases.coordination.k8s.io",
            namespace: "operator".to_owned(),
            name: "lock".to_owned(),
            renamed: "lock---a".to_owned(),
        };
        Self {
            start: Instant::now(),
            wall: SystemTime::UNIX_EPOCH,
            election: Election::new(lock),
        }
    }

    fn instant_at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn asked_at(&self, seconds: u64) -> Asked {
        Asked {
            at: self.instant_at(seconds),
            wall: self.wall + Duration::from_secs(seconds),
        }
    }

    /// A write that was requested and answered at these seconds.
    fn record_write_at(&mut self, record: LockRecord, asked: u64, answered: u64) {
        self.election
            .record_write(record, self.asked_at(asked), self.instant_at(answered));
    }

    fn record_read_at(&mut self, record: LockRecord, asked: u64) {
        self.election.read(record, self.instant_at(asked));
    }

    /// The second since which the controller leads, seen at the second `seconds`.
    fn leading_since(&self, seconds: u64) -> Option<u64> {
        let since = self.election.leads_since(self.instant_at(seconds))?;
        Some(since.duration_since(self.wall).unwrap().as_secs())
    }

    fn holder(&self) -> &str {
        &self.election.holder
    }
}

#[test]
fn writer_of_lock_leads_until_expiry_counted_from_its_request() {
    let mut timeline = ElectionTimeline::new();
    assert_eq!(timeline.leading_since(0), None);
    timeline.record_write_at(lock_record("me", 10, 0), 10, 14);
    assert_eq!(timeline.leading_since(24), Some(10));
    assert_eq!(
        timeline.leading_since(25),
        None,
        "15 s after it was asked for, and not after the response"
    );
    let status = timeline.election.to_status(timeline.instant_at(24));
    let expected = LeaderElection {
        resource: "leases.coordination.k8s.io".to_owned(),
        namespace: "operator".to_owned(),
        name: "lock".to_owned(),
        lock: "lock---a".to_owned(),
        holder: "me".to_owned(),
        leads: true,
        since: Some("1970-01-01T00:00:10Z".to_owned()),
    };
    assert_eq!(status, expected);
    let over = LeaderElection {
        leads: false,
        since: None,
        ..expected
    };
    assert_eq!(timeline.election.to_status(timeline.instant_at(25)), over);
}

#[test]
fn renewal_in_time_keeps_start_of_leadership_and_late_one_resets_it() {
    let mut timeline = ElectionTimeline::new();
    timeline.record_write_at(lock_record("me", 0, 0), 0, 0);
    for seconds in (2..20).step_by(2) {
        timeline.record_write_at(lock_record("me", seconds, 0), seconds, seconds);
    }
    assert_eq!(timeline.leading_since(32), Some(0));
    // This renewal was requested in time and answered too late.
    timeline.record_write_at(lock_record("me", 32, 0), 32, 34);
    assert_eq!(timeline.leading_since(46), Some(0));
    timeline.record_write_at(lock_record("me", 47, 0), 47, 47);
    assert_eq!(timeline.leading_since(48), Some(47));
    // Another identity means another process.
    timeline.record_write_at(lock_record("my next", 50, 1), 50, 50);
    assert_eq!((timeline.leading_since(51), timeline.holder()), (Some(50), "my next"));
}

#[test]
fn holder_stops_leading_when_it_releases_lock() {
    let mut timeline = ElectionTimeline::new();
    timeline.record_write_at(lock_record("me", 0, 0), 0, 0);
    timeline.record_write_at(lock_record("", 2, 0), 2, 2);
    assert_eq!((timeline.leading_since(2), timeline.holder()), (None, ""));
    timeline.record_write_at(lock_record("me", 4, 1), 4, 4);
    assert_eq!(timeline.leading_since(4), Some(4));
    timeline
        .election
        .record_deletion(timeline.asked_at(6), timeline.instant_at(6));
    assert_eq!((timeline.leading_since(6), timeline.holder()), (None, ""));
}

#[test]
fn leader_stops_leading_when_it_reads_another_holder() {
    let mut timeline = ElectionTimeline::new();
    timeline.record_read_at(lock_record("other", 0, 0), 0);
    assert_eq!((timeline.leading_since(0), timeline.holder()), (None, "other"));
    timeline.record_write_at(lock_record("me", 1, 1), 1, 2);
    timeline.record_read_at(lock_record("me", 1, 1), 3);
    assert_eq!(timeline.leading_since(15), Some(1));
    assert_eq!(timeline.leading_since(16), None, "a read renews nothing");
    timeline.record_read_at(lock_record("other", 4, 2), 4);
    assert_eq!((timeline.leading_since(5), timeline.holder()), (None, "other"));
    timeline.record_write_at(lock_record("me", 6, 3), 6, 6);
    timeline.record_read_at(lock_record("", 7, 3), 7);
    assert_eq!(
        (timeline.leading_since(7), timeline.holder()),
        (None, ""),
        "nobody holds it"
    );
}

#[test]
fn read_that_was_asked_for_before_write_was_answered_may_be_older() {
    for asked in [0, 2, 3] {
        let mut timeline = ElectionTimeline::new();
        timeline.record_write_at(lock_record("me", 2, 1), 2, 4);
        timeline.record_read_at(lock_record("other", 0, 0), asked);
        assert_eq!(
            (timeline.leading_since(5), timeline.holder()),
            (Some(2), "me"),
            "asked for at {asked}"
        );
    }
    let mut timeline = ElectionTimeline::new();
    timeline.record_read_at(lock_record("newer", 2, 0), 2);
    timeline.record_read_at(lock_record("older", 0, 0), 1);
    assert_eq!(timeline.holder(), "newer");
}

#[test]
fn latest_requested_of_crossing_writes_counts() {
    let mut timeline = ElectionTimeline::new();
    timeline.record_write_at(lock_record("me", 0, 0), 0, 0);
    timeline.record_write_at(lock_record("", 3, 0), 3, 4);
    timeline.record_write_at(lock_record("me", 2, 0), 2, 5);
    assert_eq!(timeline.leading_since(5), None);
    let mut timeline = ElectionTimeline::new();
    timeline.record_write_at(lock_record("me", 4, 0), 4, 4);
    timeline.record_write_at(lock_record("me", 1, 0), 1, 5);
    assert_eq!(timeline.leading_since(18), Some(4), "the renewal is not taken back");
}

#[test]
fn watch_or_cache_counts_if_lock_has_changed_hands_since() {
    let mut timeline = ElectionTimeline::new();
    timeline.election.record_read(lock_record("other", 0, 3));
    assert_eq!(timeline.holder(), "other");
    timeline.record_write_at(lock_record("me", 1, 4), 1, 1);
    let untold = LockRecord {
        transitions: None,
        ..lock_record("other", 2, 0)
    };
    for older in [
        lock_record("other", 0, 3),
        lock_record("", 1, 3),
        lock_record("me", 1, 4),
        untold,
    ] {
        timeline.election.record_read(older);
        assert_eq!((timeline.leading_since(2), timeline.holder()), (Some(1), "me"));
    }
    timeline.election.record_read(lock_record("other", 2, 5));
    assert_eq!((timeline.leading_since(2), timeline.holder()), (None, "other"));
}

#[test]
fn writer_that_keeps_another_holder_does_not_lead() {
    let mut timeline = ElectionTimeline::new();
    timeline.record_read_at(lock_record("other", 7, 3), 8);
    // The write changes something else, such as labels.
    timeline.record_write_at(lock_record("other", 7, 3), 9, 9);
    assert_eq!((timeline.leading_since(9), timeline.holder()), (None, "other"));
    timeline.record_write_at(lock_record("me", 10, 4), 10, 10);
    timeline.record_read_at(lock_record("me", 10, 4), 11);
    timeline.record_write_at(lock_record("me", 10, 4), 12, 12);
    assert_eq!(timeline.leading_since(26), Some(10), "its own");
}

#[test]
fn lock_without_duration_makes_no_leader() {
    let mut timeline = ElectionTimeline::new();
    timeline.record_write_at(lock_record("me", 0, 0), 0, 0);
    let forever = LockRecord {
        lease_duration: Duration::ZERO,
        ..lock_record("me", 1, 0)
    };
    timeline.record_write_at(forever, 1, 1);
    assert_eq!((timeline.leading_since(1), timeline.holder()), (None, "me"));
    let forever = LockRecord {
        lease_duration: Duration::MAX,
        ..lock_record("me", 2, 0)
    };
    timeline.record_write_at(forever, 2, 2);
    assert_eq!(timeline.leading_since(2), None, "longer than any clock");
}
