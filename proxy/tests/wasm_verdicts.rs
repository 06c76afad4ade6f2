//! Requests as plugins see them, and the verdicts that plugins may return, in the real engine. The guests return the
//! verdicts of their settings.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use ctrlmesh_plugins_builtin::{builtin, guests};
use ctrlmesh_proxy::harness::{Harness, Request, get, request, response};
use ctrlmesh_proxy::plugin::dropped_fields::PluginDroppedFields;
use ctrlmesh_proxy::plugin::verdict::{
    BodyShape, Outcome, Phases, Refusal, RequestAction, RequestEdit, Reset, ResponseAction, ResponseEdit, Reuse,
    Traffic,
};
use ctrlmesh_proxy::wasm::Fault;
use http::{Method, StatusCode};

fn new_harness(guest: &str, settings: &str) -> Harness {
    Harness::with_limits(
        guests::get(guest).expect("the guest exists"),
        settings,
        Duration::from_secs(5),
        16 << 20,
    )
    .expect("it starts")
}

/// The verdict of `scripted` on a list of pods, when its settings have this verdict.
fn request_verdict(then: &str) -> Result<(Duration, RequestAction), Fault> {
    let mut plugin = new_harness("scripted", &format!(r#"{{"onRequest": [{then}]}}"#));
    plugin
        .request(&get("/api/v1/pods"))
        .map(|verdict| (verdict.delay, verdict.action))
}

fn response_verdict(then: &str) -> Result<(Duration, ResponseAction), Fault> {
    let mut plugin = new_harness("scripted", &format!(r#"{{"onResponse": [{then}]}}"#));
    let verdict = plugin.response(&get("/api/v1/pods"), &response(StatusCode::OK));
    verdict.map(|verdict| (verdict.delay, verdict.action))
}

fn header_field(name: &'static str, value: &'static str) -> (http::HeaderName, http::HeaderValue) {
    (
        http::HeaderName::from_static(name),
        http::HeaderValue::from_static(value),
    )
}

#[test]
fn every_request_edit_arrives_in_order() {
    let (delay, action) = request_verdict(
        r#"{"delayMs": 5, "then": {"proceed": [
            {"andLabelSelector": "shard=a"},
            {"andFieldSelector": "spec.nodeName=n"},
            {"setQuery": {"name": "limit", "value": "500"}},
            {"removeQuery": "pretty"},
            {"setHeader": {"name": "X-Shard", "value": "a"}},
            {"removeHeader": "x-debug"},
            {"renameObject": {"from": "lock", "to": "lock---shard-0"}},
            {"dropFields": ["spec.template", "metadata.managedFields"]}
        ]}}"#,
    )
    .expect("a verdict");
    let (set, value) = header_field("x-shard", "a");
    let paths = ["metadata.managedFields", "spec.template"].map(str::to_owned);
    assert_eq!(delay, Duration::from_millis(5));
    assert_eq!(
        action,
        RequestAction::Proceed(vec![
            RequestEdit::AndLabelSelector("shard=a".into()),
            RequestEdit::AndFieldSelector("spec.nodeName=n".into()),
            RequestEdit::SetQuery("limit".into(), "500".into()),
            RequestEdit::RemoveQuery("pretty".into()),
            RequestEdit::SetHeader(set, value),
            RequestEdit::RemoveHeader(http::HeaderName::from_static("x-debug")),
            RequestEdit::RenameObject {
                from: "lock".into(),
                to: "lock---shard-0".into()
            },
            RequestEdit::DropFields(PluginDroppedFields::parse(paths.into()).unwrap()),
        ])
    );
}

#[test]
fn dropped_paths_are_bounded_over_all_edits() {
    let paths = vec!["metadata.managedFields"; 16];
    let edit = format!(r#"{{"dropFields": {paths:?}}}"#);
    let edit = edit.as_str();
    let verdict = |edits: &[&str]| request_verdict(&format!(r#"{{"then": {{"proceed": [{}]}}}}"#, edits.join(",")));
    assert!(verdict(&[edit; 4]).is_ok());
    let one_more = r#"{"dropFields": ["spec"]}"#;
    let refused = verdict(&[edit, edit, one_more, edit, edit]).unwrap_err();
    assert!(
        matches!(&refused, Fault::Invalid { what, .. } if what.contains("65 paths of dropped fields")),
        "{refused:?}"
    );
}

#[test]
fn refusals_and_resets_arrive() {
    let refusal = Refusal {
        code: 429,
        reason: "TooManyRequests".into(),
        message: "slow down".into(),
        retry_after_seconds: Some(2),
        cause: Some("rule-1".into()),
        details: None,
    };
    let text = r#"{"code": 429, "reason": "TooManyRequests", "message": "slow down", "retryAfterSeconds": 2, "cause": "rule-1"}"#;
    let (_, action) = request_verdict(&format!(r#"{{"then": {{"refuse": {text}}}}}"#)).expect("a verdict");
    assert_eq!(action, RequestAction::Refuse(refusal.clone()));
    let (_, action) = response_verdict(&format!(r#"{{"then": {{"replace": {text}}}}}"#)).expect("a verdict");
    assert_eq!(action, ResponseAction::Replace(refusal));
    for (text, how) in [
        ("cancel", Reset::Cancel),
        ("internal-error", Reset::InternalError),
        ("close", Reset::Close),
        ("hang", Reset::Hang),
        ("black-hole", Reset::BlackHole),
    ] {
        let then = format!(r#"{{"then": {{"reset": "{text}"}}}}"#);
        assert_eq!(request_verdict(&then).expect("a verdict").1, RequestAction::Reset(how));
        assert_eq!(
            response_verdict(&then).expect("a verdict").1,
            ResponseAction::Reset(how)
        );
    }
}

#[test]
fn every_change_of_response_arrives() {
    let (delay, action) = response_verdict(
        r#"{"delayMs": 7, "then": {"proceed": {
            "edits": [{"setHeader": {"name": "x-a", "value": "b"}}, {"removeHeader": "etag"}],
            "body": {"pace": 100, "holdMs": 20, "cutAfter": 30, "endAfterMs": 40, "expired": true, "reset": "close"}
        }}}"#,
    )
    .expect("a verdict");
    let (set, value) = header_field("x-a", "b");
    let body = BodyShape {
        pace: Some(100),
        hold: Some(Duration::from_millis(20)),
        cut_after: Some(30),
        end_after: Some(Duration::from_millis(40)),
        expired: true,
        reset: Reset::Close,
    };
    assert_eq!(delay, Duration::from_millis(7));
    let edits = vec![
        ResponseEdit::SetHeader(set, value),
        ResponseEdit::RemoveHeader(http::HeaderName::from_static("etag")),
    ];
    assert_eq!(
        action,
        ResponseAction::Proceed {
            edits,
            body: Some(body)
        }
    );
}

#[test]
fn delay_is_cut_to_minute() {
    let (delay, _) = request_verdict(r#"{"delayMs": 4000000000, "then": {"proceed": []}}"#).expect("a verdict");
    assert_eq!(delay, Duration::from_secs(60));
}

/// Scripts of `scripted` whose verdicts break a rule, and words of the fault.
fn illegal_scripts() -> Vec<(String, &'static str)> {
    let proceed = |edits: &str| format!(r#"{{"then": {{"proceed": [{edits}]}}}}"#);
    let long = "x".repeat(70_000);
    vec![
        (proceed(r#"{"andLabelSelector": ""}"#), "empty selector"),
        (proceed(r#"{"andFieldSelector": " "}"#), "empty selector"),
        (
            proceed(r#"{"setQuery": {"name": "labelSelector", "value": "a=b"}}"#),
            "labelSelector",
        ),
        (proceed(r#"{"removeQuery": "fieldSelector"}"#), "fieldSelector"),
        (
            proceed(r#"{"setHeader": {"name": "a b", "value": ""}}"#),
            "no header name",
        ),
        (
            proceed(r#"{"setHeader": {"name": "x-a", "value": "a\r\nb: c"}}"#),
            "x-a",
        ),
        (
            proceed(r#"{"setHeader": {"name": "Content-Length", "value": "0"}}"#),
            "content-length",
        ),
        (proceed(r#"{"removeHeader": "Authorization"}"#), "authorization"),
        (
            proceed(r#"{"setHeader": {"name": "Impersonate-User", "value": "admin"}}"#),
            "impersonate-user",
        ),
        (
            proceed(r#"{"renameObject": {"from": "a", "to": "../secrets/b"}}"#),
            "no object name",
        ),
        (proceed(&format!(r#"{{"andLabelSelector": "{long}"}}"#)), "65536 bytes"),
        (r#"{"then": {"refuse": {"code": 200}}}"#.to_owned(), "code 200"),
        (
            r#"{"times": 65, "then": {"proceed": [{"removeHeader": "x"}]}}"#.to_owned(),
            "65 edits",
        ),
    ]
}

#[test]
fn invalid_verdict_is_fault_that_names_broken_rule() {
    for (then, expected) in illegal_scripts() {
        let fault = request_verdict(&then).map(|_| ()).expect_err("a fault");
        let Fault::Invalid { what, .. } = &fault else {
            panic!("{fault}")
        };
        assert!(what.contains(expected), "{what}");
    }
    let fault = response_verdict(r#"{"then": {"proceed": {"body": {"expired": true}}}}"#)
        .map(|_| ())
        .expect_err("a fault");
    assert!(matches!(fault, Fault::Invalid { .. }), "{fault}");
}

#[test]
fn verdict_of_many_megabytes_is_stopped_before_host_allocates_it() {
    let text = "x".repeat(100_000);
    let long = format!(r#"{{"times": 60, "then": {{"proceed": [{{"andLabelSelector": "{text}"}}]}}}}"#);
    let many = r#"{"times": 100000, "then": {"proceed": [{"removeHeader": "x"}]}}"#;
    for then in [long.as_str(), many] {
        let fault = request_verdict(then).map(|_| ()).expect_err("a fault");
        let Fault::Invalid { what, .. } = &fault else {
            panic!("{fault}")
        };
        // The engine's words: it stops while it reads, and our own bounds, which come after, have not been asked.
        assert!(what.contains("hostcalls"), "{what}");
    }
}

#[test]
fn reuse_and_later_phases_arrive() {
    let verdict_of = |line: &str| {
        let mut plugin = new_harness("scripted", &format!(r#"{{"onRequest": [{line}]}}"#));
        plugin.request(&get("/api/v1/pods")).expect("a verdict")
    };
    let verdict = verdict_of(r#"{"then": {"proceed": []}}"#);
    assert_eq!((verdict.reuse, verdict.later), (Reuse::Never, Phases::ALL));
    let verdict = verdict_of(r#"{"reuse": "whileUnchanged", "later": [], "then": {"proceed": []}}"#);
    assert_eq!(
        (verdict.reuse, verdict.later),
        (Reuse::WhileUnchanged, Phases::default())
    );
    let verdict = verdict_of(r#"{"reuse": {"untilUnixMs": 7}, "later": ["on-complete"], "then": {"proceed": []}}"#);
    let complete = Phases {
        complete: true,
        ..Phases::default()
    };
    assert_eq!((verdict.reuse, verdict.later), (Reuse::UntilUnixMs(7), complete));
}

#[test]
fn question_about_objects_names_each_annotation_once() {
    let line = r#"{"then": {"proceed": [{"askAboutObjects": ["b", "a", "b"]}, {"askAboutObjects": []}]}}"#;
    let mut plugin = new_harness("scripted", &format!(r#"{{"onRequest": [{line}]}}"#));
    let verdict = plugin.request(&get("/api/v1/pods")).expect("a verdict");
    let RequestAction::Proceed(edits) = verdict.action else {
        panic!("{verdict:?}")
    };
    let questions = edits.iter().filter_map(RequestEdit::question);
    let keys: Vec<Vec<&str>> = questions.map(|question| question.annotations().collect()).collect();
    assert_eq!(keys, [&["a", "b"][..], &[]]);
}

#[test]
fn outcomes_are_counted_by_the_rules_of_a_verdict() {
    let line =
        |outcomes: &str| format!(r#"{{"onRequest": [{{"outcomes": [{outcomes}], "then": {{"proceed": []}}}}]}}"#);
    let mut plugin = new_harness("scripted", &line(r#"{"tally": "t", "cells": ["c"], "failures": 2}"#));
    let ended = |status| Outcome {
        status,
        upstream_status: status,
        failure: None,
        duration: Duration::from_millis(2),
        upstream: Duration::from_millis(1),
        request_bytes: 0,
        response_bytes: 0,
    };
    let mut crossings = Vec::new();
    for status in [500, 200, 500, 500, 500] {
        let verdict = plugin.request(&get("/api/v1/pods")).expect("a verdict");
        crossings.push(plugin.count(&verdict, &ended(status)).expect("no fault"));
    }
    assert_eq!(crossings, [0, 0, 0, 1, 0]);
    let metrics = plugin.metrics();
    let crossed: Vec<&str> = metrics
        .iter()
        .filter(|series| series.name == "crossed")
        .map(|series| series.label.as_str())
        .collect();
    assert_eq!(crossed, ["t"], "the plugin was told");
    for invalid in [
        r#"{"tally": "t", "failures": 0}"#,
        r#"{"tally": "t", "failures": 1}, {"tally": "t", "failures": 2}"#,
        r#"{"tally": "t", "cells": ["a", "b", "c", "d", "e"], "failures": 1}"#,
    ] {
        let fault = new_harness("scripted", &line(invalid)).request(&get("/api/v1/pods"));
        assert!(matches!(fault, Err(Fault::Invalid { .. })), "{invalid}");
    }
}

#[test]
fn fresh_instance_serves_after_invalid_verdict() {
    let mut plugin = new_harness(
        "scripted",
        r#"{"onRequest": [{"when": {"name": "bad"}, "then": {"refuse": {"code": 1}}}]}"#,
    );
    assert!(plugin.request(&get("/api/v1/namespaces/a/pods/bad")).is_err());
    let verdict = plugin
        .request(&get("/api/v1/namespaces/a/pods/good"))
        .expect("a verdict");
    assert_eq!(verdict.action, RequestAction::Proceed(vec![]));
}

/// The headers `x-seen-…` that `scripted` answers.
fn seen_headers(request: &Request, echo: &str) -> BTreeMap<String, String> {
    let settings = format!(r#"{{"onResponse": [{{"echo": "{echo}", "then": {{"proceed": {{}}}}}}]}}"#);
    let response = response(StatusCode::CREATED)
        .header("x-case", "from upstream")
        .header("set-cookie", "secret");
    let verdict = new_harness("scripted", &settings)
        .response(request, &response)
        .expect("a verdict");
    let ResponseAction::Proceed { edits, .. } = verdict.action else {
        panic!("{verdict:?}")
    };
    let set = |edit| match edit {
        ResponseEdit::SetHeader(name, value) => {
            let name = name.as_str().trim_start_matches("x-seen-").to_owned();
            (name, value.to_str().expect("text").to_owned())
        }
        other => panic!("{other:?}"),
    };
    edits.into_iter().map(set).collect()
}

#[test]
fn plugin_is_shown_parsed_request_and_no_credentials() {
    let target =
        "/apis/apps/v1/namespaces/a/deployments/web%2D0/status?labelSelector=a%3Db&fieldSelector=c%3Dd&x-case=q+1";
    let request = request(Method::PATCH, target)
        .user_agent("operator/1.0")
        .header("authorization", "Bearer secret")
        .header("cookie", "secret")
        .header("x-case", "from client")
        .header("content-length", "42");
    let seen = seen_headers(&request, "x-case");
    for (name, value) in [
        ("port", "443"),
        ("leader-lock", "false"),
        ("note", "0"),
        ("traffic", "api"),
        ("verb", "patch"),
        ("group", "apps"),
        ("version", "v1"),
        ("resource", "deployments"),
        ("subresource", "status"),
        ("namespace", "a"),
        ("name", "web-0"),
        (
            "facts",
            r#"Facts { traffic: Traffic::Api, verb: Verb::Patch, group: "apps", version: "v1", resource: "deployments", subresource: "status", namespace: "a", name: "web-0" }"#,
        ),
        ("method", "PATCH"),
        ("path", "/apis/apps/v1/namespaces/a/deployments/web-0/status"),
        ("host", "kubernetes.default.svc"),
        ("user-agent", "operator/1.0"),
        ("label-selector", "a=b"),
        ("field-selector", "c=d"),
        ("size", "42"),
        ("authorization", "none"),
        ("request-header", "from client"),
        ("query", "q 1"),
        ("status", "201"),
        ("response-header", "from upstream"),
    ] {
        assert_eq!(seen.get(name).map(String::as_str), Some(value), "{name}");
    }
}

#[test]
fn credential_headers_are_hidden_in_every_spelling() {
    let request = get("/api/v1/pods")
        .header("authorization", "Bearer secret")
        .header("cookie", "secret")
        .header("proxy-authorization", "Basic secret")
        .header(
            "sec-websocket-protocol",
            "base64url.bearer.authorization.k8s.io.c2VjcmV0",
        );
    for name in [
        "Authorization",
        "COOKIE",
        "Proxy-Authorization",
        "Sec-WebSocket-Protocol",
        "Set-Cookie",
    ] {
        let seen = seen_headers(&request, name);
        assert_eq!(seen.get("request-header").map(String::as_str), Some("none"), "{name}");
        assert_eq!(seen.get("response-header").map(String::as_str), Some("none"), "{name}");
    }
}

#[test]
fn kinds_of_traffic_are_distinguished() {
    let request = get("/hook").with_change(|view| {
        view.traffic = Traffic::External;
        view.host = "api.example.com".into();
    });
    let seen = seen_headers(&request, "x-case");
    assert_eq!(seen.get("traffic").map(String::as_str), Some("external"));
    assert_eq!(seen.get("host").map(String::as_str), Some("api.example.com"));
    assert_eq!(seen.get("verb").map(String::as_str), Some("nonresource"));
}

#[test]
fn host_reads_subscription_as_plugin_wrote_it() {
    let plugin = new_harness(
        "scripted",
        r#"{"subscribe": [{"traffic": ["api"], "verbs": ["list", "deletecollection"], "groups": [""], "resources": ["pods"],
            "subresources": [""], "namespaces": ["a", "b*"], "names": ["n"], "paths": ["/p"], "hosts": ["h"],
            "userAgents": ["u*"]}], "onRequest": [{"then": {"proceed": []}}], "countCompleted": true}"#,
    );
    let subscription = plugin.subscription();
    assert_eq!(
        (
            subscription.phases.request,
            subscription.phases.response,
            subscription.phases.complete
        ),
        (true, false, true)
    );
    let [rule] = &subscription.rules[..] else {
        panic!("{subscription:?}")
    };
    assert_eq!(rule.traffic, [Traffic::Api]);
    assert_eq!(
        rule.verbs,
        [ctrlmesh_wire::Verb::List, ctrlmesh_wire::Verb::DeleteCollection]
    );
    assert_eq!(
        (&rule.groups[..], &rule.resources[..]),
        (&["".to_owned()][..], &["pods".to_owned()][..])
    );
    assert_eq!(
        (&rule.subresources[..], &rule.namespaces[..]),
        (&["".to_owned()][..], &["a".to_owned(), "b*".into()][..])
    );
    assert_eq!(
        (&rule.names[..], &rule.paths[..]),
        (&["n".to_owned()][..], &["/p".to_owned()][..])
    );
    assert_eq!(
        (&rule.hosts[..], &rule.user_agents[..]),
        (&["h".to_owned()][..], &["u*".to_owned()][..])
    );
}

#[test]
fn shard_selector_narrows_list_and_leaves_get_alone() {
    let wasm = builtin()
        .iter()
        .find(|plugin| plugin.name == "shard-selector")
        .expect("it is built in")
        .bytes;
    let settings = r#"{"limits": [{"selector": {"matchLabels": {"shard": "a"}}}]}"#;
    let mut plugin = Harness::new(wasm, settings).expect("it starts");
    let verdict = plugin
        .request(&get("/api/v1/pods?labelSelector=app%3Dweb"))
        .expect("a verdict");
    assert_eq!(
        verdict.action,
        RequestAction::Proceed(vec![RequestEdit::AndLabelSelector("shard=a".into())])
    );
    let verdict = plugin.request(&get("/api/v1/namespaces/a/pods/p")).expect("a verdict");
    assert_eq!(verdict.action, RequestAction::Proceed(vec![]));
}
