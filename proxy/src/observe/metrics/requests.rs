//! Counters of requests of one kind of traffic, by label (a verb, a way in) and class of the status code.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Durations;
use crate::plugin::verdict::Failure;

type Label = (&'static str, &'static str);

/// Classes of status codes; `none` stands for a request without a response.
const CODES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counters of one verb or way in.
#[derive(Debug, Clone)]
struct Kind {
    codes: [Counter; CODES.len()],
    durations: Durations,
}

/// Counters of one kind of traffic, fetched once: a request costs atomic adds and no lock.
#[derive(Debug)]
pub(super) struct Requests {
    kinds: Vec<Kind>,
    failures: Vec<Counter>,
    in_flight: Gauge,
}

impl Requests {
    /// Registers the counters. `label` distinguishes `kinds`.
    pub(super) fn new(registry: &mut Registry, label: &'static str, kinds: &[&'static str]) -> Self {
        let requests = Family::<[Label; 2], Counter>::default();
        let durations = Family::<[Label; 1], Durations>::default();
        let failures = Family::<[Label; 1], Counter>::default();
        let in_flight = Gauge::default();
        registry.register(
            "requests",
            "Requests by kind and class of the status that the client got",
            requests.clone(),
        );
        registry.register(
            "request_duration_seconds",
            "From request head to end of body",
            durations.clone(),
        );
        registry.register(
            "request_failures",
            "Requests without a complete response",
            failures.clone(),
        );
        registry.register(
            "requests_in_flight",
            "Requests whose body has not ended",
            in_flight.clone(),
        );
        let counters = |kind: &&'static str| Kind {
            codes: CODES.map(|code| requests.get_or_create(&[(label, *kind), ("code", code)]).clone()),
            durations: durations.get_or_create(&[(label, *kind)]).clone(),
        };
        Self {
            kinds: kinds.iter().map(counters).collect(),
            failures: Failure::ALL
                .iter()
                .map(|failure| failures.get_or_create(&[("reason", failure.as_str())]).clone())
                .collect(),
            in_flight,
        }
    }

    pub(super) fn in_flight(&self) -> u64 {
        u64::try_from(self.in_flight.get()).unwrap_or_default()
    }

    pub(super) fn count_begun(&self) {
        self.in_flight.inc();
    }

    /// Counts a request of this kind that is over.
    pub(super) fn count_ended(&self, kind: usize, status: u16, seconds: f64, failure: Option<Failure>) {
        self.in_flight.dec();
        if let Some(kind) = self.kinds.get(kind) {
            if let Some(counter) = kind.codes.get(usize::from(status / 100).min(CODES.len() - 1)) {
                counter.inc();
            }
            kind.durations.observe(seconds);
        }
        let index = failure.and_then(|failure| Failure::ALL.iter().position(|known| *known == failure));
        if let Some(counter) = index.and_then(|index| self.failures.get(index)) {
            counter.inc();
        }
    }
}
