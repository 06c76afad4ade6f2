//! Texts before and after fixing, and texts that must not change.

use super::*;

/// Returns the changes and the changed text. Fails if a second run changes more.
fn fix_twice(text: &str) -> (Vec<String>, String) {
    let fix_text = |text: &str| super::fix_text(text, &LabelKeys::default());
    let (new, done) = fix_text(text);
    let left: Vec<_> = fix_text(&new).1.into_iter().filter(|done| done.is_made).collect();
    assert_eq!(
        (fix_text(&new).0, left),
        (new.clone(), Vec::new()),
        "a second time changes nothing"
    );
    let fix_text = |done: FixOutcome| format!("{}{}", if done.is_made { "" } else { "not: " }, done.change);
    (done.into_iter().map(fix_text).collect(), new)
}

const SHARD: &str = "\
# Before.
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: a}   # a name
spec:
  limits:
    - objectSelector:
        # What is limited.
        relatedResources:
          - apiGroups: ['*']
            resources:
              - pods      # its children
              - 'configmap'
        selector:
          matchLabels:
            a: 1
    # After.
  selector:
    matchLabels: {app: a}
# The end.
";

#[test]
fn ambiguous_scalar_is_left_to_its_author() {
    for (written, is_fixed) in [
        ("1", true),
        ("-3", true),
        ("true", true),
        ("1.5", true),
        ("1.10", false),
        ("007", false),
        ("012", false),
        ("0x10", false),
        ("1_000", false),
        ("1234e5", false),
        ("12345678901234567890123", false),
        ("NO", false),
        ("yes", false),
        ("on", false),
    ] {
        let text = format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {{name: a}}\nspec:\n  selector:\n    \
             matchLabels:\n      a: {written}\n"
        );
        let (done, new) = fix_twice(&text);
        assert_eq!(
            done.iter().any(|done| done.contains("is read as")),
            !is_fixed,
            "{done:?}"
        );
        let quoted = format!("a: \"{written}\"");
        let expected = if is_fixed {
            text.replace(&format!("a: {written}"), &quoted)
        } else {
            text
        };
        assert_eq!(new, expected, "{written}");
    }
}

#[test]
fn fix_changes_only_the_fixed_part_of_text() {
    let text = SHARD.replace("        # What is limited.\n", "");
    let (done, new) = fix_twice(&text);
    assert_eq!(
        done,
        [
            "spec.limits[0].objectSelector: removed, and its fields put in its place",
            "spec.limits[0].relatedResources: renamed to relateResources",
            "spec.limits[0].selector.matchLabels.a: is \"1\" now",
            "spec.limits[0].relateResources[0].resources[1]: is \"configmaps\" now",
        ]
    );
    let expected = "\
# Before.
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: a}   # a name
spec:
  limits:
    - relateResources:
        - apiGroups: ['*']
          resources:
            - pods      # its children
            - 'configmaps'
      selector:
        matchLabels:
          a: \"1\"
    # After.
  selector:
    matchLabels: {app: a}
# The end.
";
    assert_eq!(new, expected);
}

#[test]
fn change_is_left_to_a_person_when_it_would_lose_a_comment() {
    let (done, new) = fix_twice(SHARD);
    assert_eq!(
        done,
        [
            "not: this change cannot be made automatically in this text; make it by hand: spec.limits[0].objectSelector: removed, and \
             its fields put in its place"
        ]
    );
    assert_eq!(new, SHARD);
}

#[test]
fn match_lists_move_below_http_match_in_any_style() {
    let object = |matching: &str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: FaultInjection\nmetadata: {{name: a}}\nspec:\n  selector: {{}}\n  \
             httpFault:\n  - delay: {{fixedDelay: 5s}}\n{matching}  - abort: {{httpStatus: 500}}\n    match:\n      resources: []\n"
        )
    };
    for (before, after) in [
        (
            "    match:\n      - method: POST\n        url: https://*.com/*\n",
            "    match:\n      httpMatch:\n      - method: POST\n        url: https://*.com/*\n",
        ),
        (
            "    match:\n    - method: POST\n      url: https://*.com/*   # all\n",
            "    match:\n      httpMatch:\n      - method: POST\n        url: https://*.com/*   # all\n",
        ),
        (
            "    match: [{method: POST}]\n",
            "    match: {httpMatch: [{method: POST}]}\n",
        ),
    ] {
        let (done, new) = fix_twice(&object(before));
        assert_eq!(done, ["spec.httpFault[0].match: put below httpMatch"], "{before}");
        assert_eq!(new, object(after));
    }
}

