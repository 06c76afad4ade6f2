//! The cost of a request: CPU time of the proxy's process for each, from the kernel, with closed-loop load; ratios within a round.
//!
//! The bare proxy runs first and last in each round. A round within which it changed by more than 5 % says more about the machine than about
//! the proxies, and does not count.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use crate::bench_env::BenchEnv;
use crate::closed_loop::{Load, WarmClients};
use crate::contestants::{BARE, Contestant, NGINX};
use crate::process::Process;
use crate::report::{Budget, Limit, RATIO};
use crate::stats::{Spread, as_mebibytes, as_micros, median};
use crate::table::{format_number, format_range};
use crate::work::{HttpVersion, Work};

/// Maximum change of the bare proxy within a round that counts.
const MAX_DRIFT: f64 = 0.05;

/// One table: all contestants with the same requests.
pub(crate) struct CostTable<'a> {
    pub(crate) title: String,
    pub(crate) work: Work,
    /// The client's HTTP version.
    pub(crate) version: HttpVersion,
    /// Connections over HTTP/1.1, streams of one connection over HTTP/2.
    pub(crate) clients: usize,
    /// The programs that are compared, among them the bare proxy.
    pub(crate) contestants: &'a [Contestant],
    pub(crate) budgets: &'a [CostBudget],
}

/// The CPU time per request of one row, compared with that of another in the same round.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CostBudget {
    Ratio {
        row: &'static str,
        to: &'static str,
        at_most: f64,
    },
    /// The cost of something that `row` does and `without` does not.
    Difference {
        what: &'static str,
        row: &'static str,
        without: &'static str,
        /// Microseconds.
        at_most: f64,
    },
}

impl CostBudget {
    /// The row of the table of budgets.
    fn measured(self, title: &str, rounds: &Rounds) -> Budget {
        match self {
            Self::Ratio { row, to, at_most } => Budget {
                what: format!("{title}: {row} ÷ {to}"),
                unit: RATIO,
                values: rounds.ratios(row, to),
                limit: Limit::AtMost(at_most),
            },
            Self::Difference {
                what,
                row,
                without,
                at_most,
            } => Budget {
                what: format!("{title}: {what}"),
                unit: "µs",
                values: rounds.differences(row, without),
                limit: Limit::AtMost(at_most),
            },
        }
    }
}

impl CostTable<'_> {
    pub(crate) async fn measure(&self, env: &BenchEnv) -> anyhow::Result<()> {
        let mut rounds = Rounds::default();
        while rounds.are_missing(env.scale.rounds) {
            let round = self.run_round(rounds.0.len(), env.scale.round_time()).await?;
            rounds.0.push(round);
        }
        let peaks = self
            .contestants
            .iter()
            .map(peak_memory)
            .collect::<Result<Vec<_>, _>>()?;
        let rows = self.contestants.iter().zip(peaks);
        env.report.print_table(
            &self.title,
            &[
                "",
                "HTTP upstream",
                "requests/s",
                "CPU µs/request",
                "CPU ÷ bare",
                "min–max",
                "CPU ÷ nginx",
                "p50 µs",
                "p99 µs",
                "peak RSS MiB",
            ],
            rows.map(|(contestant, peak)| rounds.table_cells(contestant, peak)),
        );
        if let Some(note) = rounds.unsteady_note() {
            env.report.print_note(&note);
        }
        env.report.add_raw(&self.title, rounds.to_json());
        for budget in self.budgets {
            env.report.add_budget(budget.measured(&self.title, &rounds));
        }
        Ok(())
    }

    async fn run_round(&self, number: usize, time: Duration) -> anyhow::Result<Round> {
        let bare = self.contestants.iter().find(|contestant| contestant.name == BARE);
        let bare = bare.context("no bare proxy")?;
        let mut others: Vec<&Contestant> = self.contestants.iter().filter(|other| other.name != BARE).collect();
        // Alternately, so that no row always has the same place.
        if number % 2 == 1 {
            others.reverse();
        }
        let before = self.run_load(bare, time).await?;
        let mut samples = BTreeMap::new();
        for contestant in others {
            samples.insert(contestant.name.clone(), self.run_load(contestant, time).await?);
        }
        let after = self.run_load(bare, time).await?;
        let drift = before.drift_to(&after);
        samples.insert(bare.name.clone(), before.mean_with(&after));
        Ok(Round { samples, drift })
    }

    async fn run_load(&self, contestant: &Contestant, time: Duration) -> anyhow::Result<Sample> {
        let run = async {
            let address = contestant.address(self.version);
            let clients = WarmClients::open(address, self.version, &self.work, self.clients).await?;
            let process = contestant.process.as_ref();
            let before = process.map(Process::cpu_time).transpose()?;
            let load = clients.run_closed_loop(time).await?;
            let after = process.map(Process::cpu_time).transpose()?;
            anyhow::Ok(Sample::new(
                &load,
                after.zip(before).map(|(after, before)| after - before),
            ))
        };
        run.await
            .with_context(|| format!("{}: {}", self.title, contestant.name))
    }
}

