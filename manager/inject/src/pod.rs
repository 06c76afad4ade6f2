//! A pod that is being changed, split into the parts that change. It is JSON instead of types of a certain release of Kubernetes,
//! because fields that this program does not know must stay.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The fields of an object.
pub(super) type Fields = Map<String, Value>;

/// A pod that is being changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Draft {
    /// The remaining fields.
    pod: Fields,
    metadata: Fields,
    spec: Fields,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) containers: Vec<Container>,
    pub(super) init_containers: Vec<Container>,
    pub(super) volumes: Vec<Value>,
    pub(super) pull_secrets: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Container(pub(super) Fields);

impl Draft {
    /// `None`: this is not a pod.
    pub(super) fn from_pod(pod: &Value) -> Option<Self> {
        let mut pod = pod.as_object()?.clone();
        let mut metadata = object_fields(pod.remove("metadata"))?;
        let mut spec = object_fields(pod.remove("spec"))?;
        Some(Self {
            labels: take_strings(&mut metadata, "labels")?,
            annotations: take_strings(&mut metadata, "annotations")?,
            init_containers: take_containers(&mut spec, "initContainers")?,
            volumes: list_items(spec.remove("volumes"))?,
            pull_secrets: list_items(spec.remove("imagePullSecrets"))?,
            containers: take_containers(&mut spec, "containers")?,
            pod,
            metadata,
            spec,
        })
    }

    /// Puts the pod together again.
    pub(super) fn finish(self) -> Value {
        let Self {
            mut pod,
            mut metadata,
            mut spec,
            ..
        } = self;
        let objects = |containers: Vec<Container>| containers.into_iter().map(|it| Value::Object(it.0)).collect();
        set_field(&mut metadata, "labels", json!(self.labels));
        set_field(&mut metadata, "annotations", json!(self.annotations));
        set_field(&mut spec, "containers", Value::Array(objects(self.containers)));
        set_field(&mut spec, "initContainers", Value::Array(objects(self.init_containers)));
        set_field(&mut spec, "volumes", Value::Array(self.volumes));
        set_field(&mut spec, "imagePullSecrets", Value::Array(self.pull_secrets));
        pod.insert("metadata".to_owned(), Value::Object(metadata));
        pod.insert("spec".to_owned(), Value::Object(spec));
        Value::Object(pod)
    }

    /// A field of the pod's spec.
    pub(super) fn spec_field(&self, field: &str) -> Option<&Value> {
        self.spec.get(field)
    }

    /// Whether a label is `"true"`.
    pub(super) fn has_label(&self, label: &str) -> bool {
        self.labels.get(label).is_some_and(|value| value == "true")
    }

    pub(super) fn find_volume(&self, name: &str) -> Option<&Value> {
        self.volumes.iter().find(|volume| name_of(volume) == name)
    }

    /// All containers, in the order in which they start.
    pub(super) fn all_containers(&self) -> impl Iterator<Item = &Container> {
        self.init_containers.iter().chain(&self.containers)
    }
}

impl Container {
    pub(super) fn name(&self) -> &str {
        self.0.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// The items of a list; none if the field is not a list.
    pub(super) fn items(&self, field: &str) -> &[Value] {
        self.0.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn items_mut(&mut self, field: &str) -> Option<&mut Vec<Value>> {
        let items = self.0.entry(field).or_insert(Value::Null);
        if items.is_null() {
            *items = json!([]);
        }
        items.as_array_mut()
    }

    /// A list of strings.
    pub(super) fn string_list(&self, field: &str) -> Vec<String> {
        let strings = self.items(field).iter().filter_map(Value::as_str);
        strings.map(str::to_owned).collect()
    }

    /// The effective variable, which is the last one of a name.
    pub(super) fn effective_variable(&self, name: &str) -> Option<&Value> {
        self.items("env").iter().rfind(|variable| name_of(variable) == name)
    }

    /// Replaces a variable in its place, or adds it at the end.
    pub(super) fn set_variable(&mut self, variable: Value) {
        let Some(env) = self.items_mut("env") else { return };
        let name = name_of(&variable).to_owned();
        let place = env.iter().position(|it| name_of(it) == name).unwrap_or(env.len());
        env.retain(|it| name_of(it) != name);
        env.insert(place.min(env.len()), variable);
    }

    /// Mounts a volume, unless it is mounted at that path already.
    pub(super) fn add_mount(&mut self, mount: Value) {
        let Some(mounts) = self.items_mut("volumeMounts") else {
            return;
        };
        if !mounts.iter().any(|it| is_same_mount(it, &mount)) {
            mounts.push(mount);
        }
    }

    /// Removes the mounts of a volume.
    pub(super) fn remove_mounts_of(&mut self, volume: &str) {
        if let Some(Value::Array(mounts)) = self.0.get_mut("volumeMounts") {
            mounts.retain(|mount| name_of(mount) != volume);
        }
    }
}

/// Compares two mounts. Other fields are ignored, because API servers fill in defaults.
fn is_same_mount(one: &Value, other: &Value) -> bool {
    name_of(one) == name_of(other) && one.get("mountPath") == other.get("mountPath")
}

/// The field `name`; empty if there is none.
pub(super) fn name_of(object: &Value) -> &str {
    object.get("name").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn variable_with_value(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

/// Sets a field. An empty list or map that did not exist before is not added.
fn set_field(fields: &mut Fields, field: &str, value: Value) {
    let is_empty = match &value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if !is_empty {
        fields.insert(field.to_owned(), value);
    }
}

fn object_fields(value: Option<Value>) -> Option<Fields> {
    match value {
        Some(Value::Object(fields)) => Some(fields),
        _ => None,
    }
}

fn list_items(value: Option<Value>) -> Option<Vec<Value>> {
    match value {
        Some(Value::Array(items)) => Some(items),
        None | Some(Value::Null) => Some(Vec::new()),
        Some(_) => None,
    }
}

fn take_containers(spec: &mut Fields, field: &str) -> Option<Vec<Container>> {
    let items = list_items(spec.remove(field))?.into_iter();
    items.map(|item| object_fields(Some(item)).map(Container)).collect()
}

fn take_strings(metadata: &mut Fields, field: &str) -> Option<BTreeMap<String, String>> {
    match metadata.remove(field) {
        None | Some(Value::Null) => Some(BTreeMap::new()),
        Some(words) => serde_json::from_value(words).ok(),
    }
}