#[test]
fn resource_selector_moves_below_root() {
    let head = "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {name: a}\nspec:\n";
    let list = "  resourceSelector:\n  - relateResources:\n    # These.\n    - {apiGroups: ['*'], resources: [pods]}\n";
    let root = "  root:\n      prefix: p\n      auto:\n        shardingSize: 2\n";
    let moved = "      resourceSelector:\n      - relateResources:\n        # These.\n        - {apiGroups: ['*'], resources: [pods]}\n";
    let rest = "  controller: {leaderElectionName: a}\n";
    for (before, after) in [
        (format!("{root}{list}{rest}"), format!("{root}{moved}{rest}")),
        (format!("{list}{root}{rest}"), format!("{root}{moved}{rest}")),
        (
            format!("{rest}{list}{root}").trim_end().to_owned(),
            format!("{rest}{root}{moved}"),
        ),
    ] {
        let (done, new) = fix_twice(&format!("{head}{before}"));
        assert_eq!(done, ["spec.resourceSelector: moved into root beside it"], "{before}");
        assert_eq!(new, format!("{head}{after}"));
    }
}

#[test]
fn removed_fields_take_their_lines_or_commas() {
    let object = |selector: &str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {{name: a}}\nspec:\n{selector}  root: {{prefix: p}}\n"
        )
    };
    let pods = "{key: statefulset.kubernetes.io/pod-name, operator: In, values: [t-0]}";
    for (before, after) in [
        (
            format!("  selector:\n    matchExpressions:\n    - {pods}\n"),
            String::new(),
        ),
        (
            format!("  selector: {{matchExpressions: [{pods}]}} # pods\n"),
            String::new(),
        ),
        (
            format!("  selector:\n    matchExpressions:\n    - {pods}\n    - {{key: a, operator: Exists}}\n"),
            "  selector:\n    matchExpressions:\n    - {key: a, operator: Exists}\n".to_owned(),
        ),
        (
            format!("  selector: {{matchExpressions: [{pods}, {{key: a, operator: Exists}}]}}\n"),
            "  selector: {matchExpressions: [{key: a, operator: Exists}]}\n".to_owned(),
        ),
        (
            format!("  selector: {{matchExpressions: [{{key: a, operator: Exists}}, {pods}]}}\n"),
            "  selector: {matchExpressions: [{key: a, operator: Exists}]}\n".to_owned(),
        ),
        (
            "  selector:\n    matchLabels:\n      statefulset.kubernetes.io/pod-name: t-0\n      a: b\n".to_owned(),
            "  selector:\n    matchLabels:\n      a: b\n".to_owned(),
        ),
    ] {
        let (done, new) = fix_twice(&object(&before));
        assert_eq!(done.len(), 1, "{done:?}");
        assert_eq!(new, object(&after), "{before}");
    }
}

