//! The object filter alone: throughput with lists of pods, and the time that a watch event takes. In this process, on
//! one core, without HTTP.
//!
//! Copying the same chunks is the baseline: what a filter costs above it is reading and deciding.

mod pods;

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::ensure;
use ctrlmesh_wire::objects::{
    EventDecision, EventType, HashKey, HashRange, JsonListFilter, JsonWatchFilter, ObjectMetadata, Predicate,
    ProtobufListFilter, ProtobufWatchFilter,
};

use crate::bench_env::BenchEnv;
use crate::report::{Budget, Limit};
use crate::stats::{Spread, as_micros, median};
use crate::table::{format_number, format_range};
use pods::Pods;

/// Pods of a list, as many as in the lists that go through a proxy.
const PODS: u32 = 5000;

/// Size of the chunks of a body: what a connection reads at once.
const CHUNK_BYTES: usize = 16 << 10;

/// Events between two readings of the clock.
const EVENT_BATCH: u32 = 1000;

/// MB/s of lists of which a tenth is kept.
pub(crate) const JSON_RATE: f64 = 600.0;
pub(crate) const PROTOBUF_RATE: f64 = 2000.0;

/// Microseconds that a watch event takes above its copy.
pub(crate) const ADDED_PER_EVENT: f64 = 5.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    const fn name(self) -> &'static str {
        match self {
            Self::Json => "JSON",
            Self::Protobuf => "protobuf",
        }
    }

    const fn least_rate(self) -> f64 {
        match self {
            Self::Json => JSON_RATE,
            Self::Protobuf => PROTOBUF_RATE,
        }
    }

    fn list_of(self, pods: &Pods, count: u32) -> Vec<u8> {
        match self {
            Self::Json => pods.json_list(count),
            Self::Protobuf => pods.protobuf_list(count),
        }
    }

    fn event_of(self, pods: &Pods) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Json => Ok(pods.json_event()),
            Self::Protobuf => pods.protobuf_event(),
        }
    }
}

const ENCODINGS: [Encoding; 2] = [Encoding::Json, Encoding::Protobuf];

pub(crate) fn measure_object_filter(env: &BenchEnv) -> anyhow::Result<()> {
    let pods = Pods::new()?;
    for encoding in ENCODINGS {
        measure_list(env, &pods, encoding)?;
    }
    measure_events(env, &pods)
}

/// Pods that are kept, by the hashes of their UIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    All,
    Tenth,
    Nothing,
}

impl Kept {
    fn predicate(self) -> anyhow::Result<Predicate> {
        let ranges = match self {
            Self::All => vec![HashRange::ALL],
            Self::Tenth => vec![HashRange::new(0, Some(u64::MAX / 10))?],
            Self::Nothing => Vec::new(),
        };
        Ok(Predicate::hash_ranges(HashKey::Uid, ranges)?)
    }
}

/// How a list passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Copied,
    Filtered(Kept),
}

/// The ways in the order of a round: ratios are to the first one.
const WAYS: [(Way, &str); 3] = [
    (Way::Copied, "chunks copied"),
    (Way::Filtered(Kept::Tenth), "filtered, a tenth kept"),
    (Way::Filtered(Kept::All), "filtered, all kept"),
];

/// MB/s of a way, and its ratio to the copy of the same round.
struct ListRow {
    way: Way,
    name: &'static str,
    rates: Vec<f64>,
    to_copy: Vec<f64>,
}

impl ListRow {
    fn table_cells(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            format_number(median(&self.rates), 0),
            format_range(Spread::from_values(&self.rates), 0),
            format_number(median(&self.to_copy), 3),
            format_range(Spread::from_values(&self.to_copy), 3),
        ]
    }
}

fn measure_list(env: &BenchEnv, pods: &Pods, encoding: Encoding) -> anyhow::Result<()> {
    let body = encoding.list_of(pods, PODS);
    let body_bytes = f64::from(u32::try_from(body.len())?);
    let all_bytes = filter_list(encoding, &body, &Kept::All.predicate()?)?;
    ensure!(all_bytes == body.len(), "the filter has changed a list that it kept");
    let mut rows = WAYS.map(|(way, name)| ListRow {
        way,
        name,
        rates: Vec::new(),
        to_copy: Vec::new(),
    });
    // The rows share the time of a round.
    let time = env.scale.round_time() / 3;
    for _ in 0..env.scale.rounds {
        let mut copy_rate = None;
        for row in &mut rows {
            // Bytes in a microsecond are megabytes in a second.
            let rate = body_bytes / measure_way(encoding, row.way, &body, time)?;
            row.rates.push(rate);
            row.to_copy.push(rate / *copy_rate.get_or_insert(rate));
        }
    }
    let title = format!(
        "Filtered list of {PODS} pods: {}, {} MiB",
        encoding.name(),
        body.len() >> 20
    );
    let header = ["", "MB/s", "min–max", "÷ copied", "min–max"];
    env.report
        .print_table(&title, &header, rows.iter().map(ListRow::table_cells));
    let raw = rows
        .iter()
        .map(|row| (row.name.to_owned(), serde_json::Value::from(row.rates.clone())));
    let raw: serde_json::Map<String, serde_json::Value> = raw.collect();
    env.report.add_raw(&title, raw.into());
    for row in rows {
        if row.way == Way::Filtered(Kept::Tenth) {
            env.report.add_budget(Budget {
                what: format!("{title}: a tenth kept"),
                unit: "MB/s",
                values: row.rates,
                limit: Limit::AtLeast(encoding.least_rate()),
            });
        }
    }
    Ok(())
}

