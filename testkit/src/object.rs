//! One stored object, and accessors for the metadata that the server uses. [`crate::write`] decides what a write may change.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use bytes::Bytes;
use serde_json::{Map, Value, json};

/// An object at one resource version, with its JSON cached: lists and watches copy bytes instead of serializing.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) value: Value,
    pub(crate) encoded: Bytes,
    pub(crate) resource_version: u64,
}

impl Object {
    /// Sets `resource_version` in `value`.
    pub(crate) fn new(mut value: Value, resource_version: u64) -> Self {
        set_metadata(
            &mut value,
            "resourceVersion",
            Value::String(resource_version.to_string()),
        );
        Self::without_version(value, resource_version)
    }

    /// Like `new`, but leaves `metadata.resourceVersion` unchanged: for the answer to a dry run.
    pub(crate) fn without_version(value: Value, resource_version: u64) -> Self {
        let encoded = Bytes::from(value.to_string());
        Self {
            value,
            encoded,
            resource_version,
        }
    }
}

/// The key of an object in its collection. The namespace is empty for cluster-scoped objects.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    pub(crate) fn of_object(object: &Value) -> Self {
        Self::new(metadata_text(object, "namespace"), metadata_text(object, "name"))
    }
}

pub(crate) fn metadata(value: &Value) -> Option<&Map<String, Value>> {
    value.get("metadata")?.as_object()
}

/// The object as `PartialObjectMetadata`.
pub(crate) fn partial_metadata(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

/// A string of the metadata; empty if absent.
pub(crate) fn metadata_text<'a>(value: &'a Value, field: &str) -> &'a str {
    metadata(value)
        .and_then(|m| m.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn finalizers(value: &Value) -> Vec<&str> {
    let finalizers = metadata(value)
        .and_then(|m| m.get("finalizers"))
        .and_then(Value::as_array);
    finalizers.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether a deletion waits for finalizers.
pub(crate) fn is_deleting(value: &Value) -> bool {
    !metadata_text(value, "deletionTimestamp").is_empty()
}

/// `metadata.generation`; zero if the kind has none.
pub(crate) fn generation(value: &Value) -> i64 {
    metadata(value)
        .and_then(|m| m.get("generation"))
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// Sets a field of the metadata, creating the metadata if needed. `Null` removes the field.
pub(crate) fn set_metadata(value: &mut Value, field: &str, to: Value) {
    let Some(object) = value.as_object_mut() else { return };
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    let Some(metadata) = metadata.as_object_mut() else {
        return;
    };
    if to.is_null() {
        metadata.remove(field);
    } else {
        metadata.insert(field.into(), to);
    }
}

/// Copies a field of the metadata from one object to another, or removes it if it is absent in `from`.
pub(crate) fn copy_metadata(from: &Value, to: &mut Value, field: &str) {
    let kept = metadata(from)
        .and_then(|m| m.get(field))
        .cloned()
        .unwrap_or(Value::Null);
    set_metadata(to, field, kept);
}

/// Random bytes. A test server does not fail when the operating system's generator does: it returns zeros, and a collision is reported
/// as `AlreadyExists`.
fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if SystemRandom::new().fill(&mut bytes).is_err() {
        tracing::warn!("no random numbers from the operating system");
    }
    bytes
}

/// A new UID: a version 4 UUID.
pub(crate) fn new_uid() -> String {
    let mut bits = u128::from_be_bytes(random_bytes());
    bits = bits & !(0xf << 76) | (0x4 << 76);
    bits = bits & !(0x3 << 62) | (0x2 << 62);
    let (a, b, c) = (bits >> 96, (bits >> 80) & 0xffff, (bits >> 64) & 0xffff);
    let (d, e) = ((bits >> 48) & 0xffff, bits & 0xffff_ffff_ffff);
    format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
}

/// `prefix` and five random characters, like apiserver `pkg/storage/names`.
pub(crate) fn generated_name(prefix: &str) -> String {
    // Upstream's alphabet of 27 characters, without vowels, so that it never spells words.
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const LONGEST_PREFIX: usize = 63 - 5;
    let mut name: String = prefix.chars().take(LONGEST_PREFIX).collect();
    for byte in random_bytes::<5>() {
        name.extend(
            ALPHABET
                .get(usize::from(byte) % ALPHABET.len())
                .map(|letter| char::from(*letter)),
        );
    }
    name
}

/// The current time as `metav1.Time` prints it: RFC 3339, whole seconds, UTC.
pub(crate) fn now_rfc3339() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    format_timestamp(seconds)
}

/// Converts days to a civil date by <https://howardhinnant.github.io/date_algorithms.html#civil_from_days>, for times after 1970
/// only.
fn format_timestamp(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Seconds since 1970 of a time that `now` printed; `None` for any other form.
pub(crate) fn seconds_since_epoch(time: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| time.get(range)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if time.len() != 20 || year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let year = if month <= 2 { year - 1 } else { year };
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_print_as_rfc_3339_and_read_back() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(format_timestamp(seconds), text);
            assert_eq!(seconds_since_epoch(text), Some(seconds));
        }
        assert_eq!(seconds_since_epoch("yesterday"), None);
    }

    #[test]
    fn uids_are_version_4_and_differ() {
        let (a, b) = (new_uid(), new_uid());
        assert_ne!(a, b);
        assert_eq!((a.len(), &a[14..15]), (36, "4"));
        assert!("89ab".contains(&a[19..20]), "{a}");
    }
}
