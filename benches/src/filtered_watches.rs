//! Memory of a sidecar that leaves objects out of a hundred watches. Each watch begins with 50,000 pods, of which about a
//! tenth is kept, and stays open.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use ctrlmesh_wire::objects::fnv1a_64;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench_env::BenchEnv;
use crate::chain::{Chain, KEPT_RANGES};
use crate::contestants::NO_ENTRY;
use crate::origin::initial_events::{END_ANNOTATION, PODS, PODS_WATCH, owner_uid, pod_uid};
use crate::process::Process;
use crate::report::{Budget, Limit};
use crate::stats::{Spread, as_mebibytes, median};
use crate::stream::Stream;
use crate::table::{format_number, format_range};
use crate::work::HttpVersion;

const WATCHES: usize = 100;

/// Watches that get their pods at the same time, on one connection. A worker thread without a memory limit holds 16 MiB of
/// responses that clients have not read, which are those of 64 watches, and resets some beyond that.
const AT_ONCE: usize = 25;

/// A round sends 5 GB. Memory differs little between rounds.
const MAX_ROUNDS: u32 = 2;

/// Timeout of a sidecar's watches, many times of what they take.
const PATIENCE: Duration = Duration::from_secs(180);

/// Bits of a hash behind the number of its virtual range.
const RANGE_BITS: u32 = 54;

/// MiB above a sidecar without an entry, for a key that never changes.
pub(crate) const ADDED_BY_UID: f64 = 10.0;

pub(crate) async fn measure_filtered_watches(env: &BenchEnv) -> anyhow::Result<()> {
    let mut rows = [
        Row::new(NO_ENTRY, Chain::Empty),
        Row::new("ctrlmesh, hash ranges of uid", Chain::UidRanges),
        Row::new("ctrlmesh, hash ranges of owner", Chain::OwnerRanges),
    ];
    for _ in 0..env.scale.rounds.min(MAX_ROUNDS) {
        let mut base = None;
        for row in &mut rows {
            let memory = measure_sidecar(env, row).await.context(row.name)?;
            row.add_round(memory, *base.get_or_insert(memory));
        }
    }
    let title = format!(
        "{WATCHES} filtered watches of {PODS} pods: {}, {}",
        HttpVersion::Http2.name(),
        env.tls.describe()
    );
    let header = [
        "",
        "pods kept",
        "anonymous MiB",
        "added MiB",
        "min–max",
        "RSS MiB",
        "added MiB",
        "peak RSS MiB",
        "added MiB",
    ];
    env.report
        .print_table(&title, &header, rows.iter().map(Row::table_cells));
    let raw = rows.iter().map(|row| (row.name.to_owned(), row.to_json()));
    let raw: serde_json::Map<String, serde_json::Value> = raw.collect();
    env.report.add_raw(&title, raw.into());
    for row in rows.iter().filter(|row| row.chain == Chain::UidRanges) {
        env.report.add_budget(Budget {
            what: format!("{title}: hash ranges of uid, added anonymous memory"),
            unit: "MiB",
            values: values(&row.added, |memory| memory.anonymous),
            limit: Limit::AtMost(ADDED_BY_UID),
        });
    }
    Ok(())
}

/// Memory of a sidecar, MiB.
#[derive(Debug, Clone, Copy)]
struct Memory {
    anonymous: f64,
    resident: f64,
    /// Of the resident memory since the first watch was opened.
    peak: f64,
}

impl Memory {
    fn of(process: &Process) -> anyhow::Result<Self> {
        Ok(Self {
            anonymous: as_mebibytes(process.anonymous_memory()?),
            resident: as_mebibytes(process.resident_memory()?),
            peak: as_mebibytes(process.peak_memory()?),
        })
    }

    fn above(self, other: Self) -> Self {
        Self {
            anonymous: self.anonymous - other.anonymous,
            resident: self.resident - other.resident,
            peak: self.peak - other.peak,
        }
    }
}

fn values(rounds: &[Memory], part: fn(&Memory) -> f64) -> Vec<f64> {
    rounds.iter().map(part).collect()
}

/// What was measured with one chain, by round.
struct Row {
    name: &'static str,
    chain: Chain,
    /// Pods that each client must get.
    kept: usize,
    memory: Vec<Memory>,
    /// Above the sidecar without an entry in the same round.
    added: Vec<Memory>,
}

