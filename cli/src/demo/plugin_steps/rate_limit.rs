//! Step 7: a burst of work under a token bucket. The controllers slow down and finish; no request fails.

use std::time::Duration;

use tokio::time::Instant;

use super::status_writes;
use crate::demo::checks::Expected::{AtLeast, AtMost, Exactly};
use crate::demo::plugin_documents::{self, RATE_LIMIT_ENTRY};
use crate::demo::scenario::Scenario;
use crate::demo::widget::WIDGETS;
use crate::error::Error;

const STEP: usize = 7;

/// The bucket in `rate-limit.yaml`; each of the two sidecars has one.
const BURST: u64 = 30;
const A_SECOND: u64 = 30;
const BUCKETS: u64 = 2;

/// Minimum of writes that wait, of 200 for 60 tokens and those that are refilled meanwhile.
const WAIT: u64 = 40;

/// Compares the writes that the API server has seen with what the buckets may have granted at that moment.
#[derive(Debug)]
struct Meter {
    began: Instant,
    seen_before: u64,
    tightest: Option<MeterReading>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MeterReading {
    seen: u64,
    granted: u64,
}

impl Meter {
    fn new(seen_before: u64) -> Self {
        Self {
            began: Instant::now(),
            seen_before,
            tightest: None,
        }
    }

    fn record_seen(&mut self, seen: u64) {
        let moment = MeterReading {
            seen: seen - self.seen_before,
            granted: granted_writes(self.began.elapsed()),
        };
        let is_tighter = self
            .tightest
            .is_none_or(|tightest| moment.remaining_writes() < tightest.remaining_writes());
        if is_tighter {
            self.tightest = Some(moment);
        }
    }
}

impl MeterReading {
    fn remaining_writes(self) -> i64 {
        self.granted.cast_signed() - self.seen.cast_signed()
    }
}

/// The most that all buckets together grant in this time.
fn granted_writes(time: Duration) -> u64 {
    let came_back = u128::from(A_SECOND) * time.as_millis() / 1_000;
    BUCKETS * (BURST + u64::try_from(came_back).unwrap_or(u64::MAX / 4))
}

impl Scenario<'_> {
    pub(super) async fn limit_rate(&mut self) -> Result<(), Error> {
        self.begin_step(
            STEP,
            "a CircuitBreaker limits each sidecar to 30 writes, then 30 a second",
        );
        self.add_plugin_object(plugin_documents::rate_limit_document()?, RATE_LIMIT_ENTRY)
            .await?;
        let start = self.take_snapshot().await?;
        let mut meter = Meter::new(self.env.request_count("patch"));
        self.note_event(STEP, "a user changes all 200 widgets at once");
        self.env.start_burst();
        self.wait_until_all_handled(|seen| meter.record_seen(seen)).await?;
        let all = self.env.request_count("patch") - meter.seen_before;
        let took = meter.began.elapsed();
        let passage = self.changes_since(&start).await?;
        let (handled, waited) = self.observations().with_observations(|observations| {
            (
                status_writes(observations),
                observations.sum_sidecars(|sidecar| sidecar.own.count_of(RATE_LIMIT_ENTRY, "queued")),
            )
        });
        let MeterReading { seen, granted } = meter.tightest.unwrap_or(MeterReading { seen: 0, granted: 0 });
        self.record_check(STEP, "widgets changed at once and handled", Exactly(WIDGETS), handled);
        self.record_check(
            STEP,
            "writes at the tightest moment, of 2 × (30 + 30/s)",
            AtMost(granted),
            seen,
        );
        self.record_check(
            STEP,
            "writes in all, of 2 × (30 + 30/s)",
            AtMost(self::granted_writes(took)),
            all,
        );
        // A burst that takes longer than the refill of the bucket waits for no token.
        self.record_check_at_speed(STEP, "writes that waited for a token", AtLeast(WAIT), waited);
        self.record_check(STEP, "requests failed by the limit", Exactly(0), passage.failed);
        let text = format!(
            "{handled} handled in {:.1} s, {waited} waited, failed: {}",
            took.as_secs_f64(),
            passage.failed
        );
        self.end_step(STEP, &text).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_grants_burst_at_once_and_rest_evenly() {
        assert_eq!(granted_writes(Duration::ZERO), 60);
        assert_eq!(granted_writes(Duration::from_millis(1_999)), 2 * (30 + 59));
    }

    #[test]
    fn meter_keeps_tightest_moment_when_over_limit() {
        let mut meter = Meter::new(100);
        meter.record_seen(161);
        meter.record_seen(110);
        let tightest = meter.tightest.unwrap();
        assert_eq!(tightest.seen, 61);
        assert!(tightest.remaining_writes() < 0, "{tightest:?}");
    }
}
