//! Predicates read only the fields that they name, and their depth and size are bounded.

mod model;

use super::*;
use crate::objects::Controller;
use crate::{Operator, Requirement};

fn names(names: &[&str]) -> NameSet {
    NameSet::of_names(names.iter().copied()).unwrap()
}

fn labels(text: &str) -> Predicate {
    Predicate::labels(LabelSelector::parse(text).unwrap()).unwrap()
}

/// Keeps the objects whose value of the key is hashed like `value`.
fn hash_of_value(key: HashKey, value: &str) -> Predicate {
    let hash = key.hash_of_value(value);
    Predicate::hash_ranges(key, vec![HashRange::new(hash, Some(hash + 1)).unwrap()]).unwrap()
}

fn everything() -> Predicate {
    Predicate::all(vec![]).unwrap()
}

fn controlled_by(uid: &str) -> Option<Controller<'_>> {
    Some(Controller {
        uid: uid.into(),
        ..Controller::default()
    })
}

fn pod() -> ObjectMetadata<'static> {
    ObjectMetadata {
        namespace: "shop".into(),
        name: "cart-0".into(),
        uid: "uid-of-pod".into(),
        labels: vec![("app".into(), "cart".into()), ("tier".into(), "2".into())],
        controller: controlled_by("uid-of-set"),
        ..ObjectMetadata::default()
    }
}

fn node() -> ObjectMetadata<'static> {
    ObjectMetadata {
        name: "node-1".into(),
        uid: "uid-of-node".into(),
        ..ObjectMetadata::default()
    }
}

#[test]
fn sets_read_their_own_field() {
    for (predicate, keeps_pod, keeps_node) in [
        (Predicate::Namespaces(names(&["shop"])), true, false),
        (Predicate::Namespaces(names(&["cart-0"])), false, false),
        // A cluster-scoped object has the empty namespace.
        (Predicate::Namespaces(names(&[""])), false, true),
        (Predicate::Names(names(&["cart-0", "node-1"])), true, true),
        (Predicate::Names(names(&["shop"])), false, false),
        (labels("app=cart,tier>1"), true, false),
        (labels("app!=cart"), false, true),
        (labels(""), true, true),
    ] {
        assert_eq!(predicate.matches(&pod()), keeps_pod, "{predicate:?}");
        assert_eq!(predicate.matches(&node()), keeps_node, "{predicate:?}");
    }
}

#[test]
fn each_key_hashes_its_own_field() {
    let label = |key: &str| HashKey::Label(key.into());
    for (key, of_pod, of_node) in [
        (HashKey::Uid, "uid-of-pod", "uid-of-node"),
        (HashKey::Namespace, "shop", ""),
        // An object without a controller is its own root.
        (HashKey::ControllerUid, "uid-of-set", "uid-of-node"),
        (label("app"), "cart", ""),
        (label("absent"), "", ""),
    ] {
        assert_eq!(key.hash_of(&pod()), key.hash_of_value(of_pod), "{key:?}");
        assert_eq!(key.hash_of(&node()), key.hash_of_value(of_node), "{key:?}");
        assert!(hash_of_value(key.clone(), of_pod).matches(&pod()), "{key:?}");
        assert!(!hash_of_value(key.clone(), "other").matches(&pod()), "{key:?}");
    }
}

/// API servers hash UIDs so. The hashes of similar namespaces and labels are spread over all ranges.
#[test]
fn uids_are_hashed_as_in_api_servers_and_names_evenly() {
    assert_eq!(HashKey::Uid.hash_of_value("foobar"), fnv1a_64("foobar"));
    assert_eq!(HashKey::ControllerUid.hash_of_value("foobar"), fnv1a_64("foobar"));
    for key in [HashKey::Namespace, HashKey::Label("team".into())] {
        let names = (0..1000).map(|number| format!("team-{number:03}"));
        let mut sixteenths = [0; 16];
        for name in names {
            sixteenths[usize::try_from(key.hash_of_value(&name) >> 60).unwrap()] += 1;
        }
        assert!(
            sixteenths.iter().all(|count| (40..90).contains(count)),
            "{key:?}: {sixteenths:?}"
        );
    }
    // Another release must hash in the same way, or objects change shards at an upgrade.
    assert_eq!(HashKey::Namespace.hash_of_value(""), 0xf52a_15e9_a9b5_e89b);
}

