//! Times of requests to the API server, to the second. They show whether the controller bypasses its sidecar.
//!
//! A request costs no reading of the clock but those of its record, and memory one write per second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use ctrlmesh_contract::status;
use tokio::time::Instant;

use crate::timestamp::rfc3339;

/// How far `last` may lag behind, in milliseconds.
const RESOLUTION_MS: u64 = 1000;

#[derive(Debug)]
pub(crate) struct ApiTraffic {
    /// Seconds since 1970; 0 stands for never.
    since: AtomicU64,
    created: Instant,
    /// Milliseconds from `created` to a request, plus one; 0 stands for never.
    last: AtomicU64,
}

impl Default for ApiTraffic {
    fn default() -> Self {
        Self {
            since: AtomicU64::default(),
            created: Instant::now(),
            last: AtomicU64::default(),
        }
    }
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
    pub(crate) fn record_request(&self, now: Instant) {
        let now = now.saturating_duration_since(self.created).as_millis();
        let now = u64::try_from(now).unwrap_or(u64::MAX).saturating_add(1);
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 || now.saturating_sub(last) >= RESOLUTION_MS {
            self.last.store(now, Ordering::Relaxed);
        }
    }

    /// The traffic for `/status`, given the number of requests in flight.
    pub(crate) fn status(&self, now: SystemTime, in_flight: u64) -> status::ApiTraffic {
        status::ApiTraffic {
            now: rfc3339(now),
            since: match self.since.load(Ordering::Relaxed) {
                0 => None,
                seconds => Some(rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))),
            },
            last: self.elapsed().and_then(|elapsed| now.checked_sub(elapsed)).map(rfc3339),
            in_flight: Some(in_flight),
        }
    }

    /// Time since the last request.
    fn elapsed(&self) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.created.elapsed().saturating_sub(Duration::from_millis(last)))
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn last_request_is_recorded_to_second() {
        let at = |millis: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let text = |time: &str| Some(format!("1970-01-01T{time}Z"));
        let pass = |millis: u64| tokio::time::advance(Duration::from_millis(millis));
        let traffic = ApiTraffic::default();
        let silent = traffic.status(at(1_000), 0);
        assert_eq!((silent.since, silent.last), (None, None));
        traffic.record_start(at(2_900));
        traffic.record_start(at(3_900));
        traffic.record_request(Instant::now());
        pass(999).await;
        traffic.record_request(Instant::now());
        assert_eq!(traffic.status(at(5_899), 2).last, text("00:00:04"));
        pass(1).await;
        traffic.record_request(Instant::now());
        pass(7_000).await;
        let status = traffic.status(at(12_900), 2);
        assert_eq!(Some(status.now), text("00:00:12"));
        assert_eq!((status.since, status.last), (text("00:00:02"), text("00:00:05")));
        assert_eq!(status.in_flight, Some(2));
        let status = traffic.status(at(3_600_000), 2);
        assert_eq!(status.last, text("00:59:53"), "the clock was set");
    }
}
