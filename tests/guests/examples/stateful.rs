//! Does the state operations of its settings on each request, and answers with what came of them: 400, message
//! `<result>; <result>; …` (`granted`, `wait <ms>`, a number, a value, `none`, `error <name>`).
//!
//! ```yaml
//! ops:
//! - take: [{key: b, limit: 1, intervalMs: 1000, burst: 1, tokens: 1}]
//! - add: {key: c, delta: 1, max: 3}
//! - windowAdd: {key: w, lengthMs: 1000, slots: 10, amount: 1}
//! - get: k
//! - compareAndSwap: {key: k, expected: 0, value: text}
//! - remove: k
//! ```

use std::fmt::Display;

use ctrlmesh_sdk::{
    Bucket, Claim, Grant, Host, InstanceInfo, Plugin, Refusal, Request, RequestVerdict, StateError, Subscription,
};
use ctrlmesh_test_guests::everything;
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

struct Stateful(Vec<Op>);

impl Plugin for Stateful {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        Ok((Stateful(settings.ops), everything()))
    }

    fn on_request(&mut self, _: &dyn Request, host: &dyn Host) -> RequestVerdict {
        let results: Vec<String> = self.0.iter().map(|op| perform(op, host)).collect();
        RequestVerdict::refuse(Refusal::new(400, results.join("; ")))
    }
}

fn perform(op: &Op, host: &dyn Host) -> String {
    match op {
        Op::Take(takes) => {
            let claims: Vec<Claim> = takes.iter().map(claim).collect();
            text(host.take(&claims).map(|grant| match grant {
                Grant::Granted => "granted".to_owned(),
                Grant::WaitMs(ms) => format!("wait {ms}"),
            }))
        }
        Op::Add { key, delta, max } => optional(host.add(key, *delta, *max)),
        Op::WindowAdd {
            key,
            length_ms,
            slots,
            amount,
        } => text(host.window_add(key, *length_ms, *slots, *amount)),
        Op::Get(key) => optional(
            host.get(key)
                .map(|cell| cell.map(|cell| format!("{}@{}", String::from_utf8_lossy(&cell.value), cell.version))),
        ),
        Op::CompareAndSwap { key, expected, value } => {
            optional(host.compare_and_swap(key, *expected, value.as_bytes()))
        }
        Op::Remove(key) => {
            host.remove(key);
            "removed".to_owned()
        }
    }
}

fn claim(take: &Take) -> Claim {
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

fn text<T: Display>(result: Result<T, StateError>) -> String {
    result.map_or_else(|error| format!("error {}", error.name()), |value| value.to_string())
}

fn optional<T: Display>(result: Result<Option<T>, StateError>) -> String {
    text(result.map(|value| value.map_or_else(|| "none".to_owned(), |value| value.to_string())))
}

ctrlmesh_sdk::export_plugin!(Stateful);
