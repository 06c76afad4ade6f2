//! Does the state operations of its settings on each request, and answers with the results: 400, message `<result>; <result>; …`
//! (`granted`, `wait <ms>`, a number, a value, `none`, `error <name>`).
//!
//! ```yaml
//! ops:
//! - take: [{key: b, limit: 1, intervalMs: 1000, burst: 1, tokens: 1}]
//! - admit: {asks: [{key: b, limit: 1, intervalMs: 1000, burst: 1, tokens: 1}], maxWaitMs: 500, places: [{key: p, max: 1}]}
//! - add: {key: c, delta: 1, max: 3}
//! - windowAdd: {key: w, lengthMs: 1000, slots: 10, amount: 1}
//! - get: k
//! - compareAndSwap: {key: k, expected: 0, value: text}
//! - remove: k
//! ```

use std::fmt::Display;

use ctrlmesh_sdk::{
    Admission, Ask, Bucket, Claim, Grant, Host, InstanceInfo, Place, Plugin, Refusal, Request, RequestVerdict,
    StateError, Subscription,
};
use ctrlmesh_test_guests::subscribe_to_everything;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    ops: Vec<Op>,
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
    WindowAdd {
        key: String,
        length_ms: u32,
        slots: u32,
        amount: u64,
    },
    Get(String),
    CompareAndSwap {
        key: String,
        expected: u64,
        value: String,
    },
    Remove(String),
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

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
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
        Op::WindowAdd {
            key,
            length_ms,
            slots,
            amount,
        } => result_text(host.window_add(key, *length_ms, *slots, *amount)),
        Op::Get(key) => optional_text(
            host.get(key)
                .map(|cell| cell.map(|cell| format!("{}@{}", String::from_utf8_lossy(&cell.value), cell.version))),
        ),
        Op::CompareAndSwap { key, expected, value } => {
            optional_text(host.compare_and_swap(key, *expected, value.as_bytes()))
        }
        Op::Remove(key) => {
            host.remove(key);
            "removed".to_owned()
        }
    }
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
