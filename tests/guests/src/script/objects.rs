//! Decisions on objects of a response, as JSON.

use std::collections::BTreeMap;

use ctrlmesh_sdk::{Host, ObjectMetadata, Request};
use serde::Deserialize;

/// Keeps objects for which all fields that are set hold; without fields, all objects.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ObjectsText {
    names: Option<Vec<String>>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// Number of annotations that the host has handed over.
    annotation_count: Option<usize>,
    /// Kind and name of the controller: `ReplicaSet/web`.
    controller: Option<String>,
    /// Note that the plugin left with the request.
    note: Option<u64>,
    /// The client's `User-Agent`.
    user_agent: Option<String>,
    /// Traps when it is asked about an object of this name.
    trap_at: Option<String>,
    /// Flags that are added behind those of the objects.
    more_flags: usize,
    /// Leaves the flag of the last object out.
    leaves_last_out: bool,
}

impl ObjectsText {
    /// The flags of these objects. Counts them in the metrics `objects` and, for each call, `object_calls`.
    ///
    /// # Panics
    ///
    /// The text says so.
    #[must_use]
    pub fn flags(&self, req: &dyn Request, objects: &[ObjectMetadata], host: &dyn Host) -> Vec<bool> {
        host.count("object_calls", "", 1);
        host.count("objects", "", objects.len() as u64);
        let mut flags: Vec<bool> = objects.iter().map(|object| self.keeps(req, object)).collect();
        if self.leaves_last_out {
            flags.pop();
        }
        flags.extend(std::iter::repeat_n(true, self.more_flags));
        flags
    }

    fn keeps(&self, req: &dyn Request, object: &ObjectMetadata) -> bool {
        assert_ne!(self.trap_at.as_ref(), Some(&object.name), "trapped on purpose");
        let is_in = |names: &Vec<String>| names.contains(&object.name);
        let controller = object.controller.as_ref();
        let controller = controller.map(|controller| format!("{}/{}", controller.kind, controller.name));
        self.names.as_ref().is_none_or(is_in)
            && self
                .labels
                .iter()
                .all(|(key, value)| object.label(key) == Some(value.as_str()))
            && self
                .annotations
                .iter()
                .all(|(key, value)| object.annotation(key) == Some(value.as_str()))
            && self
                .annotation_count
                .is_none_or(|count| object.annotations.len() == count)
            && (self.controller.is_none() || self.controller == controller)
            && self.note.is_none_or(|note| req.note() == note)
            && self.user_agent.as_ref().is_none_or(|agent| req.user_agent() == *agent)
    }
}
