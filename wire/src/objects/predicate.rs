//! Predicates: which objects are kept, as data. They are built once and evaluated for each object.

mod error;
mod label_search;
mod name_set;

pub use error::PredicateError;
pub use name_set::NameSet;

use std::hash::{Hash, Hasher};
use std::mem;

use label_search::LabelSearch;

use super::hash::{HashRange, fnv1a_64, mixed};
use super::limits::{MAX_HASH_RANGES, MAX_NAMES, MAX_PATTERNS, MAX_PREDICATE_DEPTH, MAX_PREDICATE_NODES};
use super::{MetadataFields, ObjectMetadata};
use crate::{LabelSelector, MAX_REQUIREMENTS, MAX_SELECTOR_BYTES, Requirement, SelectorError, is_label_key};

/// Says which objects are kept.
///
/// The constructors ([`labels`](Self::labels), [`hash_ranges`](Self::hash_ranges), [`all`](Self::all),
/// [`any`](Self::any), [`negate`](Self::negate)) refuse what is above the bounds of this module. What is put together
/// from the variants has to pass [`validate`](Self::validate).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predicate {
    /// Objects whose namespace is in the set. The namespace of a cluster-scoped object is the empty name, and so is
    /// that of a Namespace object.
    Namespaces(NameSet),
    /// Objects whose name is in the set.
    Names(NameSet),
    /// Objects whose labels meet the selector.
    Labels(LabelSelector),
    /// Objects with a hash in one of the ranges.
    HashRanges {
        /// The field that is hashed.
        key: HashKey,
        /// Sorted; they neither overlap nor touch each other. Without ranges nothing is kept.
        ranges: Box<[HashRange]>,
    },
    /// Objects that all of the predicates keep; without predicates, all objects.
    All(Box<[Predicate]>),
    /// Objects that one of the predicates keeps; without predicates, none.
    Any(Box<[Predicate]>),
    /// Objects that the predicate does not keep.
    Not(Box<Predicate>),
}

/// The field of an object that is hashed; see [`HashKey::hash_of_value`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HashKey {
    /// `metadata.uid`
    Uid,
    /// `metadata.namespace`. For a cluster-scoped object the empty string is hashed: all of them are in one range.
    Namespace,
    /// The UID of the controller in `metadata.ownerReferences`; the object's own UID if it has no controller.
    ControllerUid,
    /// The value of the label with this key. For an object without the label the empty string is hashed: all of them
    /// are in one range, together with those whose value is empty.
    Label(Box<str>),
}

impl HashKey {
    /// The path of the field in the API server's `shardSelector`; `None` if the server cannot shard by it.
    #[must_use]
    pub const fn selector_path(&self) -> Option<&'static str> {
        match self {
            Self::Uid => Some("object.metadata.uid"),
            Self::Namespace | Self::ControllerUid | Self::Label(_) => None,
        }
    }

    /// The hash of an object.
    #[must_use]
    pub fn hash_of(&self, object: &ObjectMetadata<'_>) -> u64 {
        self.hash_with(object, &LabelSearch::new(&object.labels))
    }

    /// The hash of an object with these labels.
    fn hash_with(&self, object: &ObjectMetadata<'_>, labels: &LabelSearch<'_>) -> u64 {
        let value: &str = match self {
            Self::Uid => &object.uid,
            Self::Namespace => &object.namespace,
            Self::ControllerUid => match &object.controller {
                Some(controller) => &controller.uid,
                None => &object.uid,
            },
            Self::Label(key) => labels.value(key).unwrap_or(""),
        };
        self.hash_of_value(value)
    }

    /// The hash of an object in which the field has this value.
    ///
    /// UIDs are hashed with [`fnv1a_64`], as API servers do. Its upper bits, which choose the range, hardly depend on the last bytes
    /// of a text: `team-00` to `team-99` are in one of 1,024 equal ranges. So hashes of namespaces and labels, which people choose, are
    /// mixed.
    #[must_use]
    pub const fn hash_of_value(&self, value: &str) -> u64 {
        let hash = fnv1a_64(value);
        match self {
            Self::Uid | Self::ControllerUid => hash,
            Self::Namespace | Self::Label(_) => mixed(hash),
        }
    }

    /// Whether the hash of an object can change while the object exists.
    #[must_use]
    pub const fn is_mutable(&self) -> bool {
        matches!(self, Self::ControllerUid | Self::Label(_))
    }

    fn fields(&self) -> MetadataFields {
        MetadataFields {
            uid: matches!(self, Self::Uid | Self::ControllerUid),
            namespace: matches!(self, Self::Namespace),
            controller: matches!(self, Self::ControllerUid),
            labels: matches!(self, Self::Label(_)),
            ..MetadataFields::default()
        }
    }
}

