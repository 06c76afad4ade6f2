//! A JSON value to a [`Chain`]: unknown fields refused, and every mistake found, not just the first.
//!
//! Written by hand because serde's derive stops at the first mistake and does not say where it is. Leaves bounds and
//! relations between fields to `validate.rs`.

mod fields;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Chain, DEFAULT_MEMORY_MIB, DEFAULT_TIMEOUT_MS, Entry, FailurePolicy, Origin, Settings, validate};
use crate::digest::Digest;
use crate::error::{Error, Mistakes, quote};
use crate::names::CHAIN_API_VERSION;
use crate::selector::{LabelSelector, Operator, Requirement};
use crate::suggest::did_you_mean;
use fields::{Fields, I32, LIST, MAPPING, TEXT, U32, U64, convert_field};

/// Reads and validates a document.
pub(super) fn decode_chain(document: Value) -> Result<Chain, Error> {
    let mut mistakes = Mistakes::default();
    let (namespace, generation, list) = decode_head(document, &mut mistakes);
    let mut entries = Vec::new();
    for (at, value) in list.into_iter().enumerate() {
        if let Some(entry) = decode_entry(value, &format!("entries[{at}]"), &mut mistakes) {
            entries.push((at, entry));
        }
    }
    validate::validate_entries(entries.iter().map(|(at, entry)| (*at, entry)), &mut mistakes);
    mistakes.into_result()?;
    Ok(Chain {
        namespace,
        generation,
        entries: entries.into_iter().map(|(_, entry)| entry).collect(),
    })
}

fn decode_head(document: Value, mistakes: &mut Mistakes) -> (String, u64, Vec<Value>) {
    let Some(mut fields) = Fields::from_value(document, "", mistakes) else {
        return (String::new(), 0, Vec::new());
    };
    if let Some(version) = fields.required("apiVersion", &TEXT)
        && version != CHAIN_API_VERSION
    {
        let version = quote(&version);
        fields.add_mistake(
            "apiVersion",
            &format!(
                "is {version}, which this release does not know; write {CHAIN_API_VERSION}, or update the sidecar"
            ),
        );
    }
    let namespace = fields.required("namespace", &TEXT);
    let generation = fields.required("generation", &U64);
    let entries = fields.required("entries", &LIST).unwrap_or_default();
    if let (Some(namespace), Some(generation)) = (&namespace, generation) {
        validate::validate_head(namespace, generation, fields.mistakes());
    }
    fields.finish();
    (namespace.unwrap_or_default(), generation.unwrap_or_default(), entries)
}

/// `None` only with a mistake noted.
fn decode_entry(value: Value, path: &str, mistakes: &mut Mistakes) -> Option<Entry> {
    let mut fields = Fields::from_value(value, path, mistakes)?;
    let name = fields.required("name", &TEXT);
    let plugin = decode_digest(&mut fields);
    let selector = fields.optional("podSelector", &MAPPING).map(Value::Object);
    let order = fields.optional("order", &I32).unwrap_or_default();
    let on_failure = failure_policy(&mut fields);
    let timeout_ms = fields.optional("timeoutMs", &U32).unwrap_or(DEFAULT_TIMEOUT_MS);
    let memory_mib = fields.optional("memoryMiB", &U32).unwrap_or(DEFAULT_MEMORY_MIB);
    let settings = decode_settings(&mut fields);
    let origin = fields.optional("origin", &MAPPING).map(Value::Object);
    fields.finish();
    let pod_selector = selector.map_or_else(LabelSelector::default, |selector| {
        label_selector(selector, &format!("{path}.podSelector"), mistakes)
    });
    let origin = origin.and_then(|value| decode_origin(value, &format!("{path}.origin"), mistakes));
    Some(Entry {
        name: name?,
        plugin: plugin?,
        pod_selector,
        order,
        on_failure,
        timeout_ms,
        memory_mib,
        settings,
        origin,
    })
}