/// Microseconds for each list.
fn measure_way(encoding: Encoding, way: Way, body: &[u8], time: Duration) -> anyhow::Result<f64> {
    match way {
        Way::Copied => micros_per_call(time, 1, || {
            black_box(copy_chunks(body));
            Ok(())
        }),
        Way::Filtered(kept) => {
            let predicate = kept.predicate()?;
            micros_per_call(time, 1, || {
                black_box(filter_list(encoding, body, &predicate)?);
                Ok(())
            })
        }
    }
}

/// Number of bytes that were copied.
fn copy_chunks(body: &[u8]) -> usize {
    let mut out = Vec::new();
    let mut length = 0;
    for chunk in body.chunks(CHUNK_BYTES) {
        out.clear();
        out.extend_from_slice(chunk);
        length += black_box(&out).len();
    }
    length
}

/// Number of bytes that have passed.
fn filter_list(encoding: Encoding, body: &[u8], predicate: &Predicate) -> anyhow::Result<usize> {
    let mut decide = |objects: &[ObjectMetadata<'_>], flags: &mut [bool]| {
        for (object, flag) in objects.iter().zip(flags) {
            *flag = predicate.matches(object);
        }
    };
    let mut out = Vec::new();
    let mut length = 0;
    match encoding {
        Encoding::Json => {
            let mut filter = JsonListFilter::new(predicate.fields());
            for chunk in body.chunks(CHUNK_BYTES) {
                out.clear();
                filter.push(chunk, &mut out, &mut decide)?;
                length += black_box(&out).len();
            }
            filter.finish()?;
        }
        Encoding::Protobuf => {
            let mut filter = ProtobufListFilter::new(predicate.fields());
            for chunk in body.chunks(CHUNK_BYTES) {
                out.clear();
                filter.push(chunk, &mut out, &mut decide)?;
                length += black_box(&out).len();
            }
            filter.finish()?;
        }
    }
    Ok(length)
}

/// Microseconds of an event, by round.
struct EventRow {
    name: String,
    encoding: Encoding,
    kept: Kept,
    event: Vec<u8>,
    copied: Vec<f64>,
    filtered: Vec<f64>,
    /// Above the copy of the same round.
    added: Vec<f64>,
}

impl EventRow {
    fn new(pods: &Pods, encoding: Encoding, kept: Kept, outcome: &str) -> anyhow::Result<Self> {
        Ok(Self {
            name: format!("{}, {outcome}", encoding.name()),
            encoding,
            kept,
            event: encoding.event_of(pods)?,
            copied: Vec::new(),
            filtered: Vec::new(),
            added: Vec::new(),
        })
    }

    fn add_round(&mut self, time: Duration) -> anyhow::Result<()> {
        let mut out = Vec::new();
        let copied = micros_per_call(time, EVENT_BATCH, || {
            out.clear();
            out.extend_from_slice(black_box(self.event.as_slice()));
            black_box(&out);
            Ok(())
        })?;
        let filtered = measure_event(self.encoding, &self.event, &self.kept.predicate()?, time)?;
        self.copied.push(copied);
        self.filtered.push(filtered);
        self.added.push(filtered - copied);
        Ok(())
    }

    fn table_cells(&self) -> Vec<String> {
        let nanoseconds = |values: &[f64]| values.iter().map(|micros| micros * 1e3).collect::<Vec<f64>>();
        let added = Spread::from_values(&nanoseconds(&self.added));
        vec![
            self.name.clone(),
            self.event.len().to_string(),
            format_number(median(&nanoseconds(&self.copied)), 0),
            format_number(median(&nanoseconds(&self.filtered)), 0),
            format_number(added.map(|added| added.median), 0),
            format_range(added, 0),
        ]
    }
}

