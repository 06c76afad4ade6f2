//! A burst of work under a token bucket: the controllers slow down and finish, nothing fails.

use std::time::Duration;

use tokio::time::Instant;

use super::written;
use crate::demo::added::{self, RATE_LIMIT_ENTRY};
use crate::demo::claims::Expected::{AtLeast, AtMost, Exactly};
use crate::demo::steps::WIDGETS;
use crate::demo::story::Story;
use crate::error::Error;

const STEP: usize = 7;

/// The bucket in `rate-limit.yaml`, of each of the two sidecars.
const BURST: u64 = 30;
const A_SECOND: u64 = 30;
const BUCKETS: u64 = 2;

/// Writes that wait, of 200 for 60 tokens and those that come back meanwhile.
const WAIT: u64 = 40;

/// Compares what the API server has seen with what the buckets may have granted, all the time.
#[derive(Debug)]
struct Meter {
    began: Instant,
    seen_before: u64,
    tightest: Option<Moment>,
}

/// What was seen and what may have been granted, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
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

    fn look(&mut self, seen: u64) {
        let moment = Moment {
            seen: seen - self.seen_before,
            granted: granted(self.began.elapsed()),
        };
        let is_tighter = self.tightest.is_none_or(|tightest| moment.room() < tightest.room());
        if is_tighter {
            self.tightest = Some(moment);
        }
    }
}

impl Moment {
    fn room(self) -> i64 {
        self.granted.cast_signed() - self.seen.cast_signed()
    }
}

/// The most that all buckets grant in this time.
fn granted(time: Duration) -> u64 {
    let came_back = u128::from(A_SECOND) * time.as_millis() / 1_000;
    BUCKETS * (BURST + u64::try_from(came_back).unwrap_or(u64::MAX / 4))
}

impl Story<'_> {
    /// Step 7: the controllers get a burst of work under a limit.
    pub(super) async fn limit_rate(&mut self) -> Result<(), Error> {
        self.begin(
            STEP,
            "a CircuitBreaker limits each sidecar to 30 writes, then 30 a second",
        );
        self.add(added::rate_limit()?, RATE_LIMIT_ENTRY).await?;
        let start = self.moment().await?;
        let mut meter = Meter::new(self.world.requests("patch"));
        self.note(STEP, "a user changes all 200 widgets at once");
        self.world.start_burst();
        self.all_handled(|seen| meter.look(seen)).await?;
        let all = self.world.requests("patch") - meter.seen_before;
        let took = meter.began.elapsed();
        let passage = self.since(&start).await?;
        let (handled, waited) = self.facts().with(|facts| {
            (
                written(facts),
                facts.sidecars(|sidecar| sidecar.own.of(RATE_LIMIT_ENTRY, "queued")),
            )
        });
        let Moment { seen, granted } = meter.tightest.unwrap_or(Moment { seen: 0, granted: 0 });
        self.claim(STEP, "widgets changed at once and handled", Exactly(WIDGETS), handled);
        self.claim(
            STEP,
            "writes at the tightest moment, of 2 × (30 + 30/s)",
            AtMost(granted),
            seen,
        );
        self.claim(
            STEP,
            "writes in all, of 2 × (30 + 30/s)",
            AtMost(self::granted(took)),
            all,
        );
        // A burst that takes longer than the bucket's tokens need to come back waits for none.
        self.claim_at_speed(STEP, "writes that waited for a token", AtLeast(WAIT), waited);
        self.claim(STEP, "requests failed by the limit", Exactly(0), passage.failed);
        let text = format!(
            "{handled} handled in {:.1} s, {waited} waited, failed: {}",
            took.as_secs_f64(),
            passage.failed
        );
        self.end(STEP, &text).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_grant_their_burst_at_once_and_the_rest_evenly() {
        assert_eq!(granted(Duration::ZERO), 60);
        assert_eq!(granted(Duration::from_millis(1_999)), 2 * (30 + 59));
    }

    #[test]
    fn the_tightest_moment_is_kept_also_when_it_was_over_the_limit() {
        let mut meter = Meter::new(100);
        meter.look(161);
        meter.look(110);
        let tightest = meter.tightest.unwrap();
        assert_eq!(tightest.seen, 61);
        assert!(tightest.room() < 0, "{tightest:?}");
    }
}