impl Row {
    fn new(name: &'static str, chain: Chain) -> Self {
        Self {
            name,
            chain,
            kept: count_kept(chain, PODS),
            memory: Vec::new(),
            added: Vec::new(),
        }
    }

    fn add_round(&mut self, memory: Memory, base: Memory) {
        self.memory.push(memory);
        self.added.push(memory.above(base));
    }

    fn table_cells(&self) -> Vec<String> {
        let number = |rounds: &[Memory], part: fn(&Memory) -> f64| format_number(median(&values(rounds, part)), 1);
        let anonymous: fn(&Memory) -> f64 = |memory| memory.anonymous;
        let resident: fn(&Memory) -> f64 = |memory| memory.resident;
        let peak: fn(&Memory) -> f64 = |memory| memory.peak;
        vec![
            self.name.to_owned(),
            self.kept.to_string(),
            number(&self.memory, anonymous),
            number(&self.added, anonymous),
            format_range(Spread::from_values(&values(&self.added, anonymous)), 1),
            number(&self.memory, resident),
            number(&self.added, resident),
            number(&self.memory, peak),
            number(&self.added, peak),
        ]
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "anonymous_mib": values(&self.memory, |memory| memory.anonymous),
            "resident_mib": values(&self.memory, |memory| memory.resident),
            "peak_mib": values(&self.memory, |memory| memory.peak),
        })
    }
}

/// Pods of the first ones that a chain keeps.
fn count_kept(chain: Chain, pods: u32) -> usize {
    let is_kept = |number: &u32| match chain {
        Chain::UidRanges => is_in_ranges(&pod_uid(*number)),
        Chain::OwnerRanges => is_in_ranges(&owner_uid(*number)),
        _ => true,
    };
    (0..pods).filter(is_kept).count()
}

/// Whether the hash of this text is in one of the shard's ranges.
fn is_in_ranges(text: &str) -> bool {
    fnv1a_64(text) >> RANGE_BITS < KEPT_RANGES
}

/// Starts a sidecar and measures it when all its clients have got all their pods.
///
/// # Errors
/// A client got another number of pods than are kept, or not in time.
async fn measure_sidecar(env: &BenchEnv, row: &Row) -> anyhow::Result<Memory> {
    let sidecar = env.start_sidecar(&env.tls, row.chain).await?;
    sidecar.process.forget_peak()?;
    let watches = timeout(PATIENCE, open_watches(sidecar.api, row.kept));
    // They stay open while memory is measured.
    let _open = watches.await.context("the watches did not get all pods in time")??;
    Memory::of(&sidecar.process)
}

/// Opens all watches. Returns when each has begun with `kept` pods.
async fn open_watches(address: SocketAddr, kept: usize) -> anyhow::Result<Vec<Stream>> {
    let mut open = Vec::with_capacity(WATCHES);
    while open.len() < WATCHES {
        let count = AT_ONCE.min(WATCHES - open.len());
        let mut tasks = JoinSet::new();
        for stream in Stream::open_many(address, HttpVersion::Http2, PODS_WATCH, count).await? {
            tasks.spawn_local(read_initial_events(stream));
        }
        while let Some(watch) = tasks.join_next().await {
            let (stream, pods) = watch??;
            ensure!(pods == kept, "a client got {pods} pods instead of {kept}");
            open.push(stream);
        }
    }
    Ok(open)
}

/// Reads a watch up to the bookmark behind its first pods. Returns it with the number of these.
async fn read_initial_events(mut watch: Stream) -> anyhow::Result<(Stream, usize)> {
    let mut events = InitialEvents::default();
    while !events.are_complete {
        let piece = watch.next().await?.context("the watch ended")?;
        events.read(&piece)?;
    }
    Ok((watch, events.pods))
}

/// Counts the pods with which a watch begins.
#[derive(Debug, Default)]
struct InitialEvents {
    /// Bytes of an event whose end has not come.
    begun: Vec<u8>,
    pods: usize,
    /// Whether the bookmark behind the pods has come.
    are_complete: bool,
}

