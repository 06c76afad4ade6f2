//! Compares the matcher with a naive one, which follows the text of `match-rule` in `wit/types.wit` word by word.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;

pub(crate) const TRAFFIC_LIST: [Traffic; TRAFFICS] = [Traffic::Api, Traffic::Webhook, Traffic::External];

/// "`*` alone means any, a `*` at the end of a value matches any rest, and a `*` at its beginning any start", tried on every substring of
/// the text.
fn naive_value(pattern: &str, text: &str) -> bool {
    let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let starts = if pattern.starts_with('*') {
        cuts.clone()
    } else {
        vec![0]
    };
    let rest = pattern.strip_prefix('*').unwrap_or(pattern);
    let ends = if rest.ends_with('*') || pattern == "*" {
        cuts
    } else {
        vec![text.len()]
    };
    let core = rest.strip_suffix('*').unwrap_or(rest);
    starts
        .iter()
        .any(|start| ends.iter().any(|end| start <= end && &text[*start..*end] == core))
}

fn naive_field(patterns: &[String], text: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| naive_value(pattern, text))
}

/// All fields that are set must match.
pub(crate) fn matches_naively(subscription: &Subscription, query: &MatchQuery<'_>) -> bool {
    subscription.rules.iter().any(|rule| {
        (rule.traffic.is_empty() || rule.traffic.contains(&query.traffic))
            && (rule.verbs.is_empty() || rule.verbs.contains(&query.verb))
            && naive_field(&rule.groups, query.group)
            && naive_field(&rule.resources, query.resource)
            && naive_field(&rule.subresources, query.subresource)
            && naive_field(&rule.namespaces, query.namespace)
            && naive_field(&rule.names, query.name)
            && naive_field(&rule.paths, query.path)
            && naive_field(&rule.hosts, query.host)
            && naive_field(&rule.user_agents, query.user_agent)
    })
}

/// Few letters, so that matches are as likely as misses.
fn text() -> impl Strategy<Value = String> {
    "[ab]{0,3}"
}

fn patterns() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[*ab]{0,3}", 0..3)
}

fn some_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = Vec<T>> {
    prop::collection::vec(select(all), 0..3)
}

prop_compose! {
    fn rule()(
        traffic in some_of(&TRAFFIC_LIST),
        verbs in some_of(&VERBS),
        fields in prop::collection::vec(patterns(), 8),
    ) -> MatchRule {
        let mut fields = fields.into_iter();
        let mut next = || fields.next().unwrap();
        MatchRule {
            traffic,
            verbs,
            groups: next(),
            resources: next(),
            subresources: next(),
            namespaces: next(),
            names: next(),
            paths: next(),
            hosts: next(),
            user_agents: next(),
        }
    }
}

/// The text of a request, owned.
#[derive(Debug, Clone)]
pub(crate) struct Words {
    traffic: Traffic,
    verb: Verb,
    fields: Vec<String>,
}

impl Words {
    pub(crate) fn query(&self) -> MatchQuery<'_> {
        let field = |at: usize| self.fields[at].as_str();
        MatchQuery {
            traffic: self.traffic,
            verb: self.verb,
            group: field(0),
            resource: field(1),
            subresource: field(2),
            namespace: field(3),
            name: field(4),
            path: field(5),
            host: field(6),
            user_agent: field(7),
        }
    }
}

prop_compose! {
    pub(crate) fn words()(
        traffic in select(&TRAFFIC_LIST[..]),
        verb in select(&VERBS[..]),
        fields in prop::collection::vec(text(), 8),
    ) -> Words {
        Words { traffic, verb, fields }
    }
}

prop_compose! {
    pub(crate) fn subscription()(rules in prop::collection::vec(rule(), 0..4)) -> Subscription {
        Subscription { rules, ..Subscription::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn matcher_agrees_with_naive_matcher(subscription in subscription(), words in words()) {
        let (matcher, query) = (Matcher::new(&subscription), words.query());
        prop_assert_eq!(matcher.matches(&query), matches_naively(&subscription, &query));
    }

    #[test]
    fn may_match_is_true_for_every_match(subscription in subscription(), words in words()) {
        let (matcher, query) = (Matcher::new(&subscription), words.query());
        let may = matcher.may_match(traffic_index(query.traffic), verb_index(query.verb));
        prop_assert!(may || !matcher.matches(&query));
    }

    #[test]
    fn patterns_agree_with_naive_matcher(pattern in "[*ab]{0,4}", text in text()) {
        let patterns = Patterns::new(std::slice::from_ref(&pattern));
        prop_assert_eq!(patterns.matches(&text), naive_value(&pattern, &text));
    }
}

#[test]
fn stars_match_as_contract_defines() {
    let cases = [
        ("pods", "pods", true),
        ("pods", "pod", false),
        ("*", "", true),
        ("*", "pods", true),
        ("**", "pods", true),
        ("kube-*", "kube-system", true),
        ("kube-*", "kube-", true),
        ("kube-*", "my-kube-x", false),
        ("*-system", "kube-system", true),
        ("*-system", "kube-systems", false),
        ("*ube*", "kube-system", true),
        ("a*c", "abc", false),
        ("a*c", "a*c", true),
        ("", "", true),
        ("", "status", false),
    ];
    for (pattern, text, expected) in cases {
        assert_eq!(
            Patterns::new(&[pattern.to_owned()]).matches(text),
            expected,
            "{pattern:?} on {text:?}"
        );
        assert_eq!(naive_value(pattern, text), expected, "naive: {pattern:?} on {text:?}");
    }
}

#[test]
fn subscription_without_rules_matches_nothing() {
    let words = Words {
        traffic: Traffic::Api,
        verb: Verb::Get,
        fields: vec![String::new(); 8],
    };
    assert!(!Matcher::new(&Subscription::default()).matches(&words.query()));
    let any = Subscription {
        rules: vec![MatchRule::default()],
        ..Subscription::default()
    };
    assert!(Matcher::new(&any).matches(&words.query()));
}

#[test]
fn indexes_are_distinct_and_in_range() {
    let verbs: Vec<usize> = VERBS.into_iter().map(verb_index).collect();
    assert_eq!(verbs, (0..VERBS.len()).collect::<Vec<_>>());
    let traffics: Vec<usize> = TRAFFIC_LIST.into_iter().map(traffic_index).collect();
    assert_eq!(traffics, (0..TRAFFICS).collect::<Vec<_>>());
}
