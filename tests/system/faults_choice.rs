//! The real fault-inject plugin: which requests a fault applies to, how often, and that a run is repeatable.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ctrlmesh_tests::{Client, EntrySpec, NAMESPACE, Target, TestEnv, config_map};
use http::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::faults::{MAPS, fault_rule, faults_entry, faults_with, rule_counts};
use crate::limits::LIST;

const OBJECTS: usize = 40;
const TIMES: usize = 4;

fn random_faults(seed: u64, percent: u32) -> EntrySpec {
    let rules = json!([
        fault_rule(json!("refuse"), json!({ "percent": percent })),
        fault_rule(json!("throttle"), json!({ "name": "y", "percent": percent })),
    ]);
    faults_with(json!({ "seed": seed, "faults": rules }))
}

/// The results of 40 objects, each requested four times in a row, so that each request has the same number in every run; the objects come
/// in any order from as many clients.
async fn run_requests(seed: u64, percent: u32) -> anyhow::Result<Vec<Vec<u16>>> {
    let env = Arc::new(TestEnv::start_with(vec![random_faults(seed, percent)], &["--workers", "2"]).await?);
    env.seed_config_maps("default", "a", OBJECTS)?;
    let mut clients = JoinSet::new();
    for object in 0..OBJECTS {
        let client = env.client();
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
    let (refused, throttled) = (rule_counts(&env, "x").await?, rule_counts(&env, "y").await?);
    assert_eq!(refused.0, (OBJECTS * TIMES) as u64);
    assert_eq!(refused.1 + throttled.1, fired as u64, "each one is counted");
    assert_eq!(env.api.requests().count("get"), (OBJECTS * TIMES - fired) as u64);
    Ok(hit)
}

#[tokio::test]
async fn run_is_repeatable_by_its_seed() -> anyhow::Result<()> {
    let first = run_requests(7, 40).await?;
    assert_eq!(run_requests(7, 40).await?, first);
    assert_ne!(run_requests(8, 40).await?, first);
    for status in [200, 429, 503] {
        let share = first.iter().flatten().filter(|found| **found == status).count();
        // Expected: 36, 24 and 40 percent of 160.
        assert!((20..=90).contains(&share), "{share} of {status}");
    }
    Ok(())
}

#[tokio::test]
async fn zero_percent_is_never_and_a_hundred_always() -> anyhow::Result<()> {
    for (percent, status) in [(0, 200), (100, 503)] {
        let hit = run_requests(1, percent).await?;
        assert!(hit.iter().flatten().all(|found| *found == status), "{percent}: {hit:?}");
    }
    Ok(())
}

#[tokio::test]
async fn counts_hold_across_threads_and_a_reload() -> anyhow::Result<()> {
    let limited = |name: &str, more: Value| {
        let mut rule = fault_rule(json!("refuse"), more);
        rule["name"] = name.into();
        faults_entry(json!([rule]))
    };
    for (more, count, matched) in [
        // After the last hit nothing matches. Two workers can each count a request before one of them takes that hit.
        (json!({ "maxCount": 5 }), 5, 5..=6),
        (json!({ "nth": 3 }), 1, 64..=64),
        (json!({ "every": 4 }), 16, 64..=64),
        (json!({ "first": 7 }), 7, 64..=64),
    ] {
        let mut env = TestEnv::start_with(vec![limited("x", more.clone())], &["--workers", "2"]).await?;
        let mut clients = JoinSet::new();
        for _ in 0..64 {
            let client = env.client();
            clients.spawn(async move { anyhow::Ok(client.get(LIST).await?.status) });
        }
        let mut fired = 0;
        while let Some(status) = clients.join_next().await {
            fired += u64::from(status?? == 503);
        }
        assert_eq!(fired, count, "{more}");
        let before = rule_counts(&env, "x").await?;
        assert!(matched.contains(&before.0) && before.1 == count, "{more}: {before:?}");
        env.publish(vec![limited("x", more.clone()).with_field("timeoutMs", 20.into())])
            .await?;
        assert_eq!(env.client().get(LIST).await?.status, 200, "{more}");
        let expected = before.0 + u64::from(more.get("maxCount").is_none());
        assert_eq!(rule_counts(&env, "x").await?, (expected, count), "{more}");
    }
    Ok(())
}

/// The sidecar repeats the verdict of a rule that hits every request, and counts with it.
#[tokio::test]
async fn plugin_is_called_once_for_a_rule_that_hits_every_request() -> anyhow::Result<()> {
    for (fault, status) in [(json!("refuse"), 503), (json!({ "delay": { "for": "0s" } }), 200)] {
        let rule = fault_rule(fault.clone(), json!({}));
        let arguments = ["--workers", "1", "--plugin-audit", "1000000"];
        let env = TestEnv::start_with(vec![faults_entry(json!([rule]))], &arguments).await?;
        let client = env.client();
        for _ in 0..20 {
            assert_eq!(client.get(LIST).await?.status, status, "{fault}");
        }
        let calls = r#"ctrlmesh_plugin_calls_total{entry="fault-inject/test",phase="request"}"#;
        assert_eq!(env.sidecar.metric_value(calls).await?, 1.0, "{fault}");
        assert_eq!(rule_counts(&env, "x").await?, (20, 20), "{fault}");
    }
    Ok(())
}

#[tokio::test]
async fn audited_requests_count_once() -> anyhow::Result<()> {
    let rule = fault_rule(json!("refuse"), json!({}));
    let arguments = ["--workers", "1", "--plugin-audit", "1"];
    let env = TestEnv::start_with(vec![faults_entry(json!([rule]))], &arguments).await?;
    let client = env.client();
    for _ in 0..20 {
        assert_eq!(client.get(LIST).await?.status, 503);
    }
    let audited = r#"ctrlmesh_plugin_audited_total{entry="fault-inject/test"}"#;
    assert_eq!(env.sidecar.metric_value(audited).await?, 19.0);
    assert_eq!(rule_counts(&env, "x").await?, (20, 20));
    Ok(())
}

/// Once a call has found that the rule has ended, the sidecar repeats the verdict.
#[tokio::test]
async fn plugin_is_not_called_for_a_rule_that_has_ended() -> anyhow::Result<()> {
    let rule = fault_rule(json!("refuse"), json!({ "maxCount": 1 }));
    let arguments = ["--workers", "1", "--plugin-audit", "1000000"];
    let env = TestEnv::start_with(vec![faults_entry(json!([rule]))], &arguments).await?;
    let client = env.client();
    assert_eq!(client.get(LIST).await?.status, 503);
    for _ in 0..20 {
        assert_eq!(client.get(LIST).await?.status, 200);
    }
    // One is hit, one finds that the rule has ended, and the verdict on one is remembered.
    let calls = r#"ctrlmesh_plugin_calls_total{entry="fault-inject/test",phase="request"}"#;
    assert_eq!(env.sidecar.metric_value(calls).await?, 3.0);
    assert_eq!(rule_counts(&env, "x").await?, (1, 1));
    Ok(())
}

#[tokio::test]
async fn concurrent_faults_are_bounded() -> anyhow::Result<()> {
    let late = fault_rule(json!({ "delay": { "for": "2s" } }), json!({ "maxActive": 2 }));
    let env = TestEnv::start(vec![faults_entry(json!([late]))]).await?;
    for round in 1..=2 {
        let mut clients = JoinSet::new();
        for _ in 0..10 {
            let client = env.client();
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
        assert_eq!(rule_counts(&env, "x").await?, (10 * round, 2 * round));
    }
    Ok(())
}

#[tokio::test]
async fn lock_is_hit_only_by_a_rule_that_names_it() -> anyhow::Result<()> {
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
        let env = TestEnv::start_around(api, vec![faults_entry(json!([conflict]))], &[]).await?;
        let client = env.client().with_header("content-type", "application/json");
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
async fn fi_external_calls_are_matched_by_header() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let tenant = json!({
        "name": "tenant",
        "match": { "httpMatch": [{
            "host": { "exact": "127.0.0.1" }, "path": { "regex": "^/p" }, "method": "GET",
            "headers": [{ "name": "X-Tenant", "value": "a" }],
        }] },
        "abort": { "httpStatus": 503, "percent": "100" },
    });
    let (env, client) = crate::external::start_env(vec![faults_with(json!({ "httpFault": [tenant] }))], &[]).await?;
    let url = |host: &str, path: &str| format!("http://{host}:{}{path}", target.port());
    let of = |tenant: &str| client.clone().with_header("x-tenant", tenant);
    let hit = url("127.0.0.1", "/p");
    assert_eq!(of("a").get(&hit).await?.status, 503);
    assert_eq!(
        of("a").with_header("mesh-real-endpoint", &hit).get("/").await?.status,
        503
    );
    assert_eq!(target.arrived_requests().len(), 0);
    let ok = async |client: Client, url: &str| -> anyhow::Result<bool> { Ok(client.get(url).await?.status == 200) };
    assert!(ok(of("b"), &hit).await? && ok(client.clone(), &hit).await?);
    assert!(ok(of("a"), &url("localhost", "/p")).await? && ok(of("a"), &url("127.0.0.1", "/q")).await?);
    assert_eq!(of("a").send(Method::POST, &hit, "").await?.status, 200);
    assert_eq!(rule_counts(&env, "tenant").await?, (2, 2));
    Ok(())
}

fn daily_fault(start: u64, end: u64) -> EntrySpec {
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
async fn fi_05_fault_comes_and_goes_with_its_times() -> anyhow::Result<()> {
    const HOUR: u64 = 3600;
    let now = unix_seconds()?;
    let mut env = TestEnv::start(vec![daily_fault(now + HOUR, now + 2 * HOUR)]).await?;
    let client = env.client();
    assert_eq!(client.get(LIST).await?.status, 200, "it is an hour away");
    let (start, end) = (unix_seconds()? + 2, unix_seconds()? + 10);
    env.publish(vec![daily_fault(start, end)]).await?;
    let answers = async |status: u16| -> anyhow::Result<bool> { Ok(client.get(LIST).await?.status == status) };
    ctrlmesh_tests::wait_until("the fault begins", || answers(503)).await?;
    assert!(unix_seconds()? >= start, "too early");
    ctrlmesh_tests::wait_until("the fault ends", || answers(200)).await?;
    assert!(unix_seconds()? > end, "too early");
    Ok(())
}
