//! The real fault-inject plugin: which requests a fault befalls, how often, and that a run can be repeated.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ctrlmesh_tests::{Client, EntrySpec, NAMESPACE, Stand, Target, config_map};
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::faults::{MAPS, counts, faults, faults_with, rule};
use crate::limits::LIST;

const OBJECTS: usize = 40;
const TIMES: usize = 4;

fn drawn(seed: u64, percent: u32) -> EntrySpec {
    let rules = json!([
        rule(json!("refuse"), json!({ "percent": percent })),
        rule(json!("throttle"), json!({ "name": "y", "percent": percent })),
    ]);
    faults_with(json!({ "seed": seed, "faults": rules }))
}

/// Who was hit by what: 40 objects, each asked for four times, by as many clients as there are objects. The four follow each
/// other, so that each is the same one in every run; the objects come in any order.
async fn run(seed: u64, percent: u32) -> anyhow::Result<Vec<Vec<u16>>> {
    let stand = Arc::new(Stand::start_with(vec![drawn(seed, percent)], &["--workers", "2"]).await?);
    stand.seed("default", "a", OBJECTS)?;
    let mut clients = JoinSet::new();
    for object in 0..OBJECTS {
        let client = stand.client();
        clients.spawn(async move {
            let mut statuses = Vec::new();
            for _ in 0..TIMES {
                statuses.push(client.get(&format!("{MAPS}/a{object}")).await?.status);
            }
            anyhow::Ok((object, statuses))
        });
    }
    let mut hit = vec![Vec::new(); OBJECTS];
    while let Some(ended) = clients.join_next().await {
        let (object, statuses) = ended??;
        hit[object] = statuses;
    }
    let fired = hit.iter().flatten().filter(|status| **status != 200).count();
    let (refused, throttled) = (counts(&stand, "x").await?, counts(&stand, "y").await?);
    assert_eq!(refused.0, (OBJECTS * TIMES) as u64);
    assert_eq!(refused.1 + throttled.1, fired as u64, "each one is counted");
    assert_eq!(stand.api.requests().count("get"), (OBJECTS * TIMES - fired) as u64);
    Ok(hit)
}

#[tokio::test]
async fn a_run_can_be_repeated_by_its_seed() -> anyhow::Result<()> {
    let first = run(7, 40).await?;
    assert_eq!(run(7, 40).await?, first);
    assert_ne!(run(8, 40).await?, first);
    for status in [200, 429, 503] {
        let share = first.iter().flatten().filter(|found| **found == status).count();
        // Expected: 36, 24 and 40 in a hundred of 160.
        assert!((20..=90).contains(&share), "{share} of {status}");
    }
    Ok(())
}

#[tokio::test]
async fn zero_percent_is_never_and_a_hundred_always() -> anyhow::Result<()> {
    for (percent, status) in [(0, 200), (100, 503)] {
        let hit = run(1, percent).await?;
        assert!(hit.iter().flatten().all(|found| *found == status), "{percent}: {hit:?}");
    }
    Ok(())
}

#[tokio::test]
async fn counts_hold_for_all_threads_and_over_a_reload() -> anyhow::Result<()> {
    let limited = |name: &str, more: Value| {
        let mut rule = rule(json!("refuse"), more);
        rule["name"] = name.into();
        faults(json!([rule]))
    };
    for (more, count, matched) in [
        // After the last hit nothing matches. Two workers can each count a request before one of them takes that hit.
        (json!({ "maxCount": 5 }), 5, 5..=6),
        (json!({ "nth": 3 }), 1, 64..=64),
        (json!({ "every": 4 }), 16, 64..=64),
        (json!({ "first": 7 }), 7, 64..=64),
    ] {
        let mut stand = Stand::start_with(vec![limited("x", more.clone())], &["--workers", "2"]).await?;
        let mut clients = JoinSet::new();
        for _ in 0..64 {
            let client = stand.client();
            clients.spawn(async move { anyhow::Ok(client.get(LIST).await?.status) });
        }
        let mut fired = 0;
        while let Some(status) = clients.join_next().await {
            fired += u64::from(status?? == 503);
        }
        assert_eq!(fired, count, "{more}");
        let before = counts(&stand, "x").await?;
        assert!(matched.contains(&before.0) && before.1 == count, "{more}: {before:?}");
        stand
            .publish(vec![limited("x", more.clone()).set("timeoutMs", 20.into())])
            .await?;
        assert_eq!(stand.client().get(LIST).await?.status, 200, "{more}");
        let expected = before.0 + u64::from(more.get("maxCount").is_none());
        assert_eq!(counts(&stand, "x").await?, (expected, count), "{more}");
    }
    Ok(())
}

#[tokio::test]
async fn so_many_requests_are_in_its_hands_at_a_time() -> anyhow::Result<()> {
    let late = rule(json!({ "delay": { "for": "2s" } }), json!({ "maxActive": 2 }));
    let stand = Stand::start(vec![faults(json!([late]))]).await?;
    for round in 1..=2 {
        let mut clients = JoinSet::new();
        for _ in 0..10 {
            let client = stand.client();
            clients.spawn(async move {
                let start = Instant::now();
                assert_eq!(client.get(LIST).await?.status, 200);
                anyhow::Ok(start.elapsed())
            });
        }
        let mut delayed = 0;
        while let Some(took) = clients.join_next().await {
            delayed += u64::from(took?? >= Duration::from_secs(2));
        }
        assert_eq!(delayed, 2, "the others are left alone");
        assert_eq!(counts(&stand, "x").await?, (10 * round, 2 * round));
    }
    Ok(())
}

