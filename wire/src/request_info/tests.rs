//! Request info, with the cases of groups A and B of the catalogue by their numbers.

use std::borrow::Cow;

use super::*;

fn parse<'a>(method: &'a str, target: &'a str) -> RequestInfo<'a> {
    let (path, query) = target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)));
    RequestInfo::parse(method, path, query).unwrap()
}

/// Verb, group, namespace, resource, subresource and name, as one line.
fn summary_line(method: &str, target: &str) -> String {
    let info = parse(method, target);
    let RequestInfo {
        group,
        namespace,
        resource,
        subresource,
        name,
        ..
    } = &info;
    format!(
        "{} {group}|{namespace}|{resource}|{subresource}|{name}",
        info.verb_str()
    )
}

#[test]
fn resource_paths_are_parsed() {
    let cases = [
        ("GET", "/api/v1/namespaces", "list ||namespaces||"),
        ("GET", "/api/v1/namespaces/other", "get |other|namespaces||other"),
        ("GET", "/api/v1/namespaces/other/pods", "list |other|pods||"),
        ("GET", "/api/v1/namespaces/other/pods/foo", "get |other|pods||foo"),
        ("HEAD", "/api/v1/namespaces/other/pods/foo", "get |other|pods||foo"),
        ("GET", "/api/v1/pods", "list ||pods||"),
        (
            "GET",
            "/api/v1/namespaces/other/pods/foo/log",
            "get |other|pods|log|foo",
        ),
        (
            "POST",
            "/apis/apps/v1/namespaces/n/deployments",
            "create apps|n|deployments||",
        ),
        (
            "PUT",
            "/apis/apps/v1/namespaces/n/deployments/d/scale",
            "update apps|n|deployments|scale|d",
        ),
        ("PATCH", "/api/v1/nodes/a", "patch ||nodes||a"),
        ("DELETE", "/api/v1/nodes/a", "delete ||nodes||a"),
        ("DELETE", "/api/v1/nodes", "deletecollection ||nodes||"),
        ("OPTIONS", "/api/v1/nodes", " ||nodes||"),
        ("GET", "/api/v1/namespaces/n1/status", "get |n1|namespaces|status|n1"),
        (
            "PUT",
            "/api/v1/namespaces/n1/finalize",
            "update |n1|namespaces|finalize|n1",
        ),
    ];
    for (method, target, expected) in cases {
        assert_eq!(summary_line(method, target), expected, "{method} {target}");
    }
}

#[test]
fn non_resource_paths_have_the_method_as_verb() {
    for target in [
        "/",
        "",
        "/api",
        "/api/v1",
        "/api/v1/",
        "/apis/g/v",
        "/version",
        "/API/v1/pods",
        "/healthz/a/b",
        "*",
    ] {
        let info = parse("PURGE", target);
        assert!(!info.is_resource_request, "{target}");
        assert_eq!(info.verb_str(), "purge");
        assert_eq!(info.path_parts().count(), 0);
    }
}

/// Catalogue 16 to 24: the decoded path decides, empty segments count, nothing is cleaned.
#[test]
fn unusual_paths_are_parsed_like_upstream() {
    let cases = [
        ("/api/v1/configmaps/", "list ||configmaps||"),
        ("/api/v1/configmaps/c1/", "get ||configmaps||c1"),
        ("/api/v1/namespaces//configmaps", "list ||configmaps||"),
        ("/api/v1/namespaces/n1%2Fconfigmaps", "list |n1|configmaps||"),
        ("/api/v1/%63onfigmaps", "list ||configmaps||"),
        ("//api/v1/configmaps", "list ||configmaps||"),
        ("/api/v1//x", "get ||||x"),
        ("/api/v1/./configmaps", "get ||.||configmaps"),
        ("/api/v1/configmaps;x=1", "list ||configmaps;x=1||"),
        ("/api/v1/namespaces/n1/configmaps/c1?watch=1", "get |n1|configmaps||c1"),
    ];
    for (target, expected) in cases {
        assert_eq!(summary_line("GET", target), expected, "{target}");
    }
}

#[test]
fn deprecated_prefixes_determine_the_verb() {
    let cases = [
        ("/api/v1/watch/configmaps", "watch ||configmaps||"),
        ("/api/v1/watch/namespaces/n1/configmaps/c1", "watch |n1|configmaps||c1"),
        ("/api/v1/proxy/namespaces/n/services/s/a/b", "proxy |n|services||s"),
    ];
    for (target, expected) in cases {
        assert_eq!(summary_line("GET", target), expected, "{target}");
    }
    let info = parse("GET", "/api/v1/watch/pods?labelSelector=a");
    assert!(info.verb_from_prefix);
    assert_eq!(info.label_selector, None);
    assert_eq!(
        RequestInfo::parse("GET", "/api/v1/watch", None),
        Err(RequestInfoError::NoResource)
    );
    assert_eq!(
        RequestInfo::parse("GET", "/apis/g/v1/proxy/", None),
        Err(RequestInfoError::NoResource)
    );
}