#[test]
fn large_predicate_reads_objects_with_many_labels() {
    let numbered = (0..60_000).map(|index| (format!("k{index}").into(), format!("v{index}").into()));
    let mut object = ObjectMetadata {
        labels: numbered.collect(),
        ..ObjectMetadata::default()
    };
    object.labels.push(("k7".into(), "last".into()));
    let mut requirements = vec!["k7=last".to_owned()];
    requirements.extend((100..98 + MAX_REQUIREMENTS).map(|index| format!("k{index}=v{index}")));
    let with = |requirement: &str| labels(&format!("{},{requirement}", requirements.join(",")));
    assert!(with("!absent").matches(&object));
    assert!(!with("absent").matches(&object));
    assert!(!with("k8=last").matches(&object));
    let key = || HashKey::Label("k7".into());
    for (value, expected) in [("last", true), ("v7", false)] {
        let predicate = Predicate::all(vec![with("!absent"), hash_of_value(key(), value)]).unwrap();
        assert_eq!(predicate.matches(&object), expected, "{value}");
    }
}

#[test]
fn child_is_in_range_of_its_controller() {
    let set = ObjectMetadata {
        uid: "uid-of-set".into(),
        ..ObjectMetadata::default()
    };
    let predicate = hash_of_value(HashKey::ControllerUid, "uid-of-set");
    assert!(predicate.matches(&set) && predicate.matches(&pod()));
}

#[test]
fn server_shards_by_uid_and_namespace_only() {
    assert_eq!(HashKey::Uid.selector_path(), Some("object.metadata.uid"));
    assert_eq!(HashKey::Namespace.selector_path(), None);
    assert_eq!(HashKey::ControllerUid.selector_path(), None);
    assert_eq!(HashKey::Label("app".into()).selector_path(), None);
}

#[test]
fn groups_without_members_are_neutral() {
    let nothing = Predicate::any(vec![]).unwrap();
    assert!(everything().matches(&pod()));
    assert!(!nothing.matches(&pod()));
    assert!(nothing.negate().unwrap().matches(&pod()));
    let no_ranges = Predicate::hash_ranges(HashKey::Uid, vec![]).unwrap();
    assert!(!no_ranges.matches(&pod()));
}

/// openkruise's VirtualApp routes by `globalLimits`, by subsets and by the default subset.
#[test]
fn rules_of_virtual_apps_can_be_expressed() {
    let unanchored_regex = NameSet::new(vec![], vec![], vec![".*(?:ho|pay).*".into()]).unwrap();
    let global_limit = Predicate::Namespaces(unanchored_regex);
    let subset = Predicate::any(vec![
        Predicate::Namespaces(names(&["shop", "shop-canary"])),
        labels("app=cart,canary"),
    ])
    .unwrap();
    let other_subsets = subset.clone().negate().unwrap();
    let default_subset = Predicate::all(vec![global_limit.clone(), other_subsets]).unwrap();

    let object = |namespace: &'static str, labels: &[(&'static str, &'static str)]| ObjectMetadata {
        namespace: namespace.into(),
        labels: labels.iter().map(|&(key, value)| (key.into(), value.into())).collect(),
        ..ObjectMetadata::default()
    };
    for (object, is_in_limit, is_in_subset, is_in_default) in [
        (object("shop", &[]), true, true, false),
        (object("payment", &[]), true, false, true),
        (object("payment", &[("app", "cart"), ("canary", "")]), true, true, false),
        // One label of the two: not in the subset, so the default subset has it.
        (object("payment", &[("app", "cart")]), true, false, true),
        (object("kube-system", &[]), false, false, false),
        (object("", &[]), false, false, false),
    ] {
        assert_eq!(global_limit.matches(&object), is_in_limit, "{object:?}");
        assert_eq!(subset.matches(&object), is_in_subset, "{object:?}");
        assert_eq!(default_subset.matches(&object), is_in_default, "{object:?}");
    }
}

#[test]
fn fields_and_mutability_follow_from_parts() {
    let none = MetadataFields::default();
    let namespace = MetadataFields {
        namespace: true,
        ..none
    };
    let name = MetadataFields { name: true, ..none };
    let uid = MetadataFields { uid: true, ..none };
    let label = MetadataFields { labels: true, ..none };
    let controller = MetadataFields {
        uid: true,
        controller: true,
        ..none
    };
    let ranges_of = |key| hash_of_value(key, "");
    for (predicate, fields, is_mutable) in [
        (everything(), none, false),
        (Predicate::Namespaces(names(&[])), namespace, false),
        (Predicate::Names(names(&[])), name, false),
        (labels("a"), label, true),
        (labels(""), none, false),
        (ranges_of(HashKey::Uid), uid, false),
        (ranges_of(HashKey::Namespace), namespace, false),
        (ranges_of(HashKey::ControllerUid), controller, true),
        (ranges_of(HashKey::Label("a".into())), label, true),
    ] {
        assert_eq!(predicate.fields(), fields, "{predicate:?}");
        assert_eq!(predicate.is_mutable(), is_mutable, "{predicate:?}");
        let nested = Predicate::any(vec![everything(), predicate.negate().unwrap()]).unwrap();
        assert_eq!(nested.fields(), fields, "{nested:?}");
        assert_eq!(nested.is_mutable(), is_mutable, "{nested:?}");
    }
    let both = Predicate::all(vec![labels("a"), ranges_of(HashKey::Uid)]).unwrap();
    assert_eq!(both.fields(), label.union(uid));
    assert!(both.is_mutable());
}