impl Predicate {
    /// Objects whose labels meet the selector.
    ///
    /// # Errors
    /// When the selector is one that the API server would refuse, or is larger than [`MAX_SELECTOR_BYTES`].
    pub fn labels(selector: LabelSelector) -> Result<Self, PredicateError> {
        Self::Labels(selector).validated()
    }

    /// Objects with a hash in one of the ranges, which come in any order and may overlap.
    ///
    /// # Errors
    /// When more than [`MAX_HASH_RANGES`] are left after merging, or the key of a label is invalid.
    pub fn hash_ranges(key: HashKey, ranges: Vec<HashRange>) -> Result<Self, PredicateError> {
        let ranges = HashRange::merge(ranges).into_boxed_slice();
        Self::HashRanges { key, ranges }.validated()
    }

    /// Objects that all of the predicates keep; without predicates, all objects.
    ///
    /// # Errors
    /// When the predicate gets above a bound.
    pub fn all(predicates: Vec<Self>) -> Result<Self, PredicateError> {
        Self::All(predicates.into_boxed_slice()).validated()
    }

    /// Objects that one of the predicates keeps; without predicates, none.
    ///
    /// # Errors
    /// When the predicate gets above a bound.
    pub fn any(predicates: Vec<Self>) -> Result<Self, PredicateError> {
        Self::Any(predicates.into_boxed_slice()).validated()
    }

    /// Objects that this predicate does not keep.
    ///
    /// # Errors
    /// When the predicate gets above a bound.
    pub fn negate(self) -> Result<Self, PredicateError> {
        Self::Not(Box::new(self)).validated()
    }

    fn validated(self) -> Result<Self, PredicateError> {
        self.validate()?;
        Ok(self)
    }

    /// Checks the bounds of the predicate, its selectors and its ranges.
    ///
    /// # Errors
    /// When a bound of this module is exceeded, a selector is one that the API server would refuse, or ranges are not
    /// merged.
    pub fn validate(&self) -> Result<(), PredicateError> {
        let mut totals = Totals::default();
        self.nodes().try_for_each(|(depth, node)| {
            if depth > MAX_PREDICATE_DEPTH {
                return Err(PredicateError::TooDeep);
            }
            totals.add(node)
        })
    }

    /// Whether an object is kept, by the fields of [`Predicate::fields`]. Parts that are deeper than
    /// [`MAX_PREDICATE_DEPTH`] are not evaluated, and no object is kept because of them.
    #[must_use]
    pub fn matches(&self, object: &ObjectMetadata<'_>) -> bool {
        let labels = LabelSearch::new(&object.labels);
        self.evaluate(object, &labels, MAX_PREDICATE_DEPTH) == Some(true)
    }

    /// Whether an object can be kept at some time of its life. This is decided by what cannot change: UID, namespace
    /// and name. It may be `true` for an object that is never kept.
    ///
    /// Reads the fields of [`Predicate::fields`], and evaluates as many levels as [`Predicate::matches`].
    #[must_use]
    pub fn may_ever_match(&self, object: &ObjectMetadata<'_>) -> bool {
        let kept = self.evaluate_lifetime(object, MAX_PREDICATE_DEPTH);
        matches!(kept, Some(Lifetime::Always | Lifetime::Unknown))
    }