/// Catalogue 10 to 12.
#[test]
fn watch_option_determines_the_verb() {
    for query in [
        "watch",
        "watch=",
        "watch=yes",
        "watch=T",
        "watch=1&watch=0",
        "watch=1&limit=x",
        "wat%63h=00",
    ] {
        assert_eq!(
            summary_line("GET", &format!("/api/v1/pods?{query}")),
            "watch ||pods||",
            "{query}"
        );
    }
    for query in [
        "watch=0",
        "watch=FALSE",
        "watch=0&watch=1",
        "Watch=1",
        "watch=1;",
        "watch=%zz",
        "limit=x",
    ] {
        assert_eq!(
            summary_line("GET", &format!("/api/v1/pods?{query}")),
            "list ||pods||",
            "{query}"
        );
    }
    // The decoder folds U+017F to s; the look at an undecodable query does not.
    assert_eq!(summary_line("GET", "/api/v1/pods?watch=fal%C5%BFe"), "list ||pods||");
    assert_eq!(
        summary_line("GET", "/api/v1/pods?watch=fal%C5%BFe&limit=x"),
        "watch ||pods||"
    );
}

#[test]
fn name_is_read_from_the_field_selector() {
    let name = |query: &str| parse("GET", &format!("/api/v1/pods?{query}")).name.into_owned();
    assert_eq!(name("fieldSelector=metadata.name%3Dx"), "x");
    assert_eq!(name("fieldSelector=a!%3Db,metadata.name==x&watch=1"), "x");
    assert_eq!(name("fieldSelector=metadata.name!%3Dx"), "");
    assert_eq!(name("fieldSelector=metadata.name%3D.."), "");
    assert_eq!(name("fieldSelector=metadata.name%3Da/b"), "");
    assert_eq!(name("fieldSelector=metadata.name%3Dx&limit=x"), "");
    assert_eq!(name("fieldSelector=metadata.name%3Dx&labelSelector=%21"), "");
    assert_eq!(
        parse("DELETE", "/api/v1/pods?fieldSelector=metadata.name%3Dx").verb,
        Verb::DeleteCollection
    );
}

#[test]
fn selectors_are_reported_when_they_take_effect() {
    let info = parse(
        "DELETE",
        "/api/v1/pods?labelSelector=a%3D1&fieldSelector=b&labelSelector=c",
    );
    assert_eq!(
        (info.label_selector.as_deref(), info.field_selector.as_deref()),
        (Some("a=1"), Some("b"))
    );
    assert_eq!(
        parse("GET", "/api/v1/namespaces/n/pods/x?labelSelector=a").label_selector,
        None
    );
    assert_eq!(
        parse("POST", "/api/v1/namespaces/n/pods?labelSelector=a").label_selector,
        None
    );
}

#[test]
fn ordinary_requests_borrow_from_the_url() {
    let info = parse("GET", "/apis/apps/v1/namespaces/n/deployments/d/status?limit=5");
    for text in [
        &info.path,
        &info.group,
        &info.namespace,
        &info.resource,
        &info.subresource,
        &info.name,
    ] {
        assert!(matches!(text, Cow::Borrowed(_)), "{text}");
    }
    assert_eq!(info.path_parts().collect::<Vec<_>>(), ["deployments", "d", "status"]);
}

#[test]
fn copy_that_borrows_nothing_is_equal() {
    for target in [
        "/",
        "/apis/apps/v1/namespaces/n/deployments/d/status?limit=5",
        "/api/v1/pods?labelSelector=a%3D1&fieldSelector=metadata.name%3Dx",
        "/api/v1/watch/namespaces/n1/configmaps/c%2D1",
        "/api/v1/proxy/namespaces/n/services/s/a/b",
    ] {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
            let info = parse(method, target);
            let copy = info.to_static().unwrap();
            assert_eq!(copy, info, "{method} {target}");
            assert!(copy.path_parts().eq(info.path_parts()), "{method} {target}");
        }
        for method in ["OPTIONS", "get", ""] {
            assert_eq!(parse(method, target).to_static(), None, "{method} {target}");
        }
    }
}

