//! The report of an entry in `/status` (WIT `report`): JSON values by key, bounded in number and size.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

use super::lock::lock_unpoisoned;

/// Maximum number of reports of an entry.
const MAX_REPORTS: usize = 64;
/// Maximum length of a key in bytes.
const MAX_KEY_BYTES: usize = 64;
/// Maximum length of a JSON text in bytes.
const MAX_JSON_BYTES: usize = 4096;

/// The reports of an entry.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<BTreeMap<String, Value>>);

impl Reports {
    /// Sets a report. Returns `false` if it is dropped, because it is too large, not JSON, or there are too many.
    pub(crate) fn put(&self, key: String, json: &str) -> bool {
        if key.len() > MAX_KEY_BYTES || json.len() > MAX_JSON_BYTES {
            return false;
        }
        let Ok(value) = serde_json::from_str(json) else {
            return false;
        };
        let mut reports = lock_unpoisoned(&self.0);
        let fits = reports.len() < MAX_REPORTS || reports.contains_key(&key);
        if fits {
            reports.insert(key, value);
        }
        fits
    }

    pub(crate) fn remove(&self, key: &str) {
        lock_unpoisoned(&self.0).remove(key);
    }

    pub(crate) fn snapshot(&self) -> BTreeMap<String, Value> {
        lock_unpoisoned(&self.0).clone()
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
        assert_eq!(reports.snapshot()["a"]["state"], "Closed");
        reports.remove("a");
        assert!(reports.snapshot().is_empty());
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