fn measure_events(env: &BenchEnv, pods: &Pods) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for encoding in ENCODINGS {
        for (kept, outcome) in [(Kept::All, "kept"), (Kept::Nothing, "dropped")] {
            rows.push(EventRow::new(pods, encoding, kept, outcome)?);
        }
    }
    // Four rows, each with a copy, share the time of a round.
    let time = env.scale.round_time() / 8;
    for _ in 0..env.scale.rounds {
        for row in &mut rows {
            row.add_round(time)?;
        }
    }
    let title = "Filtered watch event of a pod";
    let header = ["", "bytes", "copied ns", "filtered ns", "added ns", "min–max"];
    env.report
        .print_table(title, &header, rows.iter().map(EventRow::table_cells));
    let raw = rows.iter().map(|row| {
        let values = serde_json::json!({ "copied_us": row.copied, "filtered_us": row.filtered });
        (row.name.clone(), values)
    });
    let raw: serde_json::Map<String, serde_json::Value> = raw.collect();
    env.report.add_raw(title, raw.into());
    for row in rows {
        env.report.add_budget(Budget {
            what: format!("{title}: {}, above its copy", row.name),
            unit: "µs",
            values: row.added,
            limit: Limit::AtMost(ADDED_PER_EVENT),
        });
    }
    Ok(())
}

/// Microseconds for each event of one watch, which comes as one chunk.
fn measure_event(encoding: Encoding, event: &[u8], predicate: &Predicate, time: Duration) -> anyhow::Result<f64> {
    let mut decide = |_: EventType, object: &ObjectMetadata<'_>| {
        if predicate.matches(object) {
            EventDecision::Keep
        } else {
            EventDecision::Drop
        }
    };
    let mut out = Vec::new();
    match encoding {
        Encoding::Json => {
            let mut filter = JsonWatchFilter::new(predicate.fields());
            micros_per_call(time, EVENT_BATCH, || {
                out.clear();
                filter.push(black_box(event), &mut out, &mut decide)?;
                black_box(&out);
                Ok(())
            })
        }
        Encoding::Protobuf => {
            let mut filter = ProtobufWatchFilter::new(predicate.fields());
            micros_per_call(time, EVENT_BATCH, || {
                out.clear();
                filter.push(black_box(event), &mut out, &mut decide)?;
                black_box(&out);
                Ok(())
            })
        }
    }
}

/// Microseconds for each call, over calls for at least `time`. The clock is read after each `batch` of calls; a first
/// batch is not counted.
fn micros_per_call(time: Duration, batch: u32, mut call: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    let mut call_batch = || (0..batch).try_for_each(|_| call());
    call_batch()?;
    let start = Instant::now();
    let mut batches = 0_u32;
    loop {
        call_batch()?;
        batches += 1;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return Ok(as_micros(elapsed) / (f64::from(batches) * f64::from(batch)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pods of a list that pass.
    fn count_kept(encoding: Encoding, body: &[u8], kept: Kept) -> usize {
        let predicate = kept.predicate().unwrap();
        let mut count = 0;
        let mut decide = |objects: &[ObjectMetadata<'_>], _: &mut [bool]| {
            count += objects.iter().filter(|object| predicate.matches(object)).count();
        };
        let mut out = Vec::new();
        match encoding {
            Encoding::Json => {
                let mut filter = JsonListFilter::new(predicate.fields());
                filter.push(body, &mut out, &mut decide).unwrap();
                filter.finish().unwrap();
            }
            Encoding::Protobuf => {
                let mut filter = ProtobufListFilter::new(predicate.fields());
                filter.push(body, &mut out, &mut decide).unwrap();
                filter.finish().unwrap();
            }
        }
        count
    }

    #[test]
    fn tenth_of_pods_is_kept_in_both_encodings() {
        let pods = Pods::new().unwrap();
        let lists = ENCODINGS.map(|encoding| (encoding, encoding.list_of(&pods, 300)));
        let counts = lists.each_ref().map(|(encoding, body)| {
            assert_eq!(count_kept(*encoding, body, Kept::All), 300);
            assert_eq!(count_kept(*encoding, body, Kept::Nothing), 0);
            count_kept(*encoding, body, Kept::Tenth)
        });
        assert!((20..40).contains(&counts[0]), "{counts:?}");
        assert_eq!(counts[0], counts[1]);
    }

    #[test]
    fn list_in_chunks_passes_whole_or_without_its_pods() {
        let pods = Pods::new().unwrap();
        for encoding in ENCODINGS {
            let body = encoding.list_of(&pods, 30);
            let length = |kept: Kept| filter_list(encoding, &body, &kept.predicate().unwrap()).unwrap();
            assert_eq!(copy_chunks(&body), body.len());
            assert_eq!(length(Kept::All), body.len());
            match encoding {
                Encoding::Json => assert!(length(Kept::Nothing) < 200),
                // Pods that are left out become padding.
                Encoding::Protobuf => assert_eq!(length(Kept::Nothing), body.len()),
            }
        }
    }

    #[test]
    fn event_passes_through_watch_filter() {
        let pods = Pods::new().unwrap();
        for encoding in ENCODINGS {
            let event = encoding.event_of(&pods).unwrap();
            let predicate = Kept::All.predicate().unwrap();
            measure_event(encoding, &event, &predicate, Duration::ZERO).unwrap();
        }
    }
}