#[test]
fn object_may_ever_match_unless_what_cannot_change_excludes_it() {
    let here = || Predicate::Namespaces(names(&["shop"]));
    let elsewhere = || Predicate::Namespaces(names(&["other"]));
    let unknown = || labels("app=other");
    for (predicate, expected) in [
        (here(), true),
        (elsewhere(), false),
        (Predicate::Names(names(&["cart-0"])), true),
        (Predicate::Names(names(&["cart-1"])), false),
        (hash_of_value(HashKey::Uid, "uid-of-pod"), true),
        (hash_of_value(HashKey::Uid, "other"), false),
        (hash_of_value(HashKey::Namespace, "shop"), true),
        (hash_of_value(HashKey::Namespace, "other"), false),
        // Labels and controllers can change.
        (unknown(), true),
        (hash_of_value(HashKey::ControllerUid, "other"), true),
        (hash_of_value(HashKey::Label("app".into()), "other"), true),
        (unknown().negate().unwrap(), true),
        (labels("app=cart").negate().unwrap(), true),
        // An empty selector has nothing that can change.
        (labels("").negate().unwrap(), false),
        (here().negate().unwrap(), false),
        (elsewhere().negate().unwrap(), true),
        (Predicate::all(vec![unknown(), here()]).unwrap(), true),
        (Predicate::all(vec![unknown(), elsewhere()]).unwrap(), false),
        (
            Predicate::all(vec![unknown(), elsewhere()]).unwrap().negate().unwrap(),
            true,
        ),
        (Predicate::any(vec![unknown(), elsewhere()]).unwrap(), true),
        (Predicate::any(vec![elsewhere(), elsewhere()]).unwrap(), false),
        (
            Predicate::any(vec![unknown(), here()]).unwrap().negate().unwrap(),
            false,
        ),
        (everything(), true),
        (everything().negate().unwrap(), false),
    ] {
        assert_eq!(predicate.may_ever_match(&pod()), expected, "{predicate:?}");
    }
    for times in [MAX_PREDICATE_DEPTH, MAX_PREDICATE_DEPTH + 1] {
        assert!(!negated(times).may_ever_match(&pod()), "{times}");
    }
}

#[test]
fn ranges_are_merged() {
    let range = |start, end| HashRange::new(start, end).unwrap();
    let merged = Predicate::hash_ranges(HashKey::Uid, vec![range(5, None), range(1, Some(3)), range(3, Some(4))]);
    assert_eq!(
        merged,
        Ok(Predicate::HashRanges {
            key: HashKey::Uid,
            ranges: [range(1, Some(4)), range(5, None)].into(),
        })
    );
    let unmerged = Predicate::HashRanges {
        key: HashKey::Uid,
        ranges: [range(5, None), range(1, Some(3))].into(),
    };
    assert_eq!(unmerged.validate(), Err(PredicateError::RangesNotMerged));
    assert_eq!(Predicate::all(vec![unmerged]), Err(PredicateError::RangesNotMerged));
}

fn negated(times: usize) -> Predicate {
    (0..times).fold(everything(), |predicate, _| Predicate::Not(Box::new(predicate)))
}

#[test]
fn depth_is_bounded() {
    let deepest = negated(MAX_PREDICATE_DEPTH - 1);
    assert_eq!(deepest.validate(), Ok(()));
    // 15 negations of everything keep nothing, 14 keep everything.
    assert!(!deepest.matches(&pod()));
    assert!(negated(MAX_PREDICATE_DEPTH - 2).matches(&pod()));
    assert_eq!(deepest.clone().negate(), Err(PredicateError::TooDeep));
    assert_eq!(Predicate::all(vec![deepest.clone()]), Err(PredicateError::TooDeep));
    assert_eq!(
        Predicate::any(vec![everything(), deepest]),
        Err(PredicateError::TooDeep)
    );
}