#[test]
fn json_and_kubectl_lists_are_fixed() {
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [
  {\"kind\": \"Pod\", \"apiVersion\": \"v1\"},
  {\"apiVersion\": \"ctrlmesh.kusionstack.io/v1alpha1\", \"kind\": \"FaultInjection\", \"spec\": {\"httpFault\": [
    {\"match\": [{\"method\": \"GET\"}]}, {\"match\": {\"relatedResources\": []}}]}}
]}
";
    let (done, new) = fix_twice(json);
    assert_eq!(
        done,
        [
            "spec.httpFault[0].match: put below httpMatch",
            "spec.httpFault[1].match.relatedResources: renamed to resources",
        ]
    );
    let expected = json
        .replace("[{\"method\": \"GET\"}]", "{\"httpMatch\": [{\"method\": \"GET\"}]}")
        .replace("relatedResources", "resources");
    assert_eq!(new, expected);
}

#[test]
fn other_documents_of_a_file_are_untouched() {
    let shard = SHARD.replace("        # What is limited.\n", "");
    let others = "apiVersion: v1\nkind: ConfigMap\ndata: {a:   b}\n---\na: [\n---\n# Nothing.\n---\n";
    let (done, new) = fix_twice(&format!("{others}{shard}---\n{others}"));
    assert_eq!(done.len(), 4, "{done:?}");
    assert!(
        new.starts_with(others) && new.ends_with(&format!("# The end.\n---\n{others}")),
        "{new}"
    );
    let (done, new) = fix_twice(others);
    assert_eq!((done, new.as_str()), (Vec::new(), others));
}

#[test]
fn text_is_left_to_a_person_when_it_has_aliases() {
    let text = SHARD
        .replace("        # What is limited.\n", "")
        .replace("objectSelector:", "objectSelector: &it")
        .replace(
            "  selector:\n    matchLabels: {app: a}\n",
            "    - objectSelector: *it\n",
        );
    let (done, new) = fix_twice(&text);
    assert_eq!(new, text, "{done:?}");
    assert!(done.iter().all(|done| done.starts_with("not: ")), "{done:?}");
}

/// `on: yes` is a decision; nothing else of the object is.
#[test]
fn change_that_is_left_to_a_person_hides_no_other() {
    let text = SHARD
        .replace("        # What is limited.\n", "")
        .replace(
            "            a: 1\n",
            "            a: 1\n            on: yes\n            sharding-hash: 3\n",
        )
        .replace("{app: a}", "{app: a, v: 1.10, w: 2}");
    let (done, new) = fix_twice(&text);
    let is_read = |what: &str| format!("not: spec.{what}; write in quotes what it is meant to be");
    assert_eq!(
        done,
        [
            "spec.limits[0].objectSelector: removed, and its fields put in its place".to_owned(),
            "spec.limits[0].relatedResources: renamed to relateResources".to_owned(),
            "spec.limits[0].selector.matchLabels.a: is \"1\" now".to_owned(),
            "spec.limits[0].selector.matchLabels.\"sharding-hash\": is \"3\" now".to_owned(),
            "spec.selector.matchLabels.w: is \"2\" now".to_owned(),
            "spec.limits[0].relateResources[0].resources[1]: is \"configmaps\" now".to_owned(),
            is_read("limits[0].selector.matchLabels.on: yes is read as true"),
            is_read("selector.matchLabels.v: 1.10 is read as 1.1"),
        ]
    );
    assert!(
        new.contains("sharding-hash: \"3\"\n") && new.contains("{app: a, v: 1.10, w: \"2\"}"),
        "{new}"
    );
}

#[test]
fn part_of_an_alias_is_fixed_at_its_anchor() {
    let text = "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {name: a}\nspec:\n  limits:\n  - selector: &s\n      \
                matchLabels: {a: 1}\n    relateResources: [{apiGroups: [''], resources: [configmap]}]\n  selector: *s\n";
    let (done, new) = fix_twice(text);
    assert_eq!(
        done,
        [
            "spec.limits[0].selector.matchLabels.a: is \"1\" now",
            "spec.limits[0].relateResources[0].resources[0]: is \"configmaps\" now"
        ]
    );
    assert_eq!(
        new,
        text.replace("a: 1", "a: \"1\"").replace("configmap]", "configmaps]")
    );
}

#[test]
fn removed_item_that_an_alias_holds_moves_no_other() {
    let text = "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {name: a}\nspec:\n  limits:\n  - \
                relateResources:\n    - apiGroups: ['']\n      resources: &r [pod, pods, configmap]\n    - apiGroups: ['']\n      resources: *r\n";
    let (done, new) = fix_twice(text);
    assert_eq!(new, text.replace("configmap]", "configmaps]"), "{done:?}");
    let made = done.iter().filter(|done| !done.starts_with("not: "));
    assert_eq!((made.count(), done.len()), (1, 3), "{done:?}");
}

#[test]
fn line_breaks_of_windows_are_kept() {
    let text = "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: FaultInjection\nmetadata: {name: a}\nspec:\n  httpFault:\n  - match:\n    - \
                method: POST\n    - method: PUT\n";
    let (done, new) = fix_twice(&text.replace('\n', "\r\n"));
    assert_eq!(done.len(), 1, "{done:?}");
    assert_eq!(new.matches('\n').count(), new.matches("\r\n").count(), "{new:?}");
    assert!(new.contains("httpMatch:\r\n"), "{new:?}");
}
