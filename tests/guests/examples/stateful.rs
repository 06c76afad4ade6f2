//! Does the state operations of its settings on each request, and answers with the results: 400, message `<result>; <result>; …`
//! (`granted`, `wait <ms>`, a number, a value, `none`, `error <name>`).
//!
//! ```yaml
//! ops:
//! - take: [{key: b, limit: 1, intervalMs: 1000, burst: 1, tokens: 1}]
//! - admit: {asks: [{key: b, limit: 1, intervalMs: 1000, burst: 1, tokens: 1}], maxWaitMs: 500, places: [{key: p, max: 1}]}
//! - add: {key: c, delta: 1, max: 3}
//! - increment: {key: c, by: 2}
//! - windowAdd: {key: w, lengthMs: 1000, slots: 10, amount: 1}
//! - get: k
//! - getAll: [k, other]
//! - compareAndSwap: {key: k, expected: 0, value: text}
//! - remove: k
//! - countAll: [{name: seen, label: a, by: 2}]
//! - showCounters: {key: r, fields: [[count, c]]}      # too late for it here
//! show: {key: r, fields: [[count, c]]}                  # a report of counters, set up in `configure`
//! ```

use std::fmt::Display;

use ctrlmesh_sdk::{
    Admission, Ask, Bucket, Cell, Claim, Counted, Grant, Host, InstanceInfo, Place, Plugin, Refusal, Request,
    RequestVerdict, StateError, Subscription,
};
use ctrlmesh_test_guests::subscribe_to_everything;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    #[serde(default)]
    ops: Vec<Op>,
    show: Option<Shown>,
}

/// A report of counters: names of fields, each with the key of its counter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shown {
    key: String,
    fields: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CountText {
    name: String,
    label: String,
    by: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
enum Op {
    Take(Vec<Take>),
    Admit {
        #[serde(default)]
        asks: Vec<Take>,
        #[serde(default)]
        max_wait_ms: u32,
        #[serde(default)]
        places: Vec<PlaceText>,
    },
    Add {
        key: String,
        delta: i64,
        max: Option<i64>,
    },
    Increment {
        key: String,
        by: u64,
    },
    WindowAdd {
        key: String,
        length_ms: u32,
        slots: u32,
        amount: u64,
    },
    Get(String),
    GetAll(Vec<String>),
    CompareAndSwap {
        key: String,
        expected: u64,
        value: String,
    },
    Remove(String),
    CountAll(Vec<CountText>),
    ShowCounters(Shown),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Take {
    key: String,
    limit: u32,
    interval_ms: u32,
    burst: u32,
    tokens: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceText {
    key: String,
    max: u32,
}

struct Stateful(Vec<Op>);

impl Plugin for Stateful {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        if let Some(Shown { key, fields }) = &settings.show {
            host.show_counters(key, fields);
        }
        Ok((Stateful(settings.ops), subscribe_to_everything()))
    }

    fn on_request(&mut self, _: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let results: Vec<String> = self.0.iter().map(|op| perform_op(op, host)).collect();
        RequestVerdict::refuse(Refusal::new(400, results.join("; ")))
    }
}

fn perform_op(op: &Op, host: &dyn Host) -> String {
    match op {
        Op::Take(takes) => {
            let claims: Vec<Claim> = takes.iter().map(build_claim).collect();
            result_text(host.take(&claims).map(|grant| match grant {
                Grant::Granted => "granted".to_owned(),
                Grant::WaitMs(ms) => format!("wait {ms}"),
            }))
        }
        Op::Admit {
            asks,
            max_wait_ms,
            places,
        } => admit_claims(asks, *max_wait_ms, places, host),
        Op::Add { key, delta, max } => optional_text(host.add(key, *delta, *max)),
        Op::Increment { key, by } => {
            host.increment(key, *by);
            "incremented".to_owned()
        }
        Op::WindowAdd {
            key,
            length_ms,
            slots,
            amount,
        } => result_text(host.window_add(key, *length_ms, *slots, *amount)),
        Op::Get(key) => optional_text(host.get(key).map(|cell| cell.as_ref().map(cell_text))),
        Op::GetAll(keys) => result_text(host.get_all(keys).map(|cells| {
            let texts = cells
                .iter()
                .map(|cell| cell.as_ref().map_or("none".to_owned(), cell_text));
            texts.collect::<Vec<_>>().join(" ")
        })),
        Op::CompareAndSwap { key, expected, value } => {
            optional_text(host.compare_and_swap(key, *expected, value.as_bytes()))
        }
        Op::Remove(key) => {
            host.remove(key);
            "removed".to_owned()
        }
        Op::CountAll(counts) => {
            let counts = counts
                .iter()
                .map(|count| Counted::new(&count.name, &count.label, count.by));
            host.count_all(&counts.collect::<Vec<_>>());
            "counted".to_owned()
        }
        Op::ShowCounters(Shown { key, fields }) => {
            host.show_counters(key, fields);
            "shown".to_owned()
        }
    }
}

fn cell_text(cell: &Cell) -> String {
    format!("{}@{}", String::from_utf8_lossy(&cell.value), cell.version)
}

fn admit_claims(asks: &[Take], max_wait_ms: u32, places: &[PlaceText], host: &dyn Host) -> String {
    let asks: Vec<Ask> = asks
        .iter()
        .map(|take| Ask {
            claim: build_claim(take),
            max_wait_ms,
        })
        .collect();
    let places: Vec<Place> = places
        .iter()
        .map(|place| Place {
            key: place.key.clone(),
            max: place.max,
        })
        .collect();
    result_text(host.admit(&asks, &places).map(|admission| match admission {
        Admission::Granted(wait) => format!("granted after {wait}"),
        Admission::Short(short) => format!("short {} {}", short.ask, short.wait_ms),
        Admission::Full(place) => format!("full {place}"),
    }))
}

fn build_claim(take: &Take) -> Claim {
    let bucket = Bucket {
        limit: take.limit,
        interval_ms: take.interval_ms,
        burst: take.burst,
    };
    Claim {
        key: take.key.clone(),
        bucket,
        tokens: take.tokens,
    }
}

fn result_text<T: Display>(result: Result<T, StateError>) -> String {
    result.map_or_else(|error| format!("error {}", error.name()), |value| value.to_string())
}

fn optional_text<T: Display>(result: Result<Option<T>, StateError>) -> String {
    result_text(result.map(|value| value.map_or_else(|| "none".to_owned(), |value| value.to_string())))
}

ctrlmesh_sdk::export_plugin!(Stateful);
