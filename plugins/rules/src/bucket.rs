//! The token bucket of a CircuitBreaker's rule.

use ctrlmesh_sdk::Bucket;
use ctrlmesh_sdk::settings::Invalid;
use serde::Deserialize;

use crate::GoDuration;

/// A token bucket as a person writes it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BucketRule {
    /// Tokens that are refilled every interval.
    pub limit: u32,
    /// Refill interval, in whole milliseconds.
    pub interval: GoDuration,
    /// Maximum number of tokens.
    pub burst: u32,
}

impl BucketRule {
    /// Validates the bucket for the host.
    ///
    /// # Errors
    ///
    /// If a field is invalid. A limit of 0, which the CRD's validation accepts, is an error as well: such a bucket grants its burst and
    /// then never again.
    pub fn validate(&self) -> Result<Bucket, Invalid> {
        if self.limit == 0 {
            let message = "0 brings no token back, ever; write 1 with a long interval, or use circuit-breaker with \
                           triggerPolicy ForceOpened";
            return Err(Invalid::new(message).field("limit"));
        }
        if self.burst == 0 {
            return Err(Invalid::new("0 would refuse everything; write at least 1").field("burst"));
        }
        let duration = self.interval.0;
        let is_whole = duration.subsec_nanos().is_multiple_of(1_000_000) && !duration.is_zero();
        let interval_ms = u32::try_from(duration.as_millis()).ok().filter(|_| is_whole);
        let Some(interval_ms) = interval_ms else {
            return Err(Invalid::new("write whole milliseconds, from 1ms to 1193h").field("interval"));
        };
        Ok(Bucket {
            limit: self.limit,
            interval_ms,
            burst: self.burst,
        })
    }
}
