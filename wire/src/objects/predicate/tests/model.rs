//! Random predicates against a model that evaluates them naively.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const LABEL_SELECTORS: [&str; 8] = ["", "a", "!a", "a=1", "a!=1", "a in (1,x),b", "b notin (2,x)", "a>1"];

#[derive(Debug, Clone)]
enum Model {
    Namespaces(ModelSet),
    Names(ModelSet),
    Labels(&'static str),
    HashRanges(HashKey, Vec<(u64, Option<u64>)>),
    All(Vec<Model>),
    Any(Vec<Model>),
    Not(Box<Model>),
}

#[derive(Debug, Clone)]
struct ModelSet {
    names: Vec<String>,
    prefixes: Vec<String>,
    patterns: Vec<ModelPattern>,
}

#[derive(Debug, Clone)]
enum ModelPattern {
    Either(String, String),
    StartsWith(String),
    EndsWith(String),
}

#[derive(Debug, Clone)]
struct ModelObject {
    namespace: String,
    name: String,
    uid: String,
    labels: Vec<(String, String)>,
    controller: Option<String>,
}

impl ModelPattern {
    fn text(&self) -> String {
        match self {
            Self::Either(one, other) => format!("{one}|{other}"),
            Self::StartsWith(start) => format!("{start}.*"),
            Self::EndsWith(end) => format!(".*{end}"),
        }
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Either(one, other) => name == one || name == other,
            Self::StartsWith(start) => name.starts_with(start),
            Self::EndsWith(end) => name.ends_with(end),
        }
    }
}

impl ModelSet {
    fn build(&self) -> NameSet {
        let patterns = self.patterns.iter().map(ModelPattern::text).collect();
        NameSet::new(self.names.clone(), self.prefixes.clone(), patterns).unwrap()
    }

    fn contains(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
            || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

impl ModelObject {
    fn metadata(&self) -> ObjectMetadata<'_> {
        let labels = self.labels.iter();
        ObjectMetadata {
            namespace: self.namespace.as_str().into(),
            name: self.name.as_str().into(),
            uid: self.uid.as_str().into(),
            labels: labels
                .map(|(key, value)| (key.as_str().into(), value.as_str().into()))
                .collect(),
            controller: self.controller.as_deref().and_then(controlled_by),
            ..ObjectMetadata::default()
        }
    }

    fn labels(&self) -> BTreeMap<&str, &str> {
        self.labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }

    fn meets(&self, selector: &str) -> bool {
        let labels = self.labels();
        let (a, b) = (labels.get("a").copied(), labels.get("b").copied());
        match selector {
            "" => true,
            "a" => a.is_some(),
            "!a" => a.is_none(),
            "a=1" => a == Some("1"),
            "a!=1" => a != Some("1"),
            "a in (1,x),b" => matches!(a, Some("1" | "x")) && b.is_some(),
            "b notin (2,x)" => !matches!(b, Some("2" | "x")),
            "a>1" => matches!(a, Some("2" | "10")),
            _ => panic!("{selector:?} is not in the model"),
        }
    }

    fn hashed_value(&self, key: &HashKey) -> &str {
        match key {
            HashKey::Uid => &self.uid,
            HashKey::Namespace => &self.namespace,
            HashKey::ControllerUid => self.controller.as_ref().unwrap_or(&self.uid),
            HashKey::Label(label) => self.labels().get(&**label).copied().unwrap_or(""),
        }
    }
}

impl Model {
    fn build(&self) -> Predicate {
        let build_all = |models: &[Self]| models.iter().map(Self::build).collect::<Vec<_>>();
        match self {
            Self::Namespaces(set) => Predicate::Namespaces(set.build()),
            Self::Names(set) => Predicate::Names(set.build()),
            Self::Labels(text) => labels(text),
            Self::HashRanges(key, ranges) => {
                let ranges = ranges.iter().map(|&(start, end)| HashRange::new(start, end).unwrap());
                Predicate::hash_ranges(key.clone(), ranges.collect()).unwrap()
            }
            Self::All(models) => Predicate::all(build_all(models)).unwrap(),
            Self::Any(models) => Predicate::any(build_all(models)).unwrap(),
            Self::Not(model) => model.build().negate().unwrap(),
        }
    }

