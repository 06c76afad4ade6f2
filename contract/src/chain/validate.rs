//! Validates a decoded document: bounds, names, and uniqueness.
//!
//! Leaves to the sidecar what only it can know: whether the plugin is there and takes its settings.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use ctrlmesh_wire::{is_dns_label, is_dns_subdomain};

use super::{Entry, MAX_ENTRIES, MAX_MEMORY_MIB, MAX_SETTINGS_BYTES, MAX_TIMEOUT_MS, Origin};
use crate::error::{Mistakes, quote};

/// Longest namespace (RFC 1123 label).
const MAX_NAMESPACE: usize = 63;

/// Longest entry name: a rule kind, and a namespaced Kubernetes name (253).
const MAX_NAME: usize = 320;

/// Longest string of an origin.
const MAX_ORIGIN: usize = 253;

pub(super) fn validate_head(namespace: &str, generation: u64, mistakes: &mut Mistakes) {
    if namespace.len() > MAX_NAMESPACE || !is_dns_label(namespace) {
        mistakes.add(
            "namespace",
            format!(
                "{} is not a namespace; write the one that this chain is for",
                quote(namespace)
            ),
        );
    }
    if generation == 0 {
        mistakes.add("generation", "is 0, which means no chain at all; count from 1");
    }
}

/// `entries` with the position that each has in the document.
pub(super) fn validate_entries<'e>(entries: impl Iterator<Item = (usize, &'e Entry)>, mistakes: &mut Mistakes) {
    let mut names = HashMap::new();
    for (at, entry) in entries {
        if at == MAX_ENTRIES {
            mistakes.add("entries", format!("has more than {MAX_ENTRIES} entries; merge some"));
        }
        let path = format!("entries[{at}]");
        validate_entry(entry, &path, mistakes);
        if let Some(first) = names.insert(entry.name.as_str(), at) {
            let name = quote(&entry.name);
            mistakes.add(
                format!("{path}.name"),
                format!("{name} is also the name of entries[{first}]; write another"),
            );
        }
    }
}

fn validate_entry(entry: &Entry, path: &str, mistakes: &mut Mistakes) {
    if !is_entry_name(&entry.name) {
        let name = quote(&entry.name);
        mistakes.add(
            format!("{path}.name"),
            format!(
                "{name} is not a name for an entry; use at most {MAX_NAME} lower-case letters, digits, '-', '.' and '/', \
                 with a letter or digit at both ends of each part, as in shard-selector/operator-0"
            ),
        );
    }
    entry.pod_selector.validate(&format!("{path}.podSelector"), mistakes);
    validate_range(
        entry.timeout_ms,
        1..=MAX_TIMEOUT_MS,
        "milliseconds",
        || format!("{path}.timeoutMs"),
        mistakes,
    );
    validate_range(
        entry.memory_mib,
        1..=MAX_MEMORY_MIB,
        "MiB",
        || format!("{path}.memoryMiB"),
        mistakes,
    );
    if !entry.settings.value().is_object() {
        mistakes.add(
            format!("{path}.settings"),
            "is not a mapping; write one, or leave it out",
        );
    }
    let size = entry.settings.json().len();
    if size > MAX_SETTINGS_BYTES {
        let problem = format!("has {size} bytes as JSON, at most {MAX_SETTINGS_BYTES} are allowed; split the entry");
        mistakes.add(format!("{path}.settings"), problem);
    }
    if let Some(origin) = &entry.origin {
        validate_origin(origin, path, mistakes);
    }
}

fn validate_origin(origin: &Origin, path: &str, mistakes: &mut Mistakes) {
    for (field, text) in [("kind", &origin.kind), ("name", &origin.name), ("uid", &origin.uid)] {
        if text.len() > MAX_ORIGIN {
            mistakes.add(
                format!("{path}.origin.{field}"),
                format!("is longer than {MAX_ORIGIN} bytes; shorten it"),
            );
        }
    }
}

fn validate_range(
    number: u32,
    range: RangeInclusive<u32>,
    unit: &str,
    path: impl FnOnce() -> String,
    mistakes: &mut Mistakes,
) {
    if !range.contains(&number) {
        let (start, end) = range.into_inner();
        mistakes.add(path(), format!("is {number}; write {start} to {end} {unit}"));
    }
}

/// Parts between `/`, each a DNS subdomain, so that a name can stand in a path, a label and a log line.
fn is_entry_name(name: &str) -> bool {
    name.len() <= MAX_NAME && name.split('/').all(is_dns_subdomain)
}
