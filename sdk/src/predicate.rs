//! Constructors for predicates on objects, which the contract has as lists of nodes. Their meaning is defined in
//! `wit/types.wit`.

use std::ops::{Range, RangeFrom};

use crate::{HashKey, HashRange, HashRanges, NameSet, PredicateNode};

/// Says which objects of a list or a watch a client gets: the predicate of
/// [`RequestEdit::keep_objects`](crate::RequestEdit::keep_objects), or which object a request must be about:
/// [`RequestEdit::require_object_match`](crate::RequestEdit::require_object_match).
///
/// ```
/// use ctrlmesh_sdk::{NameSet, ObjectPredicate, RequestEdit, RequestVerdict};
///
/// let namespaces = NameSet::new(["shop"]).prefixes(["team-"]);
/// let half = ObjectPredicate::uid_ranges([0..1_u64 << 63]);
/// let hidden = ObjectPredicate::labels("hidden").or(ObjectPredicate::names(["kube-root-ca.crt"]));
/// let predicate = ObjectPredicate::namespaces(namespaces).and(half).and(hidden.negate());
/// let verdict = RequestVerdict::edit([RequestEdit::keep_objects(predicate)]).reusable();
/// ```
///
/// Make it in `configure`, and clone it for each verdict. The host builds it again for each call, so mark the verdict
/// as [`reusable`](crate::RequestVerdict::reusable) where that is right.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectPredicate {
    /// Never empty. The last one is the root, and each other one is used by a later one.
    nodes: Vec<PredicateNode>,
}

impl ObjectPredicate {
    /// Objects whose namespace is in the set: exact names, or a [`NameSet`]. The namespace of a cluster-scoped object,
    /// and of a Namespace object, is the empty name.
    pub fn namespaces(names: impl Into<NameSet>) -> Self {
        Self::leaf(PredicateNode::Namespaces(names.into()))
    }

    /// Objects whose name is in the set: exact names, or a [`NameSet`].
    pub fn names(names: impl Into<NameSet>) -> Self {
        Self::leaf(PredicateNode::Names(names.into()))
    }

    /// Objects whose labels meet a label selector. If nothing else decides, use
    /// [`RequestEdit::and_label_selector`](crate::RequestEdit::and_label_selector): the API server then sends less.
    pub fn labels(selector: impl Into<String>) -> Self {
        Self::leaf(PredicateNode::Labels(selector.into()))
    }

    /// Objects with a hash of their UID in one of the ranges.
    pub fn uid_ranges(ranges: impl IntoIterator<Item = impl Into<HashRange>>) -> Self {
        Self::hash_ranges(HashKey::Uid, ranges)
    }

    /// Objects with a hash of this field in one of the ranges.
    pub fn hash_ranges(key: HashKey, ranges: impl IntoIterator<Item = impl Into<HashRange>>) -> Self {
        let ranges = ranges.into_iter().map(Into::into).collect();
        Self::leaf(PredicateNode::HashRanges(HashRanges { key, ranges }))
    }

    /// Objects that match all of the predicates; without predicates, all objects.
    #[must_use]
    pub fn all(predicates: impl IntoIterator<Item = Self>) -> Self {
        let (mut nodes, mut positions) = (Vec::new(), Vec::new());
        for predicate in predicates {
            match predicate.move_into(&mut nodes) {
                // Its parts become those of the new node, which saves a level.
                Some(PredicateNode::All(parts)) => positions.extend(parts),
                root => positions.extend(push_node(&mut nodes, root)),
            }
        }
        Self::joined(nodes, positions, PredicateNode::All)
    }

    /// Objects that match one of the predicates; without predicates, none.
    #[must_use]
    pub fn any(predicates: impl IntoIterator<Item = Self>) -> Self {
        let (mut nodes, mut positions) = (Vec::new(), Vec::new());
        for predicate in predicates {
            match predicate.move_into(&mut nodes) {
                Some(PredicateNode::Any(parts)) => positions.extend(parts),
                root => positions.extend(push_node(&mut nodes, root)),
            }
        }
        Self::joined(nodes, positions, PredicateNode::Any)
    }

    /// Objects that match both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::all([self, other])
    }

    /// Objects that match one of the two, or both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self::any([self, other])
    }

    /// Objects that do not match.
    #[must_use]
    pub fn negate(mut self) -> Self {
        match self.nodes.pop() {
            // The negated node is the last one now.
            Some(PredicateNode::Negation(_)) => {}
            root => {
                let position = push_node(&mut self.nodes, root);
                self.nodes.extend(position.map(PredicateNode::Negation));
            }
        }
        self
    }

    /// The predicate as the contract has it.
    #[must_use]
    pub fn into_nodes(self) -> Vec<PredicateNode> {
        self.nodes
    }

    fn leaf(node: PredicateNode) -> Self {
        Self { nodes: vec![node] }
    }

    /// The predicate whose root uses the nodes at these positions. A single position is that of the last node, which
    /// is the root then.
    fn joined(mut nodes: Vec<PredicateNode>, positions: Vec<u32>, root: fn(Vec<u32>) -> PredicateNode) -> Self {
        if positions.len() != 1 {
            nodes.push(root(positions));
        }
        Self { nodes }
    }

    /// Moves all nodes but the root behind `nodes`. Returns the root.
    fn move_into(self, nodes: &mut Vec<PredicateNode>) -> Option<PredicateNode> {
        let offset = position_of(nodes.len());
        let moved = |position: u32| position.saturating_add(offset);
        nodes.extend(self.nodes.into_iter().map(|node| match node {
            PredicateNode::All(parts) => PredicateNode::All(parts.into_iter().map(moved).collect()),
            PredicateNode::Any(parts) => PredicateNode::Any(parts.into_iter().map(moved).collect()),
            PredicateNode::Negation(part) => PredicateNode::Negation(moved(part)),
            leaf => leaf,
        }));
        nodes.pop()
    }
}

