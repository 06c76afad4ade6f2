//! The reports of an entry in `/status` (WIT `report`): by key a JSON value, or counters of the entry's state. Bounded in number and size.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

use crate::lock::lock_unpoisoned;

/// Maximum number of reports of an entry.
const MAX_REPORTS: usize = 64;
/// Maximum length of a key in bytes.
const MAX_KEY_BYTES: usize = 64;
/// Maximum length in bytes of a JSON text, and of all names and keys in a report of counters.
const MAX_JSON_BYTES: usize = 4096;

/// Maximum number of counters in a report.
const MAX_FIELDS: usize = 16;

/// The reports of an entry.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<BTreeMap<String, Report>>);

#[derive(Debug, Clone)]
enum Report {
    Value(Value),
    /// Names of fields, each with the key of its counter.
    Counters(Vec<(String, String)>),
}

impl Reports {
    /// Sets a report. Returns `false` if it is dropped, because it is too large, not JSON, or there are too many.
    pub(crate) fn put(&self, key: String, json: &str) -> bool {
        if key.len() > MAX_KEY_BYTES || json.len() > MAX_JSON_BYTES {
            return false;
        }
        let Ok(value) = serde_json::from_str(json) else {
            return false;
        };
        self.set(key, Report::Value(value))
    }

    /// Shows counters under a key: the names of fields, each with the key of its counter. Returns `false` if the report is dropped.
    pub(crate) fn show_counters(&self, key: String, fields: Vec<(String, String)>) -> bool {
        let bytes: usize = fields.iter().map(|(field, counter)| field.len() + counter.len()).sum();
        let is_small = key.len() <= MAX_KEY_BYTES && fields.len() <= MAX_FIELDS && bytes <= MAX_JSON_BYTES;
        is_small && self.set(key, Report::Counters(fields))
    }

    fn set(&self, key: String, report: Report) -> bool {
        let mut reports = lock_unpoisoned(&self.0);
        let fits = reports.len() < MAX_REPORTS || reports.contains_key(&key);
        if fits {
            reports.insert(key, report);
        }
        fits
    }

    pub(crate) fn remove(&self, key: &str) {
        lock_unpoisoned(&self.0).remove(key);
    }

    /// All reports as JSON. `counter` reads a counter of the entry's state.
    pub(crate) fn render(&self, counter: impl Fn(&str) -> i64) -> BTreeMap<String, Value> {
        let reports = lock_unpoisoned(&self.0).clone();
        let rendered = reports.into_iter().map(|(key, report)| match report {
            Report::Value(value) => (key, value),
            Report::Counters(fields) => {
                let fields = fields.into_iter().map(|(field, key)| (field, counter(&key).into()));
                (key, Value::Object(fields.collect()))
            }
        });
        rendered.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_value_of_key_is_shown_until_it_is_removed() {
        let reports = Reports::default();
        assert!(reports.put("a".into(), r#"{"state":"Opened"}"#));
        assert!(reports.put("a".into(), r#"{"state":"Closed"}"#));
        assert_eq!(reports.render(|_| 0)["a"]["state"], "Closed");
        reports.remove("a");
        assert!(reports.render(|_| 0).is_empty());
    }

    #[test]
    fn counters_are_read_when_reports_are_rendered() {
        let reports = Reports::default();
        let fields = || {
            vec![
                ("matched".to_owned(), "m/rule".to_owned()),
                ("fired".to_owned(), "f/rule".to_owned()),
            ]
        };
        assert!(reports.show_counters("rule".into(), fields()));
        let rendered = reports.render(|key| if key == "m/rule" { 7 } else { 0 });
        assert_eq!(rendered["rule"], serde_json::json!({"matched": 7, "fired": 0}));
        assert!(reports.put("rule".into(), "1"), "a report of another kind replaces it");
        assert_eq!(reports.render(|_| 0)["rule"], 1);
    }

    #[test]
    fn report_of_counters_is_dropped_when_too_large() {
        let reports = Reports::default();
        let field = |name: usize, key: usize| ("x".repeat(name), "x".repeat(key));
        assert!(reports.show_counters(
            "a".into(),
            vec![field(100, MAX_JSON_BYTES / MAX_FIELDS - 100); MAX_FIELDS]
        ));
        assert!(!reports.show_counters("b".into(), vec![field(1, 1); MAX_FIELDS + 1]));
        assert!(!reports.show_counters("b".into(), vec![field(1, MAX_JSON_BYTES)]));
        assert!(!reports.show_counters("x".repeat(MAX_KEY_BYTES + 1), vec![field(1, 1)]));
    }

    #[test]
    fn report_is_dropped_when_invalid_too_large_or_too_many() {
        let reports = Reports::default();
        assert!(!reports.put("a".into(), "{"));
        assert!(!reports.put("x".repeat(MAX_KEY_BYTES + 1), "1"));
        assert!(!reports.put("a".into(), &format!("\"{}\"", "x".repeat(MAX_JSON_BYTES))));
        for number in 0..MAX_REPORTS {
            assert!(reports.put(number.to_string(), "1"));
        }
        assert!(!reports.put("more".into(), "1"));
        assert!(reports.put("0".into(), "2"), "a known key can still change");
    }
}