fn peak_memory(contestant: &Contestant) -> anyhow::Result<Option<u64>> {
    contestant.process.as_ref().map(Process::peak_memory).transpose()
}

/// The result of one contestant in one round.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Requests per second.
    rate: f64,
    /// Microseconds of CPU time for each request; `None` without a process.
    cpu: Option<f64>,
    /// Microseconds.
    p50: Option<f64>,
    p99: Option<f64>,
}

impl Sample {
    fn new(load: &Load, cpu: Option<Duration>) -> Self {
        Self {
            rate: load.requests() / load.time.as_secs_f64(),
            cpu: cpu.map(|cpu| as_micros(cpu) / load.requests()),
            p50: load.latencies.per_mille(500).map(as_micros),
            p99: load.latencies.per_mille(990).map(as_micros),
        }
    }

    fn mean_with(&self, other: &Self) -> Self {
        let mean = |one: Option<f64>, other: Option<f64>| one.zip(other).map(|(one, other)| f64::midpoint(one, other));
        Self {
            rate: f64::midpoint(self.rate, other.rate),
            cpu: mean(self.cpu, other.cpu),
            p50: mean(self.p50, other.p50),
            p99: mean(self.p99, other.p99),
        }
    }

    /// Relative change of the CPU time.
    fn drift_to(&self, later: &Self) -> f64 {
        let change = self
            .cpu
            .zip(later.cpu)
            .map(|(before, after)| (after / before - 1.0).abs());
        change.unwrap_or_default()
    }

    fn to_json(self) -> Value {
        json!({ "requests_per_second": self.rate, "cpu_us": self.cpu, "p50_us": self.p50, "p99_us": self.p99 })
    }
}

#[derive(Debug)]
struct Round {
    /// By the contestant's name; that of the bare proxy is the mean of both its runs.
    samples: BTreeMap<String, Sample>,
    /// Change of the bare proxy within the round.
    drift: f64,
}

impl Round {
    fn is_steady(&self) -> bool {
        self.drift <= MAX_DRIFT
    }

    fn cpu(&self, name: &str) -> Option<f64> {
        self.samples.get(name)?.cpu
    }
}

#[derive(Debug, Default)]
struct Rounds(Vec<Round>);

impl Rounds {
    /// Whether another round is needed: too few are steady, and not yet half as many again as desired were tried.
    fn are_missing(&self, desired: u32) -> bool {
        let desired = desired as usize;
        let steady = self.0.iter().filter(|round| round.is_steady()).count();
        steady < desired && self.0.len() < desired + desired.div_ceil(2)
    }

    /// The steady rounds; all if none is.
    fn counted(&self) -> Vec<&Round> {
        let steady: Vec<&Round> = self.0.iter().filter(|round| round.is_steady()).collect();
        if steady.is_empty() {
            self.0.iter().collect()
        } else {
            steady
        }
    }

    fn ratios(&self, name: &str, to: &str) -> Vec<f64> {
        let ratio = |round: &Round| Some(round.cpu(name)? / round.cpu(to)?);
        self.counted().into_iter().filter_map(ratio).collect()
    }

    /// Microseconds per request.
    fn differences(&self, name: &str, without: &str) -> Vec<f64> {
        let difference = |round: &Round| Some(round.cpu(name)? - round.cpu(without)?);
        self.counted().into_iter().filter_map(difference).collect()
    }

    fn table_cells(&self, contestant: &Contestant, peak: Option<u64>) -> Vec<String> {
        let name = contestant.name.as_str();
        let samples: Vec<Sample> = self
            .counted()
            .iter()
            .filter_map(|round| round.samples.get(name).copied())
            .collect();
        let number = |value: fn(&Sample) -> Option<f64>, digits| {
            let values: Vec<f64> = samples.iter().filter_map(value).collect();
            format_number(median(&values), digits)
        };
        let to_bare = Spread::from_values(&self.ratios(name, BARE));
        vec![
            name.to_owned(),
            contestant.upstream_http.to_owned(),
            number(|sample| Some(sample.rate), 0),
            number(|sample| sample.cpu, 1),
            format_number(to_bare.map(|spread| spread.median), 2),
            format_range(to_bare, 2),
            format_number(median(&self.ratios(name, NGINX)), 2),
            number(|sample| sample.p50, 0),
            number(|sample| sample.p99, 0),
            format_number(peak.map(as_mebibytes), 1),
        ]
    }