#[test]
fn urls_that_go_refuses_are_refused() {
    let error = |path, query| RequestInfo::parse("GET", path, query).unwrap_err();
    assert_eq!(error("/api/v1/%zz", None), RequestInfoError::BadEscape);
    assert_eq!(error("/api/v1/\u{7f}", None), RequestInfoError::ControlCharacter);
    assert_eq!(error("/api/v1/pods", Some("a=\n")), RequestInfoError::ControlCharacter);
    let long = "a".repeat(crate::MAX_QUERY_BYTES + 1);
    assert!(matches!(error("/api/v1/pods", Some(&long)), RequestInfoError::Query(_)));
}

#[test]
fn streams_are_long_running_and_tunnels_are_upgrades() {
    let cases = [
        ("/api/v1/pods?watch=1", true, true),
        ("/api/v1/pods", false, false),
        ("/api/v1/namespaces/n/pods/p/log?follow=1", true, true),
        ("/api/v1/namespaces/n/pods/p/exec", true, true),
        ("/api/v1/namespaces/n/pods/p/attach", true, true),
        ("/api/v1/namespaces/n/pods/p/portforward", true, true),
        ("/api/v1/namespaces/n/services/s/proxy/api/v1/pods?watch=1", true, true),
        ("/api/v1/nodes/x/proxy/pods", true, true),
        ("/api/v1/proxy/nodes/x/pods", true, true),
        (
            "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachineinstances/v/console",
            false,
            true,
        ),
        ("/api/v1/namespaces/n/pods/p", false, false),
        ("/debug/pprof/profile", true, false),
        ("/logs/a", false, false),
    ];
    for (target, is_long_running, is_upgrade) in cases {
        let info = parse("GET", target);
        assert_eq!(
            (info.is_long_running(), info.may_upgrade()),
            (is_long_running, is_upgrade),
            "{target}"
        );
    }
}

#[test]
fn verbs_are_spelled_like_in_rules() {
    assert_eq!(Verb::DeleteCollection.to_string(), "deletecollection");
    assert!(Verb::DeleteCollection.takes_selectors() && !Verb::Get.takes_selectors());
}

fn check_path(method: &str, target: &str) -> Result<(), UncleanPath> {
    let path = target.split('?').next().unwrap();
    parse(method, target).check_path(path)
}

#[test]
fn unambiguous_paths_are_accepted() {
    for path in [
        "/",
        "/api",
        "/api/",
        "/apis/",
        "/api/v1/",
        "/version",
        "/.well-known/openid-configuration",
        "/healthz/poststarthook/rbac/bootstrap-roles",
        "/openapi/v3/apis/apps/v1?hash=a/../b//c",
        "/api/v1/configmaps",
        "/api/v1/configmaps/",
        "/api/v1/namespaces/n/configmaps/a.b..c",
        "/api/v1/namespaces/n/configmaps/...",
        "/api/v1/namespaces/n/configmaps/.a",
        "/api/v1/namespaces/n%2Fconfigmaps",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller%3Aa",
        "/apis/custom.metrics.k8s.io/v1beta1/namespaces/n/pods/*/a|b@c%20d%25",
        "/api/v1/nodes/n/proxy/",
        "/api/v1/nodes/n/proxy",
        "/api/v1/namespaces/n/services/https:s:1/proxy/a//b/../c",
        "/api/v1/namespaces/n/pods/p/proxy//",
        "/api/v1/namespaces/n/pods/p/proxy/./a%2Fb%2F..%2F../c",
        "/api/v1/namespaces/n/pods/p/proxy/a/..",
        "/api/v1/namespaces/n/pods/p/proxy/a\\..\\b",
        "/api/v1/namespaces/n/pods/p/proxy/a%5Cb;c=d?e=/../..",
        "/api/v1/namespaces/n/pods/p/proxy/100%25/%2541",
        "/apis/cluster.karmada.io/v1alpha1/clusters/c/proxy/api/v1/pods",
    ] {
        assert_eq!(check_path("GET", path), Ok(()), "{path}");
    }
}

