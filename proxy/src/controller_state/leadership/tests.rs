use std::time::Duration;

use http::{Response, StatusCode};

use super::*;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/operator/leases/lock";

fn lock_rename() -> Rename {
    Rename {
        from: "lock".to_owned(),
        to: "lock---a".to_owned(),
    }
}

fn lease_body(name: &str, holder: &str) -> Bytes {
    let spec = serde_json::json!({ "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "t" });
    serde_json::json!({ "kind": "Lease", "metadata": { "name": name }, "spec": spec })
        .to_string()
        .into()
}

/// Observes a request with this body, which has the lock's name.
fn observe_request_with(leadership: &Arc<Leadership>, method: &str, target: &str, sent: &[u8]) -> Option<LockExchange> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let info = RequestInfo::parse(method, path, Some(query)).unwrap();
    let sent = Bytes::copy_from_slice(sent);
    leadership.observe_request(&info, &Query::new(query), &lock_rename(), (&sent, true), Instant::now())
}

fn response_head(code: StatusCode, content_type: &str) -> Parts {
    let response = Response::builder().status(code).header(CONTENT_TYPE, content_type);
    response.body(()).unwrap().into_parts().0
}

/// An exchange, from its request to its response.
fn observe_exchange(leadership: &Arc<Leadership>, method: &str, target: &str, code: StatusCode, body: &Bytes) {
    let lock_exchange = observe_request_with(leadership, method, target, body).unwrap();
    lock_exchange.observe_response(&response_head(code, "application/json"), body);
}

/// The holder of the only observed lock, and whether it is this controller.
fn observed_holder(leadership: &Leadership) -> Option<(String, bool)> {
    let mut elections = leadership.statuses();
    assert!(elections.len() < 2, "{elections:?}");
    elections.pop().map(|election| (election.holder, election.leads))
}

fn expected_holder(holder: &str, leads: bool) -> Option<(String, bool)> {
    Some((holder.to_owned(), leads))
}

#[test]
fn write_counts_once_api_server_accepts_it() {
    for (method, target, code) in [
        ("POST", LEASES, StatusCode::CREATED),
        ("PUT", LEASE, StatusCode::OK),
        ("PATCH", LEASE, StatusCode::OK),
    ] {
        let leadership = Arc::default();
        for refused in [StatusCode::CONFLICT, StatusCode::INTERNAL_SERVER_ERROR] {
            observe_exchange(&leadership, method, target, refused, &lease_body("lock", "me"));
            assert_eq!(observed_holder(&leadership), None, "{method}: {refused}");
        }
        observe_exchange(&leadership, method, target, code, &lease_body("lock", "me"));
        assert_eq!(observed_holder(&leadership), expected_holder("me", true), "{method}");
        observe_exchange(&leadership, "DELETE", LEASE, StatusCode::NOT_FOUND, &Bytes::new());
        assert_eq!(observed_holder(&leadership), expected_holder("me", true));
        observe_exchange(&leadership, "DELETE", LEASE, StatusCode::OK, &Bytes::new());
        assert_eq!(observed_holder(&leadership), expected_holder("", false));
    }
}

#[tokio::test(start_paused = true)]
async fn leadership_runs_out_when_not_renewed() {
    let leadership = Arc::default();
    let lock_exchange = observe_request_with(&leadership, "PUT", LEASE, b"").unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    lock_exchange.observe_response(
        &response_head(StatusCode::OK, "application/json"),
        &lease_body("lock", "me"),
    );
    assert_eq!(observed_holder(&leadership), expected_holder("me", true));
    tokio::time::advance(Duration::from_millis(9_999)).await;
    assert_eq!(observed_holder(&leadership), expected_holder("me", true));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(observed_holder(&leadership), expected_holder("me", false));
}

#[tokio::test(start_paused = true)]
async fn get_of_older_state_does_not_end_leadership() {
    let leadership = Arc::default();
    let ok = response_head(StatusCode::OK, "application/json");
    let get = observe_request_with(&leadership, "GET", LEASE, b"").unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;
    let put = observe_request_with(&leadership, "PUT", LEASE, b"").unwrap();
    let crossing = observe_request_with(&leadership, "GET", LEASE, b"").unwrap();
    tokio::time::advance(Duration::from_millis(1)).await;
    put.observe_response(&ok, &lease_body("lock", "me"));
    get.observe_response(&ok, &lease_body("lock", "other"));
    crossing.observe_response(&ok, &lease_body("lock", "other"));
    assert_eq!(observed_holder(&leadership), expected_holder("me", true));
    // A response for a given version may come from a cache.
    observe_exchange(
        &leadership,
        "GET",
        &format!("{LEASE}?resourceVersion=0"),
        StatusCode::OK,
        &lease_body("lock", "other"),
    );
    assert_eq!(observed_holder(&leadership), expected_holder("me", true));
    observe_exchange(&leadership, "GET", LEASE, StatusCode::OK, &lease_body("lock", "other"));
    assert_eq!(observed_holder(&leadership), expected_holder("other", false));
}

#[test]
fn watch_shows_who_took_over() {
    let leadership = Arc::default();
    let watch = observe_request_with(
        &leadership,
        "GET",
        &format!("{LEASES}?watch=1&fieldSelector=metadata.name%3Dlock"),
        b"",
    )
    .unwrap();
    let event = |name: &str, holder: &str, transitions: i64| {
        let spec = serde_json::json!({ "holderIdentity": holder, "leaseTransitions": transitions });
        let object = serde_json::json!({ "kind": "Lease", "metadata": { "name": name }, "spec": spec });
        serde_json::json!({ "type": "MODIFIED", "object": object }).to_string()
    };
    let see = |event: String| watch.observe_event(WatchEncoding::Json, event.as_bytes());
    see(event("lock---b", "them", 7));
    assert_eq!(observed_holder(&leadership), None, "another shard's");
    see(event("lock---a", "other", 7));
    assert_eq!(observed_holder(&leadership), expected_holder("other", false));
}

#[test]
fn exchanges_about_other_objects_are_not_observed() {
    let leadership = Arc::default();
    let maps = "/api/v1/namespaces/operator/configmaps";
    for (method, target) in [
        ("GET", &*format!("{LEASE}2")),
        (
            "GET",
            "/apis/coordination.k8s.io/v1/namespaces/operator/leases/lock/status",
        ),
        ("GET", "/api/v1/namespaces/operator/secrets/lock"),
        ("POST", "/api/v1/namespaces/operator/events"),
        ("GET", "/apis/apps/v1/namespaces/operator/configmaps/lock"),
        ("GET", &*format!("{LEASES}?fieldSelector=metadata.name%3Dlock")),
        ("PUT", &*format!("{LEASE}?dryRun=All")),
        ("POST", &*format!("{maps}?dryRun=All")),
        ("DELETE", &*format!("{LEASE}?dryRun=All")),
    ] {
        assert!(
            observe_request_with(&leadership, method, target, b"").is_none(),
            "{method} {target}"
        );
    }
    let create = RequestInfo::parse("POST", maps, None).unwrap();
    let other = leadership.observe_request(
        &create,
        &Query::new(""),
        &lock_rename(),
        (&Bytes::new(), false),
        Instant::now(),
    );
    assert!(other.is_none(), "a ConfigMap of another name");
    for kind in ["configmaps", "endpoints"] {
        let lock = observe_request_with(
            &leadership,
            "GET",
            &format!("/api/v1/namespaces/operator/{kind}/lock"),
            b"",
        );
        assert_eq!(lock.unwrap().lock.resource, kind);
    }
}

#[test]
fn patch_without_holder_makes_no_leader() {
    let leadership = Arc::default();
    let patch = |sent: &str, holder: &str| {
        let lock_exchange = observe_request_with(&leadership, "PATCH", LEASE, sent.as_bytes()).unwrap();
        lock_exchange.observe_response(
            &response_head(StatusCode::OK, "application/json"),
            &lease_body("lock", holder),
        );
    };
    patch(r#"{"metadata":{"labels":{"a":"b"}}}"#, "other");
    assert_eq!(observed_holder(&leadership), expected_holder("other", false));
    patch(r#"{"spec":{"renewTime":"t2"}}"#, "me");
    assert_eq!(observed_holder(&leadership), expected_holder("me", true));
}

#[test]
fn unreadable_lock_record_is_ignored() {
    let leadership = Arc::default();
    let long = vec![b' '; 65 << 10];
    let long = [&*lease_body("lock", "me"), &long].concat();
    for (content_type, body) in [
        ("application/json", &b"{"[..]),
        ("application/json", &b""[..]),
        ("text/plain", &*lease_body("lock", "me")),
        ("application/json", &*lease_body("lock2", "me")),
        ("application/json", &*long),
    ] {
        let lock_exchange = observe_request_with(&leadership, "PUT", LEASE, b"").unwrap();
        lock_exchange.observe_response(
            &response_head(StatusCode::OK, content_type),
            &Bytes::copy_from_slice(body),
        );
        assert_eq!(observed_holder(&leadership), None, "{content_type}");
    }
    let holder = "ä".repeat(2 * MAX_HOLDER);
    observe_exchange(&leadership, "PUT", LEASE, StatusCode::OK, &lease_body("lock", &holder));
    assert_eq!(
        observed_holder(&leadership),
        expected_holder(&"ä".repeat(MAX_HOLDER), true)
    );
}

#[test]
fn locks_are_sorted_and_bounded_and_led_ones_are_kept() {
    let leadership: Arc<Leadership> = Arc::default();
    for number in 0..2 * MAX_ELECTIONS {
        let holder = if number == 1 { "me" } else { "other" };
        let method = if number == 1 { "PUT" } else { "GET" };
        let to = format!("lock---{number:02}");
        let rename = Rename { to, ..lock_rename() };
        let info = RequestInfo::parse(method, LEASE, None).unwrap();
        let now = Instant::now() + Duration::from_millis(u64::try_from(number).unwrap());
        let lock_exchange = leadership.observe_request(&info, &Query::new(""), &rename, (&Bytes::new(), true), now);
        lock_exchange.unwrap().observe_response(
            &response_head(StatusCode::OK, "application/json"),
            &lease_body("lock", holder),
        );
    }
    let names: Vec<String> = leadership
        .statuses()
        .into_iter()
        .map(|election| election.lock)
        .collect();
    let kept = (MAX_ELECTIONS + 1..2 * MAX_ELECTIONS).map(|number| format!("lock---{number}"));
    let kept: Vec<String> = std::iter::once("lock---01".to_owned()).chain(kept).collect();
    assert_eq!(names, kept);
}