    /// Names the rounds that do not count.
    fn unsteady_note(&self) -> Option<String> {
        let all = self.0.len();
        let steady = self.0.iter().filter(|round| round.is_steady()).count();
        if steady == all {
            return None;
        }
        let why = "the bare proxy's CPU per request changed by more than 5 % within the round";
        Some(match steady {
            0 => format!("**Unsteady**: in each of {all} rounds, {why}; all are counted."),
            _ => format!("{} of {all} rounds are left out: {why}.", all - steady),
        })
    }

    fn to_json(&self) -> Value {
        let round = |round: &Round| {
            let samples = round.samples.iter();
            let samples: serde_json::Map<String, Value> =
                samples.map(|(name, sample)| (name.clone(), sample.to_json())).collect();
            json!({ "steady": round.is_steady(), "bare_drift": round.drift, "rows": samples })
        };
        self.0.iter().map(round).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu: f64) -> Sample {
        Sample {
            rate: 1000.0,
            cpu: Some(cpu),
            p50: None,
            p99: None,
        }
    }

    fn round(drift: f64, samples: &[(&str, f64)]) -> Round {
        let samples = samples.iter().map(|(name, cpu)| ((*name).to_owned(), sample(*cpu)));
        Round {
            samples: samples.collect(),
            drift,
        }
    }

    #[test]
    fn ratio_is_taken_per_round_before_the_median() {
        // The machine slows down from round to round; the ratio does not change.
        let slower = [10.0, 20.0, 40.0].map(|cpu| round(0.0, &[(BARE, 2.0 * cpu), ("ours", 3.0 * cpu)]));
        assert_eq!(Rounds(slower.into()).ratios("ours", BARE), [1.5, 1.5, 1.5]);
    }

    #[test]
    fn difference_is_taken_per_round_and_only_in_steady_ones() {
        let rounds = [(0.0, 10.0), (0.0, 30.0), (0.06, 20.0)];
        let rounds = rounds.map(|(drift, cpu)| round(drift, &[("alone", cpu), ("called", cpu + 2.5)]));
        let rounds = Rounds(rounds.into());
        let budget = CostBudget::Difference {
            what: "a call",
            row: "called",
            without: "alone",
            at_most: 2.0,
        };
        let measured = budget.measured("Lists", &rounds);
        assert_eq!((measured.what.as_str(), measured.unit), ("Lists: a call", "µs"));
        assert_eq!((measured.values, measured.limit), (vec![2.5, 2.5], Limit::AtMost(2.0)));
        let budget = CostBudget::Ratio {
            row: "called",
            to: "absent",
            at_most: 1.1,
        };
        let not_measured = budget.measured("Lists", &rounds);
        assert_eq!(
            (not_measured.what.as_str(), not_measured.unit),
            ("Lists: called ÷ absent", RATIO)
        );
        assert!(not_measured.values.is_empty(), "{not_measured:?}");
    }

    #[test]
    fn unsteady_rounds_are_repeated_and_left_out() {
        let mut rounds = Rounds(vec![round(0.06, &[(BARE, 1.0), ("ours", 9.0)])]);
        assert_eq!(rounds.ratios("ours", BARE), [9.0], "there is no other");
        assert!(rounds.are_missing(2));
        rounds.0.push(round(0.05, &[(BARE, 1.0), ("ours", 2.0)]));
        assert_eq!(rounds.ratios("ours", BARE), [2.0]);
        assert!(
            rounds
                .unsteady_note()
                .unwrap()
                .starts_with("1 of 2 rounds are left out")
        );
        assert!(rounds.are_missing(2));
        rounds.0.push(round(0.06, &[(BARE, 1.0)]));
        assert!(!rounds.are_missing(2), "half as many again as desired are enough");
    }

    #[test]
    fn drift_is_relative_and_bare_row_is_the_mean() {
        let (before, after) = (sample(10.0), sample(9.0));
        assert!((before.drift_to(&after) - 0.1).abs() < 1e-9);
        assert_eq!(before.mean_with(&after).cpu, Some(9.5));
    }
}