#[test]
fn paths_that_a_proxy_would_clean_are_refused() {
    use UncleanPath::{Character, DotSegment, EmptySegment, EncodedTwice, Relative};
    for (path, expected) in [
        ("*", Relative),
        ("/./api/v1/configmaps", DotSegment),
        ("/x/../api/v1/configmaps", DotSegment),
        ("/%2e/api/v1/configmaps", DotSegment),
        ("/%2E%2e/c-2/api/v1/configmaps", DotSegment),
        ("/..%2Fc-2/api/v1/configmaps", DotSegment),
        ("/api/v1/configmaps/.", DotSegment),
        ("/api/v1/configmaps/../", DotSegment),
        ("/api/v1/namespaces/n/x%2F%2E./configmaps", DotSegment),
        ("//api/v1/configmaps", EmptySegment),
        ("/api//v1/configmaps", EmptySegment),
        ("/api/v1/configmaps//", EmptySegment),
        ("/api/v1/%2Fconfigmaps", EmptySegment),
        ("//", EmptySegment),
        ("/api/v1/namespaces//configmaps/c", EmptySegment),
        ("/api/v1/namespaces///configmaps", EmptySegment),
        ("/api/v1/namespaces//", EmptySegment),
        ("/api/v1/namespaces//status", EmptySegment),
        ("/api/v1/namespaces//configmaps//", EmptySegment),
        ("/version//namespaces//configmaps", EmptySegment),
        ("/api/v1\\configmaps", Character('\\')),
        ("/x%5c..%5Capi/v1/configmaps", Character('\\')),
        ("/..;/api/v1/configmaps", Character(';')),
        ("/api/v1/configmaps%3Fwatch=1", Character('?')),
        ("/api/v1/configmaps%23", Character('#')),
        ("/api/v1/configmaps%00", Character('\0')),
        ("/%c0%ae/api/v1/configmaps", Character('\u{fffd}')),
        ("/%252e/api/v1/configmaps", EncodedTwice),
        ("/api/v1/namespaces/n%252fconfigmaps", EncodedTwice),
        ("/x%25255c/api", EncodedTwice),
    ] {
        assert_eq!(check_path("GET", path), Err(expected), "{path}");
    }
}

#[test]
fn paths_behind_a_proxy_stay_below_its_prefix() {
    let pod = "/api/v1/namespaces/n/pods/p/proxy";
    for tail in [
        "/..",
        "/../",
        "/../../../configmaps",
        "/%2e%2e/log",
        "/%252e%252e/log",
        "/..%2Flog",
        "/..%252flog",
        "/..\\log",
        "/..%5clog",
        "/..;/log",
        // Merged, the empty segment is none.
        "/a//../../log",
        // To a server that leaves %2F alone, this is one segment.
        "/a%2Fb/../../log",
        "/a\\b%2F..%2F../log",
        "/./../log",
    ] {
        let path = format!("{pod}{tail}");
        assert_eq!(check_path("GET", &path), Err(UncleanPath::AboveProxy), "{path}");
    }
    for path in [
        "/api/v1/namespaces/n/pods/../proxy/a",
        "/api/v1/namespaces//pods/p/proxy/a",
        "/./api/v1/nodes/n/proxy/a",
        // A server that leaves %2F alone sees `proxy%2Fa` taken away.
        "/api/v1/namespaces/n/configmaps%2Fc%2Fproxy%2Fa/../configmaps",
        "/api/v1/namespaces/n/pods/p/proxy%2Fa/../log",
        // The deprecated prefix is no subresource.
        "/api/v1/proxy/nodes/n/a/../b",
    ] {
        assert!(check_path("GET", path).is_err(), "{path}");
    }
}

/// Catalogue 17: list and watch only.
#[test]
fn empty_namespace_is_left_out_of_lists_and_watches() {
    for (target, expected) in [
        ("/api/v1/namespaces//configmaps", "/api/v1/configmaps"),
        ("/api/v1/namespaces//configmaps/", "/api/v1/configmaps"),
        ("/api/v1/namespaces/%2Fconfigmaps?watch=1", "/api/v1/configmaps"),
        ("/apis/g/v1/namespaces//widgets?watch=1", "/apis/g/v1/widgets"),
        ("/api/v1/watch/namespaces//configmaps", "/api/v1/watch/configmaps"),
    ] {
        assert_eq!(check_path("GET", target), Ok(()), "{target}");
        assert_eq!(
            parse("GET", target).path_without_empty_namespace().as_deref(),
            Some(expected),
            "{target}"
        );
    }
    for method in ["DELETE", "POST", "PUT", "PATCH", "OPTIONS"] {
        let path = "/api/v1/namespaces//configmaps";
        assert_eq!(check_path(method, path), Err(UncleanPath::EmptySegment), "{method}");
        assert_eq!(parse(method, path).path_without_empty_namespace(), None, "{method}");
    }
    for path in [
        "/api/v1/configmaps",
        "/api/v1/namespaces/n/configmaps",
        "/api/v1/namespaces",
        "/namespaces//x",
    ] {
        assert_eq!(parse("GET", path).path_without_empty_namespace(), None, "{path}");
    }
}
