//! A list of all pods, again and again on one connection: throughput and CPU time relative to the bare proxy, and whether memory stays flat.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::{BARE, Contestant, NO_ENTRY};
use crate::origin::{JSON_POD_BYTES, OriginPort, POD_LIST, POD_LIST_PODS, PROTOBUF_POD_BYTES};
use crate::process::Process;
use crate::stats::{Spread, as_mebibytes, as_millis, median};
use crate::stream::{JSON, PROTOBUF, Stream};
use crate::table::{format_number, format_range};
use crate::work::HttpVersion;

/// The encodings of a list.
#[derive(Debug, Clone, Copy)]
struct Encoding {
    name: &'static str,
    media_type: &'static str,
    bytes: usize,
}

const ENCODINGS: [Encoding; 2] = [
    Encoding {
        name: "JSON",
        media_type: JSON,
        bytes: POD_LIST_PODS * JSON_POD_BYTES,
    },
    Encoding {
        name: "protobuf",
        media_type: PROTOBUF,
        bytes: POD_LIST_PODS * PROTOBUF_POD_BYTES,
    },
];

pub(crate) async fn measure_lists(env: &BenchEnv) -> anyhow::Result<()> {
    for origin in [&env.plain, &env.tls] {
        for encoding in ENCODINGS {
            measure_list(env, origin, encoding).await?;
        }
    }
    Ok(())
}

async fn measure_list(env: &BenchEnv, origin: &OriginPort, encoding: Encoding) -> anyhow::Result<()> {
    let mut contestants = env.start_others(origin)?;
    for (name, chain) in [(NO_ENTRY, Chain::Empty), ("ctrlmesh, shard-selector", Chain::Sharded)] {
        let sidecar = env.start_sidecar(origin, chain).await?;
        contestants.push(sidecar.into_contestant(name));
    }
    let mut rows = contestants.iter().map(Row::new).collect::<anyhow::Result<Vec<_>>>()?;
    for _ in 0..env.scale.rounds {
        let mut bare = None;
        for row in &mut rows {
            let sample = row.run_lists(encoding, env.scale.round_time()).await?;
            if row.contestant.name == BARE {
                bare = Some(sample);
            }
            row.samples.push(sample);
            row.to_bare.extend(bare.map(|bare| sample.ratios_to(bare)));
        }
    }
    let title = format!(
        "List of {POD_LIST_PODS} pods: {}, {} MiB, {}",
        encoding.name,
        encoding.bytes >> 20,
        origin.describe()
    );
    env.report.print_table(
        &title,
        &[
            "",
            "HTTP upstream",
            "MiB/s",
            "MiB/s ÷ bare",
            "CPU ms/list",
            "CPU ÷ bare",
            "min–max",
            "RSS before MiB",
            "peak RSS MiB",
        ],
        rows.iter().map(Row::table_cells),
    );
    let raw: serde_json::Map<String, serde_json::Value> = rows
        .iter()
        .map(|row| (row.contestant.name.clone(), row.to_json()))
        .collect();
    env.report.add_raw(&title, raw.into());
    Ok(())
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// MiB per second.
    rate: f64,
    /// Milliseconds of CPU time for each list.
    cpu: f64,
}

impl Sample {
    fn ratios_to(self, bare: Self) -> Self {
        Self {
            rate: self.rate / bare.rate,
            cpu: self.cpu / bare.cpu,
        }
    }
}

struct Row<'a> {
    contestant: &'a Contestant,
    process: &'a Process,
    samples: Vec<Sample>,
    to_bare: Vec<Sample>,
    /// Resident set before the first list.
    memory_before: u64,
    peak_memory: u64,
}

impl<'a> Row<'a> {
    fn new(contestant: &'a Contestant) -> anyhow::Result<Self> {
        let process = contestant.process.as_ref().context("no process")?;
        process.forget_peak()?;
        Ok(Self {
            contestant,
            process,
            samples: Vec::new(),
            to_bare: Vec::new(),
            memory_before: process.resident_memory()?,
            peak_memory: 0,
        })
    }

    async fn run_lists(&mut self, encoding: Encoding, time: Duration) -> anyhow::Result<Sample> {
        let before = self.process.cpu_time()?;
        let address = self.contestant.address(HttpVersion::Http1);
        let (lists, elapsed) = read_lists(address, encoding, time).await?;
        let cpu = self.process.cpu_time()? - before;
        self.peak_memory = self.process.peak_memory()?;
        let bytes = u64::from(lists) * encoding.bytes as u64;
        Ok(Sample {
            rate: as_mebibytes(bytes) / elapsed.as_secs_f64(),
            cpu: as_millis(cpu) / f64::from(lists),
        })
    }

    fn table_cells(&self) -> Vec<String> {
        let values = |of: &[Sample], get: fn(&Sample) -> f64| of.iter().map(get).collect::<Vec<f64>>();
        let number = |of: &[Sample], get: fn(&Sample) -> f64, digits| format_number(median(&values(of, get)), digits);
        let rate: fn(&Sample) -> f64 = |sample| sample.rate;
        let cpu: fn(&Sample) -> f64 = |sample| sample.cpu;
        vec![
            self.contestant.name.clone(),
            self.contestant.upstream_http.to_owned(),
            number(&self.samples, rate, 0),
            number(&self.to_bare, rate, 2),
            number(&self.samples, cpu, 1),
            number(&self.to_bare, cpu, 2),
            format_range(Spread::from_values(&values(&self.to_bare, cpu)), 2),
            format_number(Some(as_mebibytes(self.memory_before)), 1),
            format_number(Some(as_mebibytes(self.peak_memory)), 1),
        ]
    }

    fn to_json(&self) -> serde_json::Value {
        let rates: Vec<f64> = self.samples.iter().map(|sample| sample.rate).collect();
        let cpu: Vec<f64> = self.samples.iter().map(|sample| sample.cpu).collect();
        serde_json::json!({ "mebibytes_per_second": rates, "cpu_ms": cpu })
    }
}

/// Reads lists for at least `time`. Returns their number, and the time that they took.
async fn read_lists(address: SocketAddr, encoding: Encoding, time: Duration) -> anyhow::Result<(u32, Duration)> {
    let start = Instant::now();
    let mut lists = 0;
    while start.elapsed() < time {
        let mut list = Stream::open(address, POD_LIST, encoding.media_type).await?;
        let mut length = 0;
        while let Some(piece) = list.next().await? {
            length += piece.len();
        }
        ensure!(
            length == encoding.bytes,
            "a list of {length} bytes instead of {}",
            encoding.bytes
        );
        lists += 1;
    }
    Ok((lists, start.elapsed()))
}
