//! Times of requests to the API server, to the second. They show whether the controller bypasses its sidecar.
//!
//! Costs each request two readings of the clock, and memory one write per second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ctrlmesh_contract::status;

use crate::timestamp::rfc3339;

/// Seconds since 1970; 0 stands for never.
#[derive(Debug, Default)]
pub(crate) struct ApiTraffic {
    since: AtomicU64,
    last: AtomicU64,
}

impl ApiTraffic {
    /// Notes that requests are accepted from now on.
    pub(crate) fn record_start(&self, now: SystemTime) {
        // Several ports call this; the first call counts.
        let _ = self
            .since
            .compare_exchange(0, unix_seconds(now), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Notes that a request has arrived or ended; both count, because a watch may have been open for long.
    pub(crate) fn record_request(&self, now: SystemTime) {
        let now = unix_seconds(now);
        if self.last.load(Ordering::Relaxed) != now {
            self.last.store(now, Ordering::Relaxed);
        }
    }

    /// The traffic for `/status`, given the number of requests in flight.
    pub(crate) fn status(&self, now: SystemTime, in_flight: u64) -> status::ApiTraffic {
        let time = |seconds: &AtomicU64| match seconds.load(Ordering::Relaxed) {
            0 => None,
            seconds => Some(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))),
        };
        status::ApiTraffic {
            now: rfc3339(now),
            since: time(&self.since),
            last: time(&self.last),
            in_flight: Some(in_flight),
        }
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_request_is_recorded_to_second() {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 900);
        let text = |second: &str| Some(format!("1970-01-01T00:00:{second}Z"));
        let traffic = ApiTraffic::default();
        let silent = traffic.status(at(1), 0);
        assert_eq!((silent.since, silent.last), (None, None));
        traffic.record_start(at(2));
        traffic.record_start(at(3));
        for second in [4, 5, 5] {
            traffic.record_request(at(second));
        }
        let status = traffic.status(at(6), 2);
        assert_eq!(Some(status.now), text("06"));
        assert_eq!((status.since, status.last), (text("02"), text("05")));
        assert_eq!(status.in_flight, Some(2));
    }
}
