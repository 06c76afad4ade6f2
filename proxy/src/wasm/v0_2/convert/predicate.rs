//! Converts the predicate of a `keep-objects` or `require-object-match` edit: makes the tree that a plugin has written as a list of nodes.

use ctrlmesh_wire::LabelSelector;
use ctrlmesh_wire::objects::{HashKey, HashRange, NameSet, Predicate, PredicateError};

use crate::plugin::object_predicate::ObjectPredicate;
use crate::wasm::bindings::v0_2::ctrlmesh::plugin::types;
use crate::wasm::validate::{self, TextLimit};

/// Bounds the patterns of all edits together, before any of them is compiled.
pub(super) fn check_pattern_count(edits: &[types::RequestEdit]) -> Result<(), String> {
    let predicates = edits.iter().filter_map(|edit| match edit {
        types::RequestEdit::KeepObjects(nodes) => Some(nodes),
        types::RequestEdit::RequireObjectMatch(requirement) => Some(&requirement.predicate),
        _ => None,
    });
    let patterns = predicates.flatten().map(|node| match node {
        types::PredicateNode::Namespaces(set) | types::PredicateNode::Names(set) => set.patterns.len(),
        _ => 0,
    });
    validate::pattern_count(patterns.sum())
}

/// The predicate of `require-object-match`, validated.
pub(super) fn required_predicate(
    nodes: Vec<types::PredicateNode>,
    text: &mut TextLimit,
) -> Result<ObjectPredicate, String> {
    let predicate = predicate_tree(nodes, text).map_err(|problem| format!("require-object-match: {problem}"))?;
    Ok(predicate.into())
}

/// The predicate of `keep-objects`, validated.
pub(super) fn object_predicate(
    nodes: Vec<types::PredicateNode>,
    text: &mut TextLimit,
) -> Result<ObjectPredicate, String> {
    let predicate = predicate_tree(nodes, text).map_err(|problem| format!("keep-objects: {problem}"))?;
    Ok(predicate.into())
}

fn predicate_tree(nodes: Vec<types::PredicateNode>, text: &mut TextLimit) -> Result<Predicate, String> {
    validate::predicate_node_count(nodes.len())?;
    text.count(nodes.len())?;
    // The predicate of each earlier node, until a later node takes it.
    let mut earlier: Vec<Option<Predicate>> = Vec::with_capacity(nodes.len());
    for (position, node) in nodes.into_iter().enumerate() {
        let predicate =
            predicate_of(node, &mut earlier, text).map_err(|problem| format!("node {position}: {problem}"))?;
        earlier.push(Some(predicate));
    }
    let last = earlier
        .pop()
        .flatten()
        .ok_or("a predicate without nodes: leave the edit out where all objects are kept")?;
    match earlier.iter().position(Option::is_some) {
        Some(position) => Err(format!(
            "no later node uses node {position}: each node but the last must be used once"
        )),
        None => Ok(last),
    }
}

fn predicate_of(
    node: types::PredicateNode,
    earlier: &mut [Option<Predicate>],
    text: &mut TextLimit,
) -> Result<Predicate, String> {
    let predicate = match node {
        types::PredicateNode::Namespaces(set) => Ok(Predicate::Namespaces(name_set(set, text)?)),
        types::PredicateNode::Names(set) => Ok(Predicate::Names(name_set(set, text)?)),
        types::PredicateNode::Labels(selector) => {
            let selector = validate::checked_selector(text.take(selector)?)?;
            LabelSelector::parse(&selector)
                .map_err(PredicateError::from)
                .and_then(Predicate::labels)
        }
        types::PredicateNode::HashRanges(hashes) => {
            let key = hash_key(hashes.key, text)?;
            Predicate::hash_ranges(key, hash_ranges(&hashes.ranges, text)?)
        }
        types::PredicateNode::All(positions) => Predicate::all(take_nodes(&positions, earlier, text)?),
        types::PredicateNode::Any(positions) => Predicate::any(take_nodes(&positions, earlier, text)?),
        types::PredicateNode::Negation(position) => take_node(position, earlier)?.negate(),
    };
    predicate.map_err(|error| error.to_string())
}