fn decode_digest(fields: &mut Fields<'_>) -> Option<Digest> {
    match fields.required("plugin", &TEXT)?.parse() {
        Ok(digest) => Some(digest),
        Err(error) => {
            fields.add_mistake("plugin", &error.to_string());
            None
        }
    }
}

fn failure_policy(fields: &mut Fields<'_>) -> FailurePolicy {
    match fields.optional("onFailure", &TEXT).as_deref() {
        None | Some("Closed") => FailurePolicy::Closed,
        Some("Open") => FailurePolicy::Open,
        Some(other) => {
            fields.add_mistake(
                "onFailure",
                &format!(
                    "is {}; write Closed (refuse the request) or Open (skip the plugin){}",
                    quote(other),
                    did_you_mean(other, ["Closed", "Open"])
                ),
            );
            FailurePolicy::Closed
        }
    }
}

/// The hash may be left out. If it is there it must fit: somebody edited the settings and not the hash, or else the hash
/// of another release means something else, and then status would lie.
fn decode_settings(fields: &mut Fields<'_>) -> Settings {
    let settings = fields
        .optional("settings", &MAPPING)
        .map_or_else(Settings::default, |map| Settings::new(Value::Object(map)));
    if let Some(hash) = fields.optional("settingsHash", &TEXT)
        && hash != settings.hash()
    {
        let right = settings.hash();
        fields.add_mistake(
            "settingsHash",
            &format!("is {}, but the settings hash to {right}; leave it out", quote(&hash)),
        );
    }
    settings
}

fn label_selector(value: Value, path: &str, mistakes: &mut Mistakes) -> LabelSelector {
    let Some(mut fields) = Fields::from_value(value, path, mistakes) else {
        return LabelSelector::default();
    };
    let labels = fields.optional("matchLabels", &MAPPING).unwrap_or_default();
    let expressions = fields.optional("matchExpressions", &LIST).unwrap_or_default();
    fields.finish();
    let mut match_labels = BTreeMap::new();
    for (key, value) in labels {
        let path = format!("{path}.matchLabels.{}", quote(&key));
        if let Some(value) = convert_field(value, &path, &TEXT, mistakes) {
            match_labels.insert(key, value);
        }
    }
    let match_expressions = expressions
        .into_iter()
        .enumerate()
        .filter_map(|(at, value)| decode_requirement(value, &format!("{path}.matchExpressions[{at}]"), mistakes))
        .collect();
    LabelSelector {
        match_labels,
        match_expressions,
    }
}

fn decode_requirement(value: Value, path: &str, mistakes: &mut Mistakes) -> Option<Requirement> {
    let mut fields = Fields::from_value(value, path, mistakes)?;
    let key = fields.required("key", &TEXT);
    let operator = fields.required("operator", &TEXT).and_then(|text| {
        let operator = Operator::parse(&text);
        if operator.is_none() {
            fields.add_mistake(
                "operator",
                &format!(
                    "is {}; write In, NotIn, Exists or DoesNotExist{}",
                    quote(&text),
                    did_you_mean(&text, ["In", "NotIn", "Exists", "DoesNotExist"])
                ),
            );
        }
        operator
    });
    let values = fields.optional("values", &LIST).unwrap_or_default();
    let values_path = fields.path("values");
    fields.finish();
    let values = values
        .into_iter()
        .filter_map(|value| convert_field(value, &values_path, &TEXT, mistakes))
        .collect();
    Some(Requirement {
        key: key?,
        operator: operator?,
        values,
    })
}

fn decode_origin(value: Value, path: &str, mistakes: &mut Mistakes) -> Option<Origin> {
    let mut fields = Fields::from_value(value, path, mistakes)?;
    let kind = fields.required("kind", &TEXT);
    let name = fields.required("name", &TEXT);
    let uid = fields.optional("uid", &TEXT).unwrap_or_default();
    let generation = fields.optional("generation", &U64).unwrap_or_default();
    fields.finish();
    Some(Origin {
        kind: kind?,
        name: name?,
        uid,
        generation,
    })
}
