//! `meta.k8s.io/v1` tables for `kubectl get`: every kind has the columns that upstream gives a kind without printer
//! columns, Name and Age.

use std::time::{SystemTime, UNIX_EPOCH};

use ctrlmesh_wire::Query;
use serde_json::{Value, json};

use crate::form::partial;
use crate::object::{seconds_since_epoch, text};
use crate::refusal::Refusal;

/// What a row carries besides its cells (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    /// `null`
    Nothing,
    /// `PartialObjectMetadata`; the default.
    Metadata,
    /// The object whole.
    Object,
}

impl IncludeObject {
    pub(crate) fn read(query: &Query<'_>) -> Result<Self, Refusal> {
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

/// The column definitions.
pub(crate) fn columns() -> Value {
    let column = |name: &str, kind: &str, format: &str, description: &str| json!({ "name": name, "type": kind, "format": format, "description": description, "priority": 0 });
    json!([
        column("Name", "string", "name", "Name must be unique within a namespace."),
        column("Age", "string", "", "Time since the object was created."),
    ])
}

/// One row.
pub(crate) fn row(object: &Value, include: IncludeObject) -> Value {
    let carried = match include {
        IncludeObject::Nothing => Value::Null,
        IncludeObject::Metadata => partial(object),
        IncludeObject::Object => object.clone(),
    };
    json!({ "cells": [text(object, "name"), age(text(object, "creationTimestamp"))], "object": carried })
}

/// A table of some rows; a watch leaves the columns out of all but its first event.
pub(crate) fn table(metadata: &Value, with_columns: bool, rows: &[Value]) -> Value {
    let columns = if with_columns { columns() } else { Value::Null };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// The age in the largest unit that gives a number above one, roughly as `duration.HumanDuration`.
fn age(created: &str) -> String {
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
