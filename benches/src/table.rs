//! Medians over the rounds, as a table of ratios to the bare proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};

use crate::load::Load;

#[derive(Debug, Clone, Default)]
struct Row {
    name: &'static str,
    rate: Vec<f64>,
    cpu: Vec<f64>,
    /// CPU per request as a ratio to the bare proxy's of the same round.
    ratio: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    memory: u64,
}

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    rows: Vec<Row>,
    bare: BTreeMap<usize, f64>,
}

const BARE: &str = "bare hyper proxy";

impl Rows {
    pub(crate) fn add(
        &mut self,
        round: usize,
        name: &'static str,
        load: &Load,
        cpu: Option<Duration>,
        memory: Option<u64>,
    ) {
        #[expect(clippy::cast_precision_loss, reason = "counts of requests, far below 2^52")]
        let requests = load.requests as f64;
        let place = self.rows.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.rows.push(Row { name, ..Row::default() });
            self.rows.len() - 1
        });
        let Some(row) = self.rows.get_mut(place) else { return };
        row.rate.push(requests / load.time.as_secs_f64());
        row.p50.push(load.p50.as_secs_f64() * 1e6);
        row.p99.push(load.p99.as_secs_f64() * 1e6);
        row.memory = row.memory.max(memory.unwrap_or_default());
        let Some(cpu) = cpu else { return };
        let each = cpu.as_secs_f64() * 1e6 / requests;
        row.cpu.push(each);
        if name == BARE {
            self.bare.insert(round, each);
        }
        if let Some(bare) = self.bare.get(&round) {
            row.ratio.push(each / bare);
        }
    }

    #[expect(clippy::print_stdout, reason = "the table is the program's output")]
    pub(crate) fn print(&self) {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header([
            "",
            "requests/s",
            "CPU µs/request",
            "CPU ÷ bare",
            "p50 µs",
            "p99 µs",
            "peak RSS MiB",
        ]);
        for row in &self.rows {
            let number = |values: &[f64], digits: usize| {
                let text = median(values).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"));
                Cell::new(text).set_alignment(CellAlignment::Right)
            };
            #[expect(clippy::cast_precision_loss, reason = "mebibytes for people")]
            let memory = [row.memory as f64 / f64::from(1 << 20)];
            table.add_row([
                Cell::new(row.name),
                number(&row.rate, 0),
                number(&row.cpu, 1),
                number(&row.ratio, 2),
                number(&row.p50, 0),
                number(&row.p99, 0),
                number(if row.memory > 0 { &memory } else { &[] }, 1),
            ]);
        }
        println!("{table}");
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
