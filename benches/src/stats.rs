//! Statistics of measured values: median, spread and percentiles.

use std::time::Duration;

/// The middle value; the upper of two; `None` without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

/// Median, smallest and largest value of the rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn from_values(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(values)?,
            min: values.iter().copied().reduce(f64::min)?,
            max: values.iter().copied().reduce(f64::max)?,
        })
    }
}

/// Durations, sorted once and queried often.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durations(Vec<Duration>);

impl Durations {
    pub(crate) fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort_unstable();
        Self(durations)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The duration below which `share` of a thousand are; `None` without durations.
    pub(crate) fn per_mille(&self, share: usize) -> Option<Duration> {
        self.0.get(self.0.len() * share / 1000).or(self.0.last()).copied()
    }

    pub(crate) fn longest(&self) -> Option<Duration> {
        self.0.last().copied()
    }
}

pub(crate) fn as_micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

pub(crate) fn as_millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "mebibytes for people")]
pub(crate) fn as_mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_order_and_is_none_without_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn spread_has_smallest_and_largest_value() {
        let expected = Spread {
            median: 2.0,
            min: 1.0,
            max: 5.0,
        };
        assert_eq!(Spread::from_values(&[2.0, 5.0, 1.0]), Some(expected));
        assert_eq!(Spread::from_values(&[]), None);
    }

    #[test]
    fn percentiles_stay_within_the_measured_values() {
        let of = |count: u64| Durations::new((1..=count).rev().map(Duration::from_micros).collect());
        let at = |durations: &Durations, share| durations.per_mille(share).map(|it| it.as_micros());
        let thousand = of(1000);
        assert_eq!((at(&thousand, 500), at(&thousand, 990)), (Some(501), Some(991)));
        assert_eq!(at(&thousand, 1000), Some(1000));
        assert_eq!(at(&of(1), 990), Some(1));
        assert_eq!(at(&of(0), 500), None);
        assert_eq!(thousand.longest(), Some(Duration::from_micros(1000)));
    }

    #[test]
    fn units_are_converted() {
        assert!((as_micros(Duration::from_millis(2)) - 2000.0).abs() < 1e-6);
        assert!((as_millis(Duration::from_micros(500)) - 0.5).abs() < 1e-9);
        assert!((as_mebibytes(3 << 19) - 1.5).abs() < 1e-9);
    }
}