    fn matches(&self, object: &ModelObject) -> bool {
        match self {
            Self::Namespaces(set) => set.contains(&object.namespace),
            Self::Names(set) => set.contains(&object.name),
            Self::Labels(selector) => object.meets(selector),
            Self::HashRanges(key, ranges) => {
                let hash = u128::from(key.hash_of_value(object.hashed_value(key)));
                ranges
                    .iter()
                    .any(|&(start, end)| u128::from(start) <= hash && hash < end.map_or(1 << 64, u128::from))
            }
            Self::All(models) => models.iter().all(|model| model.matches(object)),
            Self::Any(models) => models.iter().any(|model| model.matches(object)),
            Self::Not(model) => !model.matches(object),
        }
    }
}

fn any_set() -> impl Strategy<Value = ModelSet> {
    let pattern = prop_oneof![
        ("[ab]{1,2}", "[ab]{1,2}").prop_map(|(one, other)| ModelPattern::Either(one, other)),
        "[ab]{1,2}".prop_map(ModelPattern::StartsWith),
        "[ab]{1,2}".prop_map(ModelPattern::EndsWith),
    ];
    (
        prop::collection::vec("[ab]{0,3}", 0..3),
        prop::collection::vec("[ab]{1,3}", 0..3),
        prop::collection::vec(pattern, 0..2),
    )
        .prop_map(|(names, prefixes, patterns)| ModelSet {
            names,
            prefixes,
            patterns,
        })
}

fn any_hash_key() -> impl Strategy<Value = HashKey> {
    prop::sample::select(vec![
        HashKey::Uid,
        HashKey::Namespace,
        HashKey::ControllerUid,
        HashKey::Label("a".into()),
    ])
}

/// Ranges that are bounded by hashes of values that occur, so that bounds are met.
fn any_ranges() -> impl Strategy<Value = Vec<(u64, Option<u64>)>> {
    let bound = prop_oneof![
        any::<u64>(),
        "[ab]{0,2}|1|2|x".prop_flat_map(|text| any_hash_key().prop_map(move |key| key.hash_of_value(&text)))
    ];
    let range = (bound.clone(), prop::option::of(bound)).prop_filter_map("empty", |(start, end)| match end {
        Some(end) if end == start => None,
        Some(end) => Some((start.min(end), Some(start.max(end)))),
        None => Some((start, None)),
    });
    prop::collection::vec(range, 0..4)
}

fn any_model() -> impl Strategy<Value = Model> {
    let leaf = prop_oneof![
        any_set().prop_map(Model::Namespaces),
        any_set().prop_map(Model::Names),
        prop::sample::select(LABEL_SELECTORS.to_vec()).prop_map(Model::Labels),
        (any_hash_key(), any_ranges()).prop_map(|(key, ranges)| Model::HashRanges(key, ranges)),
    ];
    leaf.prop_recursive(3, 24, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Model::All),
            prop::collection::vec(inner.clone(), 0..4).prop_map(Model::Any),
            inner.prop_map(|model| Model::Not(Box::new(model))),
        ]
    })
}

fn any_object() -> impl Strategy<Value = ModelObject> {
    let label = ("[ab]", prop::sample::select(vec!["", "1", "2", "10", "x"]));
    let labels = prop::collection::vec(label.prop_map(|(key, value)| (key, value.to_owned())), 0..4);
    (
        "[ab]{0,3}",
        "[ab]{1,3}",
        "[ab]{1,2}",
        labels,
        prop::option::of("[ab]{1,2}"),
    )
        .prop_map(|(namespace, name, uid, labels, controller)| ModelObject {
            namespace,
            name,
            uid,
            labels,
            controller,
        })
}

/// The metadata that is read where only these fields are asked for.
fn only<'a>(fields: MetadataFields, object: &ObjectMetadata<'a>) -> ObjectMetadata<'a> {
    let mut read = ObjectMetadata::default();
    if fields.namespace {
        read.namespace = object.namespace.clone();
    }
    if fields.name {
        read.name = object.name.clone();
    }
    if fields.uid {
        read.uid = object.uid.clone();
    }
    if fields.labels {
        read.labels = object.labels.clone();
    }
    if fields.controller {
        read.controller = object.controller.clone();
    }
    read
}

proptest! {
    #[test]
    fn predicate_keeps_what_the_model_keeps(
        model in any_model(),
        objects in prop::collection::vec(any_object(), 1..8),
    ) {
        let predicate = model.build();
        for object in &objects {
            let metadata = object.metadata();
            let expected = model.matches(object);
            prop_assert_eq!(predicate.matches(&metadata), expected, "{:?}", object);
            prop_assert_eq!(predicate.matches(&only(predicate.fields(), &metadata)), expected, "{:?}", object);
        }
    }

    #[test]
    fn immutable_predicate_keeps_an_object_for_life(
        model in any_model(),
        object in any_object(),
        later in any_object(),
    ) {
        let predicate = model.build();
        let later = ModelObject { labels: later.labels, controller: later.controller, ..object.clone() };
        if predicate.matches(&object.metadata()) != predicate.matches(&later.metadata()) {
            prop_assert!(predicate.is_mutable());
        }
    }
}