#[tokio::test]
async fn the_lock_is_hit_only_by_a_rule_that_names_it() -> anyhow::Result<()> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "lock", "namespace": NAMESPACE }, "spec": { "holderIdentity": "me" },
    });
    let mut map = config_map(NAMESPACE, "lock", "a");
    map["metadata"]["annotations"] = json!({ "control-plane.alpha.kubernetes.io/leader": "{}" });
    let plain = config_map(NAMESPACE, "plain", "a");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/operator/leases";
    let maps = "/api/v1/namespaces/operator/configmaps";
    for (resources, expected) in [
        (json!([{}]), [200, 200, 409]),
        (json!([{ "resources": ["leases", "configmaps"] }]), [409; 3]),
    ] {
        let api = ctrlmesh_testkit::ApiServer::builder()
            .namespace(NAMESPACE)
            .start()
            .await?;
        let put = |object: &Value| api.store().put(object.clone());
        let (lease, map, plain) = (put(&lease)?, put(&map)?, put(&plain)?);
        let conflict = json!({ "name": "x", "do": "conflict", "match": { "resources": resources } });
        let stand = Stand::around(api, vec![faults(json!([conflict]))], &[]).await?;
        let client = stand.client().with("content-type", "application/json");
        let mut statuses = Vec::new();
        for (path, object) in [
            (format!("{leases}/lock"), &lease),
            (format!("{maps}/lock"), &map),
            (format!("{maps}/plain"), &plain),
        ] {
            statuses.push(client.send(Method::PUT, &path, object.to_string()).await?.status);
        }
        assert_eq!(statuses, expected, "{resources}");
    }
    Ok(())
}

#[tokio::test]
async fn fi_calls_to_other_services_are_matched_by_header_too() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let tenant = json!({
        "name": "tenant",
        "match": { "httpMatch": [{
            "host": { "exact": "127.0.0.1" }, "path": { "regex": "^/p" }, "method": "GET",
            "headers": [{ "name": "X-Tenant", "value": "a" }],
        }] },
        "abort": { "httpStatus": 503, "percent": "100" },
    });
    let (stand, client) = crate::external::stand(vec![faults_with(json!({ "httpFault": [tenant] }))], &[]).await?;
    let url = |host: &str, path: &str| format!("http://{host}:{}{path}", target.port());
    let of = |tenant: &str| client.clone().with("x-tenant", tenant);
    let hit = url("127.0.0.1", "/p");
    assert_eq!(of("a").get(&hit).await?.status, 503);
    assert_eq!(of("a").with("mesh-real-endpoint", &hit).get("/").await?.status, 503);
    assert_eq!(target.arrived().len(), 0);
    let ok = async |client: Client, url: &str| -> anyhow::Result<bool> { Ok(client.get(url).await?.status == 200) };
    assert!(ok(of("b"), &hit).await? && ok(client.clone(), &hit).await?);
    assert!(ok(of("a"), &url("localhost", "/p")).await? && ok(of("a"), &url("127.0.0.1", "/q")).await?);
    assert_eq!(of("a").send(Method::POST, &hit, "").await?.status, 200);
    assert_eq!(counts(&stand, "tenant").await?, (2, 2));
    Ok(())
}

/// A fault of the CRD with a daily window.
fn daily(start: u64, end: u64) -> EntrySpec {
    let written = |second: u64| {
        let second = second % (24 * 3600);
        format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
    };
    let fault = json!({
        "name": "x",
        "match": { "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }] },
        "abort": { "httpStatus": 503, "percent": "100" },
        "effectiveTime": { "startTime": written(start), "endTime": written(end) },
    });
    faults_with(json!({ "httpFault": [fault] }))
}

fn unix_seconds() -> anyhow::Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

#[tokio::test]
async fn fi_05_a_fault_comes_and_goes_with_its_window() -> anyhow::Result<()> {
    const HOUR: u64 = 3600;
    let now = unix_seconds()?;
    let mut stand = Stand::start(vec![daily(now + HOUR, now + 2 * HOUR)]).await?;
    let client = stand.client();
    assert_eq!(client.get(LIST).await?.status, 200, "it is an hour away");
    let (start, end) = (unix_seconds()? + 2, unix_seconds()? + 10);
    stand.publish(vec![daily(start, end)]).await?;
    let answers = async |status: u16| -> anyhow::Result<bool> { Ok(client.get(LIST).await?.status == status) };
    ctrlmesh_tests::wait_until("the window opens", || answers(503)).await?;
    assert!(unix_seconds()? >= start, "too early");
    ctrlmesh_tests::wait_until("the window closes", || answers(200)).await?;
    assert!(unix_seconds()? > end, "too early");
    Ok(())
}