/// Appends a node. Returns its position.
fn push_node(nodes: &mut Vec<PredicateNode>, node: Option<PredicateNode>) -> Option<u32> {
    let position = position_of(nodes.len());
    nodes.push(node?);
    Some(position)
}

/// A position that does not fit is refused by the host, as is a list of more than 1024 nodes.
fn position_of(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl NameSet {
    /// A set of exact names.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            names: names.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// Also all names that begin with one of these.
    #[must_use]
    pub fn prefixes(mut self, prefixes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.prefixes = prefixes.into_iter().map(Into::into).collect();
        self
    }

    /// Also all names that one of these regular expressions matches as a whole.
    #[must_use]
    pub fn patterns(mut self, patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.patterns = patterns.into_iter().map(Into::into).collect();
        self
    }
}

impl Default for NameSet {
    /// No name.
    fn default() -> Self {
        Self {
            names: Vec::new(),
            prefixes: Vec::new(),
            patterns: Vec::new(),
        }
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for NameSet {
    fn from(names: [S; N]) -> Self {
        Self::new(names)
    }
}

impl<S: Into<String>> From<Vec<S>> for NameSet {
    fn from(names: Vec<S>) -> Self {
        Self::new(names)
    }
}

/// The range must not be empty.
impl From<Range<u64>> for HashRange {
    fn from(Range { start, end }: Range<u64>) -> Self {
        Self { start, end: Some(end) }
    }
}

impl From<RangeFrom<u64>> for HashRange {
    fn from(RangeFrom { start }: RangeFrom<u64>) -> Self {
        Self { start, end: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(selector: &str) -> ObjectPredicate {
        ObjectPredicate::labels(selector)
    }

    fn label_node(selector: &str) -> PredicateNode {
        PredicateNode::Labels(selector.to_owned())
    }

    fn set(names: &[&str], prefixes: &[&str], patterns: &[&str]) -> NameSet {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        NameSet {
            names: texts(names),
            prefixes: texts(prefixes),
            patterns: texts(patterns),
        }
    }

    #[test]
    fn predicate_without_parts_is_one_node() {
        let (start, end) = (1 << 62, Some(1 << 63));
        let ranges = vec![HashRange { start, end }, HashRange { start: 7, end: None }];
        for (predicate, node) in [
            (
                ObjectPredicate::namespaces(["a", "b"]),
                PredicateNode::Namespaces(set(&["a", "b"], &[], &[])),
            ),
            (
                ObjectPredicate::namespaces(NameSet::new(vec!["a"]).prefixes(["b-"]).patterns(["c.*", "d"])),
                PredicateNode::Namespaces(set(&["a"], &["b-"], &["c.*", "d"])),
            ),
            (
                ObjectPredicate::names(vec![String::from("a")]),
                PredicateNode::Names(set(&["a"], &[], &[])),
            ),
            (labels("a=b"), label_node("a=b")),
            (
                ObjectPredicate::uid_ranges([HashRange::from(1_u64 << 62..1 << 63), HashRange::from(7_u64..)]),
                PredicateNode::HashRanges(HashRanges {
                    key: HashKey::Uid,
                    ranges: ranges.clone(),
                }),
            ),
            (
                ObjectPredicate::hash_ranges(HashKey::Label("k".to_owned()), ranges.clone()),
                PredicateNode::HashRanges(HashRanges {
                    key: HashKey::Label("k".to_owned()),
                    ranges,
                }),
            ),
        ] {
            assert_eq!(predicate.into_nodes(), [node]);
        }
    }

    #[test]
    fn parts_come_before_the_node_that_uses_them() {
        let nodes = labels("a")
            .and(labels("b").or(labels("c")).negate())
            .or(labels("d"))
            .into_nodes();
        let expected = [
            label_node("a"),
            label_node("b"),
            label_node("c"),
            PredicateNode::Any(vec![1, 2]),
            PredicateNode::Negation(3),
            PredicateNode::All(vec![0, 4]),
            label_node("d"),
            PredicateNode::Any(vec![5, 6]),
        ];
        assert_eq!(nodes, expected);
    }

    #[test]
    fn nested_nodes_of_one_kind_become_one() {
        let (left, right) = (
            labels("a").and(labels("b")),
            labels("c").and(labels("d").or(labels("e"))),
        );
        let expected = [
            label_node("a"),
            label_node("b"),
            label_node("c"),
            label_node("d"),
            label_node("e"),
            PredicateNode::Any(vec![3, 4]),
            PredicateNode::All(vec![0, 1, 2, 5]),
        ];
        assert_eq!(left.and(right).into_nodes(), expected);
        let either = labels("a").or(labels("b")).or(labels("c"));
        assert_eq!(either.into_nodes().last(), Some(&PredicateNode::Any(vec![0, 1, 2])));
    }

    #[test]
    fn nodes_without_effect_are_left_out() {
        assert_eq!(labels("a").negate().negate(), labels("a"));
        assert_eq!(ObjectPredicate::all([labels("a")]), labels("a"));
        let everything = ObjectPredicate::all([]);
        assert_eq!(everything.clone().and(labels("a")).and(everything.clone()), labels("a"));
        assert_eq!(everything.into_nodes(), [PredicateNode::All(vec![])]);
        let nothing = ObjectPredicate::any([]);
        assert_eq!(labels("a").negate().or(nothing.clone()), labels("a").negate());
        assert_eq!(nothing.into_nodes(), [PredicateNode::Any(vec![])]);
    }
}
