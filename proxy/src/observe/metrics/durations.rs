//! A histogram without a lock: fixed buckets of atomics. The one of `prometheus-client` takes a mutex for each observation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Upper bounds in seconds: from a cached read to a long list; watches fall into the last bucket.
const BOUNDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0,
];

/// A histogram of durations in seconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durations(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl Durations {
    pub(crate) fn observe(&self, seconds: f64) {
        let index = BOUNDS
            .iter()
            .position(|bound| seconds <= *bound)
            .unwrap_or(BOUNDS.len());
        if let Some(bucket) = self.0.buckets.get(index) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        // Nanoseconds of 500 years fit; a negative or absurd duration saturates.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "saturates by definition of `as`"
        )]
        self.0.nanos.fetch_add((seconds * 1e9) as u64, Ordering::Relaxed);
    }
}

impl TypedMetric for Durations {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = BOUNDS.iter().copied().chain([f64::MAX]);
        let buckets: Vec<(f64, u64)> = bounds
            .zip(self.0.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        #[expect(
            clippy::cast_precision_loss,
            reason = "a sum of seconds needs no nanosecond exactness"
        )]
        let sum = self.0.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}