    /// `None` if it takes more levels than are left.
    fn evaluate_lifetime(&self, object: &ObjectMetadata<'_>, levels_left: usize) -> Option<Lifetime> {
        let levels_left = levels_left.checked_sub(1)?;
        let kept = match self {
            Self::Namespaces(set) => Lifetime::fixed(set.contains(&object.namespace)),
            Self::Names(set) => Lifetime::fixed(set.contains(&object.name)),
            Self::Labels(selector) if selector.is_empty() => Lifetime::Always,
            Self::Labels(_) => Lifetime::Unknown,
            Self::HashRanges { key, .. } if key.is_mutable() => Lifetime::Unknown,
            Self::HashRanges { key, ranges } => Lifetime::fixed(HashRange::merged_contain(ranges, key.hash_of(object))),
            Self::All(predicates) => evaluate_group(predicates, object, levels_left, Lifetime::Never)?,
            Self::Any(predicates) => evaluate_group(predicates, object, levels_left, Lifetime::Always)?,
            Self::Not(predicate) => predicate.evaluate_lifetime(object, levels_left)?.negated(),
        };
        Some(kept)
    }

    /// `None` if it takes more levels than are left.
    fn evaluate(&self, object: &ObjectMetadata<'_>, labels: &LabelSearch<'_>, levels_left: usize) -> Option<bool> {
        let levels_left = levels_left.checked_sub(1)?;
        let is_kept = match self {
            Self::Namespaces(set) => set.contains(&object.namespace),
            Self::Names(set) => set.contains(&object.name),
            Self::Labels(selector) => selector.matches(&|key: &str| labels.value(key)),
            Self::HashRanges { key, ranges } => HashRange::merged_contain(ranges, key.hash_with(object, labels)),
            Self::All(predicates) => {
                for predicate in predicates {
                    if !predicate.evaluate(object, labels, levels_left)? {
                        return Some(false);
                    }
                }
                true
            }
            Self::Any(predicates) => {
                for predicate in predicates {
                    if predicate.evaluate(object, labels, levels_left)? {
                        return Some(true);
                    }
                }
                false
            }
            Self::Not(predicate) => !predicate.evaluate(object, labels, levels_left)?,
        };
        Some(is_kept)
    }

    /// The fields of metadata that [`Predicate::matches`] reads.
    #[must_use]
    pub fn fields(&self) -> MetadataFields {
        let mut fields = MetadataFields::default();
        for (_, node) in self.nodes() {
            match node {
                Self::Namespaces(_) => fields.namespace = true,
                Self::Names(_) => fields.name = true,
                Self::Labels(selector) => fields.labels |= !selector.is_empty(),
                Self::HashRanges { key, .. } => fields = fields.union(key.fields()),
                Self::All(_) | Self::Any(_) | Self::Not(_) => {}
            }
        }
        fields
    }

    /// Whether an object can be kept at one time of its life and not at another. Labels and owner references can
    /// change; UID, namespace and name cannot.
    #[must_use]
    pub fn is_mutable(&self) -> bool {
        self.nodes().any(|(_, node)| match node {
            Self::Labels(selector) => !selector.is_empty(),
            Self::HashRanges { key, .. } => key.is_mutable(),
            _ => false,
        })
    }

    /// Estimated memory in bytes. A set that occurs twice counts twice.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let nodes = self.nodes().map(|(_, node)| {
            let content = match node {
                Self::Namespaces(set) | Self::Names(set) => set.bytes(),
                Self::Labels(selector) => selector.requirements.iter().map(requirement_bytes).sum::<usize>(),
                Self::HashRanges { key, ranges } => {
                    let label = if let HashKey::Label(label) = key {
                        label.len()
                    } else {
                        0
                    };
                    label + size_of_val::<[HashRange]>(ranges)
                }
                Self::All(_) | Self::Any(_) | Self::Not(_) => 0,
            };
            size_of::<Self>() + content
        });
        nodes.sum()
    }

    /// The predicate and all that it consists of, each with its level, of which the first is 1.
    fn nodes(&self) -> Nodes<'_> {
        Nodes {
            pending: vec![(1, self)],
        }
    }
}

/// When an object is kept, as far as that follows from what cannot change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lifetime {
    Always,
    Never,
    /// It depends on what can change.
    Unknown,
}

impl Lifetime {
    const fn fixed(is_kept: bool) -> Self {
        if is_kept { Self::Always } else { Self::Never }
    }

    const fn negated(self) -> Self {
        match self {
            Self::Always => Self::Never,
            Self::Never => Self::Always,
            Self::Unknown => Self::Unknown,
        }
    }
}

