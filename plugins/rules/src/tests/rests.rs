use ctrlmesh_sdk::Verb;
use ctrlmesh_sdk::testing::TestRequest;

use super::{is_match, rest_bench};

/// A rule and its requests: (rule, [(method, host, port, path, matches)]).
type Case<'a> = (&'a str, &'a [(&'a str, &'a str, u16, &'a str, bool)]);

fn check_cases(cases: &[Case<'_>]) {
    for (rule, requests) in cases {
        let mut bench = rest_bench(rule);
        for (method, host, port, path, expected) in *requests {
            let req = TestRequest::external(method, host, path).with_port(*port);
            assert_eq!(
                is_match(&mut bench, &req),
                *expected,
                "{rule} {method} {host}:{port}{path}"
            );
        }
    }
}

/// Cases that the peer gets wrong: `*` as a method, and the root under `/*`.
#[test]
fn cb_04_urls_have_wildcards_for_path_and_method() {
    check_cases(&[
        (
            r#"{"url": "http://B.com/*", "method": "*"}"#,
            &[
                ("GET", "b.com", 80, "", true),
                ("POST", "b.com", 80, "/", true),
                ("GET", "b.com", 80, "/a/b/c", true),
                ("GET", "b.com", 80, "/x?y=1", true),
                ("GET", "b.com", 443, "/a", false),
                ("GET", "a.b.com", 80, "/a", false),
            ],
        ),
        (
            r#"{"url": "http://b.com", "method": "get"}"#,
            &[
                ("GET", "b.com", 80, "", true),
                ("GET", "b.com", 80, "/", true),
                ("GET", "b.com", 80, "/a", false),
                ("POST", "b.com", 80, "/", false),
            ],
        ),
        (
            r#"{"url": "https://*.b.com:8443/v1/*/x", "method": "GET"}"#,
            &[
                ("GET", "a.b.com", 8443, "/v1/a/b/x", true),
                ("GET", "b.com", 8443, "/v1/a/x", false),
                ("GET", "a.b.com", 443, "/v1/a/x", false),
                ("GET", "a.b.com", 8443, "/v1/a/y", false),
            ],
        ),
        (
            r#"{"url": "b.com/v1/*", "method": ""}"#,
            &[
                ("GET", "b.com", 80, "/v1/", true),
                ("GET", "b.com", 9999, "/v1", true),
                ("GET", "b.com", 80, "/v10", false),
            ],
        ),
        (r#"{"url": "*", "method": "*"}"#, &[("CONNECT", "b.com", 443, "", true)]),
        (
            r#"{"url": "https://b.com/*"}"#,
            &[("CONNECT", "b.com", 443, "", true), ("GET", "b.com", 443, "/x", true)],
        ),
        (
            r#"{"url": "http://b.com:*/x"}"#,
            &[("GET", "b.com", 1, "/x", true), ("GET", "b.com", 80, "/x", true)],
        ),
        (
            r#"{"url": "http://[::1]:8080/*"}"#,
            &[
                ("GET", "::1", 8080, "/x", true),
                ("GET", "[::1]", 8080, "/", true),
                ("GET", "::1", 80, "/x", false),
            ],
        ),
    ]);
}

#[test]
fn query_in_a_url_names_required_parameters() {
    let mut bench = rest_bench(r#"{"url": "http://b.com/x?y=1&z=*"}"#);
    let req = || TestRequest::external("GET", "b.com", "/x").with_port(80);
    assert!(is_match(
        &mut bench,
        &req()
            .query_field("z", "any")
            .query_field("y", "1")
            .query_field("a", "b")
    ));
    assert!(!is_match(&mut bench, &req().query_field("y", "1")));
    assert!(!is_match(
        &mut bench,
        &req().query_field("y", "2").query_field("z", "any")
    ));
}

#[test]
fn fault_rules_of_shape_a_match_host_path_and_method() {
    check_cases(&[
        (
            r#"{"host": {"exact": "b.com"}, "path": {"exact": "/v1"}, "method": "POST"}"#,
            &[
                ("POST", "b.com", 8080, "/v1", true),
                ("GET", "b.com", 8080, "/v1", false),
                ("POST", "c.com", 8080, "/v1", false),
                ("POST", "b.com", 8080, "/v1/x", false),
            ],
        ),
        (
            r#"{"host": {"exact": "b.com:8443"}}"#,
            &[("GET", "b.com", 8443, "/", true), ("GET", "b.com", 443, "/", false)],
        ),
        // Not anchored, like Go's MatchString.
        (
            r#"{"host": {"regex": "b\\.com"}, "path": {"regex": "/v[12]/"}}"#,
            &[
                ("GET", "a.b.com.org", 443, "/api/v2/x", true),
                ("GET", "bxcom", 443, "/v1/", false),
                ("GET", "b.com", 443, "/v3/", false),
            ],
        ),
        (
            r#"{"host": {"regex": "^b\\.com$"}}"#,
            &[("GET", "b.com", 8443, "/", true), ("GET", "a.b.com", 8443, "/", false)],
        ),
        (
            r#"{"host": {"regex": "^b\\.com:8443$"}}"#,
            &[("GET", "b.com", 8443, "/", true), ("GET", "b.com", 443, "/", false)],
        ),
        (
            r#"{"host": {"exact": "b.com", "regex": "c"}}"#,
            &[("GET", "b.com", 443, "/", true), ("GET", "c.com", 443, "/", false)],
        ),
        (r#"{"host": {}, "path": {}}"#, &[("GET", "b.com", 443, "/", true)]),
    ]);
}

#[test]
fn fault_rules_of_shape_b_match_lists() {
    check_cases(&[
        (
            r#"{"url": ["http://a.com/*", "http://b.com/*"], "method": ["GET", "post"]}"#,
            &[
                ("GET", "a.com", 80, "/", true),
                ("POST", "b.com", 80, "/x", true),
                ("PUT", "b.com", 80, "/x", false),
                ("GET", "c.com", 80, "/", false),
            ],
        ),
        (r#"{"url": [], "method": []}"#, &[("PUT", "b.com", 80, "/x", true)]),
    ]);
}

#[test]
fn headers_must_all_match() {
    let mut bench = rest_bench(r#"{"headers": [{"name": "X-Team", "value": "a"}, {"name": "x-trace"}]}"#);
    let req = |team: &str| TestRequest::external("GET", "b.com", "/").header_field("x-team", team);
    assert!(is_match(&mut bench, &req("a").header_field("X-Trace", "1")));
    assert!(!is_match(&mut bench, &req("b").header_field("X-Trace", "1")));
    assert!(!is_match(&mut bench, &req("a")));
}

#[test]
fn external_calls_are_not_api_requests() {
    let mut bench = rest_bench("{}");
    assert!(is_match(&mut bench, &TestRequest::external("GET", "b.com", "/")));
    assert!(!is_match(&mut bench, &TestRequest::list("", "pods")));
    assert!(!is_match(
        &mut bench,
        &TestRequest::api(Verb::NonResource, "", "").with_path("/healthz")
    ));
}