impl InitialEvents {
    fn read(&mut self, piece: &[u8]) -> anyhow::Result<()> {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.begun.is_empty() && part.ends_with(b"\n") {
                self.read_event(part)?;
                continue;
            }
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let event = std::mem::take(&mut self.begun);
                self.read_event(&event)?;
            }
        }
        Ok(())
    }

    fn read_event(&mut self, event: &[u8]) -> anyhow::Result<()> {
        let text = || String::from_utf8_lossy(event);
        ensure!(!self.are_complete, "an event came behind the bookmark: {}", text());
        if event.starts_with(br#"{"type":"ADDED","#) {
            self.pods += 1;
        } else if event.starts_with(br#"{"type":"BOOKMARK","#) && text().contains(END_ANNOTATION) {
            self.are_complete = true;
        } else {
            bail!("an unexpected event came: {}", text());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::objects::{
        EventDecision, EventType, HashKey, JsonWatchFilter, ObjectMetadata, Predicate, VirtualRanges,
    };

    use super::*;
    use crate::origin::initial_events::render_events;

    fn count_pods<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> anyhow::Result<Option<usize>> {
        let mut events = InitialEvents::default();
        for piece in pieces {
            events.read(piece)?;
        }
        Ok(events.are_complete.then_some(events.pods))
    }

    #[test]
    fn pods_are_counted_however_their_events_arrive() {
        let events = render_events(20);
        for length in [1, 7, 100, 1000, events.len()] {
            let pods = count_pods(events.as_bytes().chunks(length)).unwrap();
            assert_eq!(pods, Some(20), "pieces of {length}");
        }
    }

    #[test]
    fn watch_is_complete_with_its_bookmark_only() {
        let events = render_events(3);
        let (pods, bookmark) = events.split_at(events.rfind("{\"type\"").unwrap());
        assert_eq!(count_pods([pods.as_bytes()]).unwrap(), None);
        assert_eq!(count_pods([bookmark.as_bytes()]).unwrap(), Some(0));
        assert!(count_pods([bookmark.as_bytes(), pods.as_bytes()]).is_err());
    }

    #[test]
    fn error_event_and_other_bookmark_are_unexpected() {
        for event in [
            "{\"type\":\"ERROR\",\"object\":{}}\n",
            "{\"type\":\"BOOKMARK\",\"object\":{}}\n",
        ] {
            let error = count_pods([event.as_bytes()]).unwrap_err().to_string();
            assert!(error.contains(event.trim_end()), "{error}");
        }
    }

    /// The expected numbers follow from hashes, and the sidecar's from the settings.
    #[test]
    fn filter_keeps_as_many_pods_as_are_expected() {
        let events = render_events(1000);
        let ranges = VirtualRanges::parse(&format!("0-{}", KEPT_RANGES - 1)).unwrap();
        for (chain, key) in [
            (Chain::UidRanges, HashKey::Uid),
            (Chain::OwnerRanges, HashKey::ControllerUid),
        ] {
            let predicate = Predicate::hash_ranges(key, vec![ranges.hashes()]).unwrap();
            let mut decide = |_: EventType, object: &ObjectMetadata<'_>| {
                if predicate.matches(object) {
                    EventDecision::Keep
                } else {
                    EventDecision::Drop
                }
            };
            let mut filter = JsonWatchFilter::new(predicate.fields());
            let mut kept = Vec::new();
            filter.push(events.as_bytes(), &mut kept, &mut decide).unwrap();
            let expected = count_kept(chain, 1000);
            assert_eq!(count_pods([kept.as_slice()]).unwrap(), Some(expected), "{chain:?}");
            assert!((80..130).contains(&expected), "{chain:?}: {expected}");
        }
        assert_eq!(count_kept(Chain::Empty, 1000), 1000);
    }

    #[test]
    fn added_memory_is_above_that_of_the_same_round() {
        let memory = |anonymous: f64| Memory {
            anonymous,
            resident: anonymous + 10.0,
            peak: anonymous + 20.0,
        };
        let mut row = Row::new("a", Chain::Empty);
        row.add_round(memory(12.0), memory(5.0));
        row.add_round(memory(22.0), memory(16.0));
        let cells = row.table_cells();
        let expected = ["a", "50000", "22.0", "7.0", "6.0–7.0", "32.0", "7.0", "42.0", "7.0"];
        assert_eq!(cells, expected);
    }
}