fn name_set(set: types::NameSet, text: &mut TextLimit) -> Result<NameSet, String> {
    let mut list = |names: Vec<String>| {
        names
            .into_iter()
            .map(|name| text.take(name))
            .collect::<Result<Vec<_>, _>>()
    };
    let (names, prefixes, patterns) = (list(set.names)?, list(set.prefixes)?, list(set.patterns)?);
    NameSet::new(names, prefixes, patterns).map_err(|error| error.to_string())
}

fn hash_key(key: types::HashKey, text: &mut TextLimit) -> Result<HashKey, String> {
    Ok(match key {
        types::HashKey::Uid => HashKey::Uid,
        types::HashKey::Namespace => HashKey::Namespace,
        types::HashKey::ControllerUid => HashKey::ControllerUid,
        types::HashKey::Label(label) => HashKey::Label(text.take(label)?.into_boxed_str()),
    })
}

fn hash_ranges(ranges: &[types::HashRange], text: &mut TextLimit) -> Result<Vec<HashRange>, String> {
    text.count(ranges.len())?;
    let ranges = ranges.iter().map(|range| HashRange::new(range.start, range.end));
    ranges.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())
}

fn take_nodes(
    positions: &[u32],
    earlier: &mut [Option<Predicate>],
    text: &mut TextLimit,
) -> Result<Vec<Predicate>, String> {
    text.count(positions.len())?;
    positions.iter().map(|&position| take_node(position, earlier)).collect()
}

