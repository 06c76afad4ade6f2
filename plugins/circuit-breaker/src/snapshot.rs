//! The reports of breakers for `/status`: one for each rule, and one for each keyed breaker that is not closed. The host's state has a
//! list of them, so that the reports of a rule are removed with the rule.

use ctrlmesh_sdk::Host;
use serde_json::json;

use crate::cell::{Cause, State, Status};
use crate::note::fnv1a;
use crate::rule::{BreakerRule, Policy};

/// Longest key of a report (`wit/host.wit`).
const MAX_KEY_BYTES: usize = 64;
/// Number of bytes kept of a longer key, before a hash of 16 digits.
const CUT_KEY_BYTES: usize = 47;
/// Longest value in the host's state (`wit/host.wit`).
const MAX_LIST_BYTES: usize = 4096;
/// Other instances may write at the same time, but rarely.
const MAX_TRIES: usize = 16;
/// State key of the list.
const LIST: &str = "shown";
/// Separates rule and value; neither contains it.
const SEPARATOR: char = '\u{1f}';

/// Rule name and key value.
pub(crate) type ReportId = (String, String);

/// Publishes the report of a rule's breaker; `value` is that of its key, or empty.
pub(crate) fn publish_report(rule: &str, value: &str, status: &Status, host: &dyn Host) {
    let key = report_key(rule, value);
    if value.is_empty() {
        host.put_report(&key, &report_json(rule, value, status, host));
    } else if status.state == State::Closed {
        host.remove_report(&key);
        edit_list(host, |shown| {
            shown.retain(|(name, other)| name != rule || other != value)
        });
    } else if edit_list(host, |shown| {
        let pair = (rule.to_owned(), value.to_owned());
        if !shown.contains(&pair) {
            shown.push(pair);
        }
    }) {
        host.put_report(&key, &report_json(rule, value, status, host));
    }
}

/// Publishes the report of a rule without state.
pub(crate) fn publish_forced_report(rule: &BreakerRule, host: &dyn Host) {
    let state = if rule.policy == Policy::ForceOpened {
        "Opened"
    } else {
        "Closed"
    };
    let text = json!({"name": rule.name, "state": state, "reason": "forced"}).to_string();
    host.put_report(&report_key(&rule.name, ""), &text);
}

/// Removes the reports of all other rules, and returns which they were.
pub(crate) fn keep_reports_of(host: &dyn Host, rules: &[&str]) -> Vec<ReportId> {
    let mut gone: Vec<ReportId> = Vec::new();
    edit_list(host, |shown| {
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
    for (rule, value) in &gone {
        host.remove_report(&report_key(rule, value));
    }
    gone
}

pub(crate) fn reason_text(status: &Status) -> String {
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

fn report_json(rule: &str, value: &str, status: &Status, host: &dyn Host) -> String {
    let state = match status.state {
        State::Closed => "Closed",
        State::Opened => "Opened",
        State::HalfOpen => "HalfOpen",
    };
    // Stored on the monotonic clock, shown as wall-clock time.
    let started_ms = host.unix_ms().saturating_sub(host.monotonic_ns() / 1_000_000);
    let time = |ms: u64| (ms != 0).then(|| format_rfc3339(started_ms.saturating_add(ms) / 1000));
    json!({
        "name": rule,
        "key": value,
        "state": state,
        "lastTransitionTime": time(status.since_ms),
        "recoversAt": time(status.recovers_ms),
        "reason": reason_text(status),
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
    format!("{start}~{:016x}", fnv1a(&key))
}

/// Edits the list of reports. Returns false without a change if it would become too long.
fn edit_list(host: &dyn Host, mut change: impl FnMut(&mut Vec<ReportId>)) -> bool {
    for _ in 0..MAX_TRIES {
        let cell = host.get(LIST).ok().flatten();
        let version = cell.as_ref().map_or(0, |cell| cell.version);
        let text = cell
            .map(|cell| String::from_utf8_lossy(&cell.value).into_owned())
            .unwrap_or_default();
        let mut shown: Vec<ReportId> = text
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

/// Seconds since 1970 as `2026-01-01T00:00:00Z`. Uses Howard Hinnant's `civil_from_days`.
fn format_rfc3339(seconds: u64) -> String {
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
    fn rfc3339_matches_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_767_225_600, "2026-01-01T00:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format_rfc3339(seconds), expected);
        }
    }

    #[test]
    fn long_keys_are_cut_and_stay_distinct() {
        assert_eq!(report_key("a", ""), "a");
        assert_eq!(report_key("a", "b"), "a/b");
        let [one, two] = ["1", "2"].map(|end| report_key("a", &format!("{}{end}", "ä".repeat(100))));
        assert!(one != two && one.len() <= MAX_KEY_BYTES, "{one}");
    }
}