/// `decisive` is what decides a group alone: [`Lifetime::Never`] for `all`, [`Lifetime::Always`] for `any`.
fn evaluate_group(
    predicates: &[Predicate],
    object: &ObjectMetadata<'_>,
    levels_left: usize,
    decisive: Lifetime,
) -> Option<Lifetime> {
    let mut result = decisive.negated();
    for predicate in predicates {
        let kept = predicate.evaluate_lifetime(object, levels_left)?;
        if kept == decisive {
            return Some(decisive);
        }
        if kept == Lifetime::Unknown {
            result = Lifetime::Unknown;
        }
    }
    Some(result)
}

/// Hashes selectors by their texts.
impl Hash for Predicate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (depth, node) in self.nodes() {
            depth.hash(state);
            mem::discriminant(node).hash(state);
            match node {
                Self::Namespaces(set) | Self::Names(set) => set.hash(state),
                Self::Labels(selector) => selector.to_string().hash(state),
                Self::HashRanges { key, ranges } => (key, ranges).hash(state),
                Self::All(_) | Self::Any(_) | Self::Not(_) => {}
            }
        }
    }
}

fn requirement_bytes(requirement: &Requirement) -> usize {
    let values = requirement.values.iter().map(|value| size_of::<String>() + value.len());
    size_of::<Requirement>() + requirement.key.len() + values.sum::<usize>()
}

struct Nodes<'p> {
    pending: Vec<(usize, &'p Predicate)>,
}

impl<'p> Iterator for Nodes<'p> {
    type Item = (usize, &'p Predicate);

    fn next(&mut self) -> Option<Self::Item> {
        let (depth, node) = self.pending.pop()?;
        let children: &'p [Predicate] = match node {
            Predicate::All(predicates) | Predicate::Any(predicates) => predicates,
            Predicate::Not(predicate) => std::slice::from_ref(predicate.as_ref()),
            _ => &[],
        };
        let child_depth = depth.saturating_add(1);
        self.pending.extend(children.iter().map(|child| (child_depth, child)));
        Some((depth, node))
    }
}

/// The sizes of a predicate so far. A set that occurs twice counts twice.
#[derive(Default)]
struct Totals {
    nodes: usize,
    ranges: usize,
    names: usize,
    patterns: usize,
    requirements: usize,
    selector_bytes: usize,
}

impl Totals {
    fn add(&mut self, node: &Predicate) -> Result<(), PredicateError> {
        add_up_to(&mut self.nodes, 1, "parts", MAX_PREDICATE_NODES)?;
        match node {
            Predicate::Namespaces(set) | Predicate::Names(set) => {
                let names = set.names().len().saturating_add(set.prefixes().len());
                add_up_to(&mut self.names, names, "names and prefixes", MAX_NAMES)?;
                add_up_to(&mut self.patterns, set.patterns().len(), "patterns", MAX_PATTERNS)
            }
            Predicate::Labels(selector) => self.add_selector(selector),
            Predicate::HashRanges { key, ranges } => {
                if let HashKey::Label(key) = key
                    && !is_label_key(key)
                {
                    return Err(SelectorError::Key(key.to_string()).into());
                }
                if !HashRange::are_merged(ranges) {
                    return Err(PredicateError::RangesNotMerged);
                }
                add_up_to(&mut self.ranges, ranges.len(), "hash ranges", MAX_HASH_RANGES)
            }
            Predicate::All(_) | Predicate::Any(_) | Predicate::Not(_) => Ok(()),
        }
    }

    /// The fields of a selector are public, so that it may be none that was parsed.
    fn add_selector(&mut self, selector: &LabelSelector) -> Result<(), PredicateError> {
        let requirements = selector.requirements.len();
        add_up_to(
            &mut self.requirements,
            requirements,
            "label requirements",
            MAX_REQUIREMENTS,
        )?;
        let text = selector.to_string();
        LabelSelector::validate(&text)?;
        add_up_to(
            &mut self.selector_bytes,
            text.len(),
            "bytes of label selectors",
            MAX_SELECTOR_BYTES,
        )
    }
}

fn add_up_to(total: &mut usize, count: usize, parts: &'static str, limit: usize) -> Result<(), PredicateError> {
    *total = total.saturating_add(count);
    if *total > limit {
        return Err(PredicateError::TooMany { parts, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