fn take_node(position: u32, earlier: &mut [Option<Predicate>]) -> Result<Predicate, String> {
    let index = usize::try_from(position).unwrap_or(usize::MAX);
    let node = earlier
        .get_mut(index)
        .ok_or_else(|| format!("position {position} is not that of an earlier node"))?;
    node.take()
        .ok_or_else(|| format!("node {position} was used before: each node but the last must be used once"))
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::objects::{MAX_PATTERNS, MAX_PREDICATE_NODES, ObjectMetadata, fnv1a_64};

    use super::*;

    type Node = types::PredicateNode;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn set(names: &[&str], prefixes: &[&str], patterns: &[&str]) -> types::NameSet {
        types::NameSet {
            names: texts(names),
            prefixes: texts(prefixes),
            patterns: texts(patterns),
        }
    }

    fn names(exact: &[&str]) -> Node {
        Node::Names(set(exact, &[], &[]))
    }

    fn labels(selector: &str) -> Node {
        Node::Labels(selector.to_owned())
    }

    fn hashes(key: types::HashKey, ranges: &[(u64, Option<u64>)]) -> Node {
        let range = |&(start, end): &(u64, Option<u64>)| types::HashRange { start, end };
        Node::HashRanges(types::HashRanges {
            key,
            ranges: ranges.iter().map(range).collect(),
        })
    }

    fn convert(nodes: Vec<Node>) -> Result<ObjectPredicate, String> {
        object_predicate(nodes, &mut TextLimit::default())
    }

    fn problem(nodes: Vec<Node>) -> String {
        convert(nodes).expect_err("it was converted")
    }

    fn keeps(nodes: Vec<Node>, object: &ObjectMetadata<'_>) -> bool {
        convert(nodes).unwrap().predicate().matches(object)
    }

    fn pod() -> ObjectMetadata<'static> {
        ObjectMetadata {
            namespace: "shop".into(),
            name: "cart-0".into(),
            uid: "u".into(),
            labels: vec![("app".into(), "cart".into())],
            ..ObjectMetadata::default()
        }
    }

    #[test]
    fn each_kind_of_node_keeps_what_it_names() {
        // A missing label is hashed like an empty value.
        let (of_uid, of_empty) = (fnv1a_64("u"), HashKey::Namespace.hash_of_value(""));
        let missing = || types::HashKey::Label("tier".to_owned());
        for (node, expected) in [
            (Node::Namespaces(set(&["shop"], &[], &[])), true),
            (Node::Namespaces(set(&["cart-0"], &["cart"], &[])), false),
            (names(&["cart-0"]), true),
            (Node::Names(set(&[], &["cart-"], &[])), true),
            (Node::Names(set(&[], &[], &["[a-z]+-0"])), true),
            (Node::Names(set(&[], &[], &["[a-z]+"])), false),
            (names(&["shop"]), false),
            (names(&[]), false),
            (labels("app=cart"), true),
            (labels("app!=cart"), false),
            (hashes(types::HashKey::Uid, &[(of_uid, Some(of_uid + 1))]), true),
            (
                hashes(types::HashKey::ControllerUid, &[(of_uid, Some(of_uid + 1))]),
                true,
            ),
            (hashes(types::HashKey::Namespace, &[(of_uid, Some(of_uid + 1))]), false),
            (hashes(missing(), &[(of_empty, Some(of_empty + 1))]), true),
            (
                hashes(types::HashKey::Uid, &[(0, Some(of_uid)), (of_uid + 1, None)]),
                false,
            ),
            (hashes(types::HashKey::Uid, &[(of_uid, None), (0, Some(1))]), true),
            (Node::All(vec![]), true),
            (Node::Any(vec![]), false),
        ] {
            let described = format!("{:?}", convert(vec![node.clone()]).unwrap());
            assert_eq!(keeps(vec![node], &pod()), expected, "{described}");
        }
    }

    #[test]
    fn nodes_are_joined_by_their_positions() {
        let leaves = || vec![names(&["cart-0"]), labels("app=other"), Node::Negation(1)];
        let with = |last: Node| [leaves(), vec![last]].concat();
        assert!(keeps(with(Node::All(vec![2, 0])), &pod()));
        assert!(keeps(with(Node::Any(vec![0, 2])), &pod()));
        let either = vec![names(&["other"]), labels("app=other"), Node::Any(vec![0, 1])];
        assert!(!keeps(either.clone(), &pod()));
        assert!(keeps([either, vec![Node::Negation(2)]].concat(), &pod()));
    }

    #[test]
    fn invalid_nodes_are_refused_with_their_position() {
        let label = |key: &str| types::HashKey::Label(key.to_owned());
        for (nodes, expected) in [
            (vec![], "keep-objects: a predicate without nodes"),
            (
                vec![Node::Negation(0)],
                "node 0: position 0 is not that of an earlier node",
            ),
            (
                vec![names(&["a"]), Node::All(vec![0, 7])],
                "node 1: position 7 is not that of an earlier node",
            ),
            (
                vec![Node::Any(vec![1]), names(&["a"])],
                "node 0: position 1 is not that of an earlier node",
            ),
            (
                vec![names(&["a"]), Node::All(vec![0, 0])],
                "node 1: node 0 was used before",
            ),
            (
                vec![names(&["a"]), Node::Negation(0), Node::All(vec![0, 1])],
                "node 2: node 0 was used before",
            ),
            (
                vec![names(&["a"]), names(&["b"]), Node::Negation(1)],
                "no later node uses node 0",
            ),
            (
                vec![Node::Names(set(&[], &[], &["a("]))],
                "node 0: invalid pattern \"a(\"",
            ),
            (vec![Node::Namespaces(set(&[], &[""], &[]))], "node 0: an empty prefix"),
            (vec![labels("a in")], "node 0: unable to parse the selector"),
            (vec![labels(" ")], "node 0: an empty selector"),
            (
                vec![names(&[]), hashes(types::HashKey::Uid, &[(5, Some(5))])],
                "node 1: the hash range",
            ),
            (vec![hashes(label("a b"), &[(0, None)])], "node 0: invalid label key"),
        ] {
            let found = problem(nodes);
            assert!(
                found.starts_with("keep-objects: ") && found.contains(expected),
                "{found:?} instead of {expected:?}"
            );
        }
    }

    #[test]
    fn invalid_predicate_is_named_by_its_edit() {
        let found = required_predicate(vec![], &mut TextLimit::default()).unwrap_err();
        assert_eq!(
            found,
            "require-object-match: a predicate without nodes: leave the edit out where all objects are kept"
        );
    }

    #[test]
    fn nodes_and_levels_are_bounded() {
        let wide = |count: u32| {
            let leaves = (0..count).map(|_| names(&["a"]));
            leaves.chain([Node::All((0..count).collect())]).collect::<Vec<_>>()
        };
        let most = u32::try_from(MAX_PREDICATE_NODES).unwrap();
        assert!(convert(wide(most - 1)).is_ok());
        assert_eq!(
            problem(wide(most)),
            "keep-objects: 1025 nodes of a predicate, at most 1024 are allowed"
        );
        let deep = |levels: u32| {
            let negations = (0..levels - 1).map(Node::Negation);
            [names(&["a"])].into_iter().chain(negations).collect::<Vec<_>>()
        };
        assert!(convert(deep(16)).is_ok());
        let found = problem(deep(17));
        assert!(
            found.contains("node 16: the predicate has more than 16 levels"),
            "{found}"
        );
    }

    #[test]
    fn texts_and_lists_count_as_text_of_verdict() {
        let long = "a".repeat(64 * 1024);
        let many = vec![types::HashRange { start: 0, end: None }; 64 * 1024];
        let ranges = types::HashRanges {
            key: types::HashKey::Uid,
            ranges: many,
        };
        for node in [
            names(&[&long]),
            Node::Namespaces(set(&[], &[&long], &[])),
            Node::Names(set(&[], &[], &[&long])),
            labels(&long),
            hashes(types::HashKey::Label(long.clone()), &[]),
            Node::HashRanges(ranges),
            Node::All(vec![0; 64 * 1024]),
        ] {
            let found = problem(vec![node]);
            assert!(found.contains("more than 65536 bytes of text"), "{found}");
        }
        let mut text = TextLimit::default();
        let name = "a".repeat(250);
        let mut converted = 0;
        while object_predicate(vec![names(&[&name])], &mut text).is_ok() {
            converted += 1;
            assert!(converted < 1_000, "the text of several edits is not bounded");
        }
        assert!(converted > 200, "{converted}");
    }

    #[test]
    fn patterns_are_counted_over_all_edits() {
        let edit = |count: usize| {
            let patterns = vec!["a"; count];
            types::RequestEdit::KeepObjects(vec![
                Node::Names(set(&["a"], &[], &patterns)),
                Node::Namespaces(set(&[], &[], &patterns)),
                Node::All(vec![0, 1]),
            ])
        };
        let quarter = MAX_PATTERNS / 4;
        assert!(check_pattern_count(&[edit(quarter), edit(quarter)]).is_ok());
        let found = check_pattern_count(&[edit(quarter), edit(quarter + 1)]).unwrap_err();
        assert!(found.contains("patterns in a verdict, at most 64"), "{found}");
    }

    #[test]
    fn predicates_are_equal_by_their_texts() {
        let one = |names: &[&str], selector: &str| {
            let nodes = vec![
                Node::Namespaces(set(names, &["x", "xy"], &["b", "a"])),
                labels(selector),
                Node::All(vec![0, 1]),
            ];
            convert(nodes).unwrap()
        };
        let predicate = one(&["a", "b", "c"], "k=v,a");
        assert_eq!(predicate, one(&["c", "b", "a", "b"], "a, k = v"));
        assert_ne!(predicate, one(&["a", "b", "c"], "k=w,a"));
        assert_ne!(predicate, one(&["a", "b"], "k=v,a"));
        let name = "n".repeat(100);
        assert!(one(&[&name], "a").bytes() > one(&["n"], "a").bytes() + 90);
    }
}
