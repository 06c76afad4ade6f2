//! Requests per second, CPU per request and latency: direct, through other proxies, through the sidecar.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::load::{self, Load};
use crate::origin::{GET, LIST};
use crate::process::Process;
use crate::stats::{as_mebibytes, as_micros, median};
use crate::{Scale, nginx, table};

struct Case {
    name: &'static str,
    address: SocketAddr,
    target: &'static str,
    /// The process whose CPU time is counted.
    process: Option<Process>,
}

const BARE: &str = "bare hyper proxy";
const NGINX: &str = "nginx";

/// The rows for plugins that match a `get`: name, folder, chain.
const PLUGINS: [(&str, &str, Chain); 4] = [
    ("ctrlmesh, rate-limit on get", "requests-limited", Chain::Limited),
    ("ctrlmesh, circuit-breaker on get", "requests-guarded", Chain::Guarded),
    ("ctrlmesh, fault-inject on get", "requests-faulty", Chain::Faulty),
    ("ctrlmesh, all four on get", "requests-full", Chain::Full),
];

pub(crate) async fn measure_requests(env: &BenchEnv, scale: &Scale) -> anyhow::Result<()> {
    let cases = start_cases(env).await?;
    let mut rows = Rows::default();
    for round in 0..scale.rounds {
        for case in &cases {
            let before = case.process.as_ref().map(Process::cpu_time).transpose()?;
            let load = load::run_load(case.address, case.target, scale.connections, scale.round_time()).await?;
            let spent = match (&case.process, before) {
                (Some(process), Some(before)) => Some(process.cpu_time()? - before),
                _ => None,
            };
            let memory = case.process.as_ref().map(Process::peak_memory).transpose()?;
            rows.add_round(round, case.name, &load, spent, memory);
        }
    }
    table::print_table(
        "Requests",
        &[
            "",
            "requests/s",
            "CPU µs/request",
            "CPU ÷ bare",
            "CPU ÷ nginx",
            "p50 µs",
            "p99 µs",
            "peak RSS MiB",
        ],
        rows.table_rows(),
    );
    Ok(())
}

async fn start_cases(env: &BenchEnv) -> anyhow::Result<Vec<Case>> {
    let case = |name, (process, address): (Process, SocketAddr), target| Case {
        name,
        address,
        target,
        process: Some(process),
    };
    let mut cases = vec![
        Case {
            name: "direct",
            address: env.origin,
            target: GET,
            process: None,
        },
        case(BARE, env.start_bare_proxy()?, GET),
    ];
    if nginx::is_installed() {
        cases.push(case(NGINX, nginx::start_nginx(env.files_directory(), env.origin)?, GET));
    } else {
        table::print_note("nginx is left out: there is no `nginx` on the PATH.");
    }
    let empty = env.start_sidecar("requests-empty", Chain::Empty).await?;
    let sharded = env.start_sidecar("requests-sharded", Chain::Sharded).await?;
    let unmatched = env.start_sidecar("requests-unmatched", Chain::Sharded).await?;
    cases.push(case("ctrlmesh, no entry", (empty.process, empty.api), GET));
    cases.push(case(
        "ctrlmesh, an entry that does not want it",
        (unmatched.process, unmatched.api),
        GET,
    ));
    cases.push(case(
        "ctrlmesh, shard-selector on list",
        (sharded.process, sharded.api),
        LIST,
    ));
    for (name, folder, chain) in PLUGINS {
        let sidecar = env.start_sidecar(folder, chain).await?;
        cases.push(case(name, (sidecar.process, sidecar.api), GET));
    }
    Ok(cases)
}

#[derive(Debug, Clone, Default)]
struct Row {
    name: &'static str,
    rate: Vec<f64>,
    cpu: Vec<f64>,
    /// CPU per request relative to the bare proxy in the same round.
    to_bare: Vec<f64>,
    to_nginx: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    memory: u64,
}

/// The measurements of all rounds; the table shows their medians.
#[derive(Debug, Default)]
struct Rows {
    rows: Vec<Row>,
    /// CPU per request by round.
    bare: BTreeMap<usize, f64>,
    nginx: BTreeMap<usize, f64>,
}

impl Rows {
    fn add_round(&mut self, round: usize, name: &'static str, load: &Load, cpu: Option<Duration>, memory: Option<u64>) {
        #[expect(clippy::cast_precision_loss, reason = "counts of requests, far below 2^52")]
        let requests = load.latencies.len() as f64;
        let place = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.rows.push(Row { name, ..Row::default() });
            self.rows.len() - 1
        });
        let Some(row) = self.rows.get_mut(place) else { return };
        row.rate.push(requests / load.time.as_secs_f64());
        row.p50.extend(load.latencies.per_mille(500).map(as_micros));
        row.p99.extend(load.latencies.per_mille(990).map(as_micros));
        row.memory = row.memory.max(memory.unwrap_or_default());
        let Some(cpu) = cpu else { return };
        let each = as_micros(cpu) / requests;
        row.cpu.push(each);
        match name {
            BARE => drop(self.bare.insert(round, each)),
            NGINX => drop(self.nginx.insert(round, each)),
            _ => {}
        }
        row.to_bare.extend(self.bare.get(&round).map(|bare| each / bare));
        row.to_nginx.extend(self.nginx.get(&round).map(|nginx| each / nginx));
    }

    fn table_rows(&self) -> impl Iterator<Item = Vec<String>> {
        self.rows.iter().map(|row| {
            let memory = Some(row.memory).filter(|memory| *memory > 0).map(as_mebibytes);
            vec![
                row.name.to_owned(),
                table::format_number(median(&row.rate), 0),
                table::format_number(median(&row.cpu), 1),
                table::format_number(median(&row.to_bare), 2),
                table::format_number(median(&row.to_nginx), 2),
                table::format_number(median(&row.p50), 0),
                table::format_number(median(&row.p99), 0),
                table::format_number(memory, 1),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Durations;

    #[test]
    fn ratio_is_taken_per_round_before_the_median() {
        let load = Load {
            latencies: Durations::new(vec![Duration::from_micros(10); 1000]),
            time: Duration::from_secs(1),
        };
        let mut rows = Rows::default();
        // The machine slows down from round to round; the ratio does not change.
        for (round, micros) in [10, 20, 40].into_iter().enumerate() {
            let cpu = |factor: u64| Some(Duration::from_millis(micros * factor));
            rows.add_round(round, "direct", &load, None, None);
            rows.add_round(round, BARE, &load, cpu(2), Some(1 << 20));
            rows.add_round(round, NGINX, &load, cpu(1), Some(1 << 20));
            rows.add_round(round, "ours", &load, cpu(3), Some(3 << 20));
        }
        let texts: Vec<Vec<String>> = rows.table_rows().collect();
        assert_eq!(texts[0], ["direct", "1000", "-", "-", "-", "10", "10", "-"]);
        assert_eq!(texts[3], ["ours", "1000", "60.0", "1.50", "3.00", "10", "10", "3.0"]);
    }
}
