//! A large list, again and again on one connection: throughput relative to direct requests, and whether memory stays flat.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::origin::{LARGE, LARGE_BYTES};
use crate::process::Process;
use crate::stats::{as_mebibytes, median};
use crate::stream::Stream;
use crate::{Scale, table};

const BARE: &str = "bare hyper proxy";

struct Case {
    name: &'static str,
    address: SocketAddr,
    process: Option<Process>,
    /// MiB per second in each round.
    rates: Vec<f64>,
    /// Ratio to the direct throughput of the same round.
    to_direct: Vec<f64>,
    to_bare: Vec<f64>,
    /// Resident set before the first list, and the largest since.
    memory: Option<(u64, u64)>,
}

impl Case {
    fn new(name: &'static str, address: SocketAddr, process: Option<Process>) -> Self {
        Self {
            name,
            address,
            process,
            rates: Vec::new(),
            to_direct: Vec::new(),
            to_bare: Vec::new(),
            memory: None,
        }
    }

    fn table_cells(&self) -> Vec<String> {
        let memory = |of: fn((u64, u64)) -> u64| table::format_number(self.memory.map(of).map(as_mebibytes), 1);
        vec![
            self.name.to_owned(),
            table::format_number(median(&self.rates), 0),
            table::format_number(median(&self.to_direct), 2),
            table::format_number(median(&self.to_bare), 2),
            memory(|(before, _)| before),
            memory(|(_, peak)| peak),
        ]
    }
}

pub(crate) async fn measure_lists(env: &BenchEnv, scale: &Scale) -> anyhow::Result<()> {
    let bare = env.start_bare_proxy()?;
    let empty = env.start_sidecar("list-empty", Chain::Empty).await?;
    let sharded = env.start_sidecar("list-sharded", Chain::Sharded).await?;
    let mut cases = [
        Case::new("direct", env.origin, None),
        Case::new(BARE, bare.1, Some(bare.0)),
        Case::new("ctrlmesh, no entry", empty.api, Some(empty.process)),
        Case::new("ctrlmesh, shard-selector", sharded.api, Some(sharded.process)),
    ];
    for case in &mut cases {
        if let Some(process) = &case.process {
            process.forget_peak()?;
            case.memory = Some((process.resident_memory()?, 0));
        }
    }
    for _ in 0..scale.rounds {
        let (mut direct, mut bare) = (None, None);
        for case in &mut cases {
            let rate = measure_rate(case.address, scale.round_time()).await?;
            case.rates.push(rate);
            case.to_direct.push(rate / *direct.get_or_insert(rate));
            if case.name == BARE {
                bare = Some(rate);
            }
            case.to_bare.extend(bare.map(|bare| rate / bare));
            if let (Some(process), Some((_, peak))) = (&case.process, &mut case.memory) {
                *peak = process.peak_memory()?;
            }
        }
    }
    table::print_table(
        &format!("Large list, {} MiB", LARGE_BYTES >> 20),
        &["", "MiB/s", "÷ direct", "÷ bare", "RSS before MiB", "peak RSS MiB"],
        cases.iter().map(Case::table_cells),
    );
    Ok(())
}

/// MiB per second, measured over at least `time`.
async fn measure_rate(address: SocketAddr, time: Duration) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut bytes: u64 = 0;
    while start.elapsed() < time {
        let mut list = Stream::open(address, LARGE).await?;
        let mut length = 0;
        while let Some(piece) = list.next().await? {
            length += piece.len();
        }
        ensure!(
            length == LARGE_BYTES,
            "a list of {length} bytes instead of {LARGE_BYTES}"
        );
        bytes += length as u64;
    }
    Ok(as_mebibytes(bytes) / start.elapsed().as_secs_f64())
}
