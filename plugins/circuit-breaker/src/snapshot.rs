//! What `/status` shows of breakers: one report for each rule, and one for each of its breakers by key that is not closed.
//! A list of them lies in the host's state, so that what is shown of a rule goes when the rule goes.

use ctrlmesh_sdk::Host;
use serde_json::json;

use crate::breaker::{Breaker, Policy};
use crate::cell::{Cause, State, Status};
use crate::circuit::{self, Circuit};
use crate::note::hash;
use crate::recovery;

/// Longest key of a report (`wit/host.wit`).
const MAX_KEY_BYTES: usize = 64;
/// What is left of a longer one, before a hash of 16 digits.
const CUT_KEY_BYTES: usize = 47;
/// Longest value in the host's state (`wit/host.wit`).
const MAX_LIST_BYTES: usize = 4096;
/// Others may write at the same time, but rarely.
const MAX_TRIES: usize = 16;
/// Where the list lies.
const LIST: &str = "shown";
/// Between rule and value; neither has one.
const SEPARATOR: char = '\u{1f}';

/// A rule's name and a value of its key.
type Shown = (String, String);

/// Shows a breaker that has changed.
pub(crate) fn show(circuit: &Circuit<'_>, status: &Status, host: &dyn Host) {
    let (rule, value) = (circuit.breaker.name.as_str(), circuit.value.as_str());
    let key = report_key(rule, value);
    if value.is_empty() {
        host.put_report(&key, &report(circuit, status, host));
    } else if status.state == State::Closed {
        host.remove_report(&key);
        edit(host, |shown| {
            shown.retain(|(name, other)| name != rule || other != value)
        });
    } else if edit(host, |shown| {
        let pair = (rule.to_owned(), value.to_owned());
        if !shown.contains(&pair) {
            shown.push(pair);
        }
    }) {
        host.put_report(&key, &report(circuit, status, host));
    }
}

/// Shows a rule that has no state.
pub(crate) fn show_forced(breaker: &Breaker, host: &dyn Host) {
    let state = if breaker.policy == Policy::ForceOpened {
        "Opened"
    } else {
        "Closed"
    };
    let text = json!({"name": breaker.name, "state": state, "reason": "forced"}).to_string();
    host.put_report(&report_key(&breaker.name, ""), &text);
}

/// Forgets all rules but these: their reports, and their state.
pub(crate) fn keep_only(host: &dyn Host, rules: &[&str]) {
    let mut gone: Vec<Shown> = Vec::new();
    edit(host, |shown| {
        gone = shown
            .iter()
            .filter(|(rule, _)| !rules.contains(&rule.as_str()))
            .cloned()
            .collect();
        shown.retain(|(rule, _)| rules.contains(&rule.as_str()));
        for rule in rules {
            let pair = ((*rule).to_owned(), String::new());
            if !shown.contains(&pair) {
                shown.push(pair);
            }
        }
    });
    for (rule, value) in gone {
        host.remove_report(&report_key(&rule, &value));
        circuit::forget(host, &rule, &value);
        recovery::forget(host, &rule);
    }
}

/// Why a breaker is as it is.
pub(crate) fn reason(status: &Status) -> String {
    let counts = status.counts;
    match status.cause {
        Cause::None => String::new(),
        Cause::OverLimit => "its bucket was empty".to_owned(),
        Cause::Errors => format!("{} of {} requests failed", counts.failures, counts.requests),
        Cause::Slow => format!("{} of {} requests were slow", counts.slow, counts.requests),
        Cause::Consecutive => format!("{} requests failed one after another", counts.failures),
        Cause::Probe => "a probe failed".to_owned(),
    }
}

fn report(circuit: &Circuit<'_>, status: &Status, host: &dyn Host) -> String {
    let state = match status.state {
        State::Closed => "Closed",
        State::Opened => "Opened",
        State::HalfOpen => "HalfOpen",
    };
    // Kept on the clock that never jumps, shown on the one that people read.
    let started_ms = host.unix_ms().saturating_sub(circuit.now_ms());
    let time = |ms: u64| (ms != 0).then(|| rfc3339(started_ms.saturating_add(ms) / 1000));
    json!({
        "name": circuit.breaker.name,
        "key": circuit.value,
        "state": state,
        "lastTransitionTime": time(status.since_ms),
        "recoversAt": time(status.recovers_ms),
        "reason": reason(status),
        "requests": status.counts.requests,
        "failures": status.counts.failures,
        "slow": status.counts.slow,
    })
    .to_string()
}

fn report_key(rule: &str, value: &str) -> String {
    let key = if value.is_empty() {
        rule.to_owned()
    } else {
        format!("{rule}/{value}")
    };
    if key.len() <= MAX_KEY_BYTES {
        return key;
    }
    let start: String = key
        .chars()
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= CUT_KEY_BYTES).then_some(c)
        })
        .collect();
    format!("{start}~{:016x}", hash(&key))
}

/// Changes the list of what is shown. Not, if it would be too long.
fn edit(host: &dyn Host, mut change: impl FnMut(&mut Vec<Shown>)) -> bool {
    for _ in 0..MAX_TRIES {
        let cell = host.get(LIST).ok().flatten();
        let version = cell.as_ref().map_or(0, |cell| cell.version);
        let text = cell
            .map(|cell| String::from_utf8_lossy(&cell.value).into_owned())
            .unwrap_or_default();
        let mut shown: Vec<Shown> = text
            .lines()
            .filter_map(|line| line.split_once(SEPARATOR))
            .map(|(rule, value)| (rule.to_owned(), value.to_owned()))
            .collect();
        change(&mut shown);
        let lines: Vec<String> = shown
            .iter()
            .map(|(rule, value)| format!("{rule}{SEPARATOR}{value}\n"))
            .collect();
        let next = lines.concat();
        if next == text {
            return true;
        }
        if next.len() > MAX_LIST_BYTES {
            return false;
        }
        match host.compare_and_swap(LIST, version, next.as_bytes()) {
            Ok(Some(_)) => return true,
            Ok(None) => {}
            Err(_) => return false,
        }
    }
    false
}

/// Seconds since 1970 as `2026-01-01T00:00:00Z`; days to dates as Howard Hinnant's `civil_from_days`.
fn rfc3339(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * day + 2) / 153;
    let day = day - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), expected);
        }
    }

    #[test]
    fn long_keys_are_cut_and_stay_apart() {
        assert_eq!(report_key("a", ""), "a");
        assert_eq!(report_key("a", "b"), "a/b");
        let [one, two] = ["1", "2"].map(|end| report_key("a", &format!("{}{end}", "ä".repeat(100))));
        assert!(one != two && one.len() <= MAX_KEY_BYTES, "{one}");
    }
}
