//! Objects of a response in the cases file, and which of them a client would get.

use std::collections::BTreeMap;
use std::rc::Rc;

use ctrlmesh_proxy::harness::Harness;
use ctrlmesh_proxy::plugin::request_view::RequestView;
use ctrlmesh_proxy::plugin::verdict::{RequestAction, RequestEdit, RequestVerdict};
use ctrlmesh_proxy::wasm::Fault;
use ctrlmesh_wire::objects::{Controller, ObjectMetadata, TextPairs};
use serde::Deserialize;
use serde_json::Value;

/// Objects for one request. A sidecar calls a plugin with as many.
pub(super) const MAX_OBJECTS: usize = 256;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ObjectText {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    controller: Option<ControllerText>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ControllerText {
    #[serde(default)]
    api_version: String,
    kind: String,
    name: String,
    #[serde(default)]
    uid: String,
}

/// Reads the metadata of an object.
///
/// # Errors
/// The text says which value is invalid and what to write instead.
pub(super) fn parse_object(value: Value) -> Result<ObjectMetadata<'static>, String> {
    let text: ObjectText = serde_json::from_value(value).map_err(|error| {
        format!("is no metadata of an object: {error}; write it like {{namespace: a, name: web, labels: {{app: web}}}}")
    })?;
    Ok(ObjectMetadata {
        namespace: text.namespace.into(),
        name: text.name.into(),
        uid: text.uid.into(),
        resource_version: text.resource_version.into(),
        labels: text_pairs(text.labels),
        annotations: text_pairs(text.annotations),
        controller: text.controller.map(|controller| Controller {
            api_version: controller.api_version.into(),
            kind: controller.kind.into(),
            name: controller.name.into(),
            uid: controller.uid.into(),
        }),
    })
}

fn text_pairs(pairs: BTreeMap<String, String>) -> TextPairs<'static> {
    let pairs = pairs.into_iter().map(|(key, value)| (key.into(), value.into()));
    pairs.collect()
}

/// The names of the objects that the client gets by this verdict; `None` if the request does not reach the API server. Asks the plugin if
/// the verdict asks about objects. `view` is the one on which the verdict was given.
///
/// # Errors
/// The plugin fails.
pub(super) fn kept_names(
    plugin: &mut Harness,
    view: &Rc<RequestView>,
    verdict: &RequestVerdict,
    objects: &[ObjectMetadata<'static>],
) -> Result<Option<Vec<String>>, Fault> {
    let RequestAction::Proceed(edits) = &verdict.action else {
        return Ok(None);
    };
    let matches_all = |object: &&ObjectMetadata<'static>| {
        edits.iter().all(|edit| match edit {
            RequestEdit::KeepObjects(predicate) | RequestEdit::RequireObjectMatch(predicate, _) => {
                predicate.predicate().matches(object)
            }
            _ => true,
        })
    };
    let mut kept: Vec<&ObjectMetadata<'static>> = objects.iter().filter(matches_all).collect();
    let questions = edits.iter().filter_map(RequestEdit::question).cloned();
    let question = questions.reduce(|all, more| all.union(&more));
    if let Some(question) = question.filter(|_| !kept.is_empty()) {
        let told = kept.iter().map(|object| question.metadata_of(object)).collect();
        let mut flags = plugin.objects_with(view, told)?.into_iter();
        kept.retain(|_| flags.next().unwrap_or_default());
    }
    Ok(Some(kept.into_iter().map(full_name).collect()))
}

fn full_name(object: &ObjectMetadata<'_>) -> String {
    if object.namespace.is_empty() {
        object.name.to_string()
    } else {
        format!("{}/{}", object.namespace, object.name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn metadata_of_an_object_is_read() {
        let object = parse_object(json!({
            "namespace": "a", "name": "x", "uid": "u", "resourceVersion": "7", "labels": { "l": "1" },
            "annotations": { "n": "2" }, "controller": { "apiVersion": "apps/v1", "kind": "K", "name": "k", "uid": "v" },
        }));
        let object = object.unwrap();
        assert_eq!((&*object.namespace, &*object.name, &*object.uid), ("a", "x", "u"));
        assert_eq!(&*object.resource_version, "7");
        assert_eq!((object.label("l"), object.annotation("n")), (Some("1"), Some("2")));
        let controller = object.controller.clone().unwrap();
        assert_eq!((&*controller.api_version, &*controller.kind), ("apps/v1", "K"));
        assert_eq!((&*controller.name, &*controller.uid), ("k", "v"));
        assert_eq!(full_name(&object), "a/x");
        assert_eq!(full_name(&parse_object(json!({ "name": "y" })).unwrap()), "y");
    }

    #[test]
    fn mistake_in_an_object_is_named() {
        for (value, says) in [
            (json!({ "namespace": "a" }), "missing field `name`"),
            (json!({ "name": "a", "label": {} }), "unknown field `label`"),
            (json!({ "name": "a", "labels": { "l": 1 } }), "invalid type: integer"),
            (json!("a"), "invalid type: string"),
        ] {
            let problem = parse_object(value).unwrap_err();
            assert!(
                problem.starts_with("is no metadata of an object: ") && problem.contains(says),
                "{problem}"
            );
        }
    }
}