#[test]
fn too_deep_predicate_keeps_nothing() {
    for times in [MAX_PREDICATE_DEPTH, MAX_PREDICATE_DEPTH + 1, 1000, 1001] {
        let predicate = negated(times);
        assert_eq!(predicate.validate(), Err(PredicateError::TooDeep));
        assert!(!predicate.matches(&pod()), "{times}");
        assert!(!Predicate::Any([predicate].into()).matches(&pod()), "{times}");
    }
}

#[test]
fn nodes_are_bounded() {
    let group_of = |count| Predicate::any(vec![everything(); count]);
    let too_many = Err(PredicateError::TooMany {
        parts: "parts",
        limit: MAX_PREDICATE_NODES,
    });
    assert!(group_of(MAX_PREDICATE_NODES - 1).is_ok());
    assert_eq!(group_of(MAX_PREDICATE_NODES), too_many);
    let half = group_of(MAX_PREDICATE_NODES / 2).unwrap();
    assert_eq!(Predicate::all(vec![half.clone(), half]), too_many);
}

#[test]
fn ranges_are_bounded_in_total() {
    let ranges_of = |count: usize| {
        let starts = (0_u64..).step_by(2).take(count);
        let ranges = starts.map(|start| HashRange::new(start, Some(start + 1)).unwrap());
        Predicate::hash_ranges(HashKey::Uid, ranges.collect())
    };
    let too_many = Err(PredicateError::TooMany {
        parts: "hash ranges",
        limit: MAX_HASH_RANGES,
    });
    let most = ranges_of(MAX_HASH_RANGES).unwrap();
    assert_eq!(ranges_of(MAX_HASH_RANGES + 1), too_many);
    assert_eq!(Predicate::any(vec![most, ranges_of(1).unwrap()]), too_many);
    // Those that touch count once.
    let touching = (0..5000).map(|start| HashRange::new(start, Some(start + 1)).unwrap());
    assert!(Predicate::hash_ranges(HashKey::Uid, touching.collect()).is_ok());
}

#[test]
fn names_and_patterns_are_bounded_in_total() {
    let numbered = |count: usize| (0..count).map(|index| index.to_string()).collect::<Vec<_>>();
    let half = Predicate::Names(NameSet::of_names(numbered(MAX_NAMES / 2)).unwrap());
    assert!(Predicate::all(vec![half.clone(), half.clone()]).is_ok());
    assert_eq!(
        Predicate::all(vec![half.clone(), half, Predicate::Namespaces(names(&["a"]))]),
        Err(PredicateError::TooMany {
            parts: "names and prefixes",
            limit: MAX_NAMES
        })
    );
    let patterns = Predicate::Names(NameSet::new(vec![], vec![], numbered(MAX_PATTERNS / 2 + 1)).unwrap());
    assert_eq!(
        Predicate::all(vec![patterns.clone(), patterns]),
        Err(PredicateError::TooMany {
            parts: "patterns",
            limit: MAX_PATTERNS
        })
    );
}

#[test]
fn label_selectors_are_bounded_in_total() {
    let requirements_of = |count| labels(&vec!["a"; count].join(","));
    let most = requirements_of(MAX_REQUIREMENTS);
    assert_eq!(
        Predicate::all(vec![most, requirements_of(1)]),
        Err(PredicateError::TooMany {
            parts: "label requirements",
            limit: MAX_REQUIREMENTS
        })
    );
    let values: Vec<String> = (0..6000).map(|index| format!("v{index}")).collect();
    let large = labels(&format!("a in ({})", values.join(",")));
    assert_eq!(
        Predicate::all(vec![large.clone(), large]),
        Err(PredicateError::TooMany {
            parts: "bytes of label selectors",
            limit: MAX_SELECTOR_BYTES
        })
    );
}

#[test]
fn invalid_labels_are_refused() {
    let requirement = Requirement {
        key: "a b".into(),
        operator: Operator::Exists,
        values: vec![],
    };
    let selector = LabelSelector {
        requirements: vec![requirement],
    };
    assert!(matches!(Predicate::labels(selector), Err(PredicateError::Selector(_))));
    assert_eq!(
        Predicate::hash_ranges(HashKey::Label("a/b/c".into()), vec![HashRange::ALL]),
        Err(PredicateError::Selector(SelectorError::Key("a/b/c".into())))
    );
}

#[test]
fn errors_say_what_to_do() {
    for (error, text) in [
        (
            PredicateError::TooDeep,
            "the predicate has more than 16 levels; join those that are nested in one of their kind",
        ),
        (
            PredicateError::TooMany {
                parts: "hash ranges",
                limit: 1024,
            },
            "the predicate has more than 1024 hash ranges; make it smaller",
        ),
        (
            PredicateError::PatternTooLarge("a{9}".into()),
            "pattern \"a{9}\" needs more than 65536 bytes once compiled; lower its repetitions",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}
