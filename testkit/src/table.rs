//! `meta.k8s.io/v1` tables for `kubectl get`. Every kind has the columns of a kind without printer columns: Name and Age.

use std::time::{SystemTime, UNIX_EPOCH};

use ctrlmesh_wire::Query;
use serde_json::{Value, json};

use crate::object::{metadata_text, partial_metadata, seconds_since_epoch};
use crate::refusal::Refusal;

/// The content of a row besides its cells (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    /// `null`
    Nothing,
    /// `PartialObjectMetadata`; the default.
    Metadata,
    /// The complete object.
    Object,
}

impl IncludeObject {
    pub(crate) fn from_query(query: &Query<'_>) -> Result<Self, Refusal> {
        match query.get("includeObject").as_deref() {
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some("None") => Ok(Self::Nothing),
            Some("Object") => Ok(Self::Object),
            Some(other) => Err(Refusal::bad_request(format!(
                "unrecognized includeObject value: {other}"
            ))),
        }
    }
}

pub(crate) fn column_definitions() -> Value {
    let column = |name: &str, kind: &str, format: &str, description: &str| json!({ "name": name, "type": kind, "format": format, "description": description, "priority": 0 });
    json!([
        column("Name", "string", "name", "Name must be unique within a namespace."),
        column("Age", "string", "", "Time since the object was created."),
    ])
}

pub(crate) fn build_row(object: &Value, include: IncludeObject) -> Value {
    let carried = match include {
        IncludeObject::Nothing => Value::Null,
        IncludeObject::Metadata => partial_metadata(object),
        IncludeObject::Object => object.clone(),
    };
    json!({ "cells": [metadata_text(object, "name"), format_age(metadata_text(object, "creationTimestamp"))], "object": carried })
}

/// A table; a watch leaves out the columns after its first event.
pub(crate) fn build_table(metadata: &Value, with_columns: bool, rows: &[Value]) -> Value {
    let columns = if with_columns {
        column_definitions()
    } else {
        Value::Null
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// The age in the largest unit that gives a number above one, roughly like `duration.HumanDuration`.
fn format_age(created: &str) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let Some(created) = seconds_since_epoch(created) else {
        return "<unknown>".into();
    };
    match now.saturating_sub(created) {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7_200 => format!("{}m", seconds / 60),
        seconds @ 7_200..172_800 => format!("{}h", seconds / 3_600),
        seconds => format!("{}d", seconds / 86_400),
    }
}
