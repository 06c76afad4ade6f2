//! The real rate-limit plugin with 64 concurrent clients on two worker threads: the API server gets exactly what the rules allow.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ctrlmesh_testkit::{ApiServer, Fault, Gate, Rule};
use ctrlmesh_tests::{Client, EntrySpec, TestEnv, wait_until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub(crate) const LIST: &str = "/api/v1/configmaps";
const CLIENTS: usize = 64;

pub(crate) fn limiter_entry(rules: Value) -> EntrySpec {
    EntrySpec::new("rate-limit/test", ctrlmesh_plugins_builtin::RATE_LIMIT)
        .with_settings(json!({ "rateLimitings": rules }))
}

pub(crate) fn match_config_maps() -> Value {
    json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "namespaces": ["*"] }])
}

/// A sidecar with two worker threads that have requests.
async fn start_with_two_workers(rules: Value) -> anyhow::Result<TestEnv> {
    let api = ApiServer::builder().start().await?;
    TestEnv::start_around(api, vec![limiter_entry(rules)], &["--workers", "2"]).await
}

fn count_statuses(statuses: impl IntoIterator<Item = u16>) -> BTreeMap<u16, usize> {
    let mut tally = BTreeMap::new();
    for status in statuses {
        *tally.entry(status).or_default() += 1;
    }
    tally
}

/// 64 clients that repeat their request until `enough`; returns the statuses of the responses.
async fn repeat_requests_until<F>(env: &TestEnv, what: &str, enough: impl Fn() -> F) -> anyhow::Result<Vec<u16>>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, over) = (env.client(), Arc::clone(&over));
        clients.spawn(async move {
            let mut statuses = Vec::new();
            while !over.load(Ordering::Relaxed) {
                statuses.push(client.get(LIST).await?.status);
            }
            anyhow::Ok(statuses)
        });
    }
    wait_until(what, enough).await?;
    over.store(true, Ordering::Relaxed);
    let mut statuses = Vec::new();
    while let Some(ended) = clients.join_next().await {
        statuses.extend(ended??);
    }
    Ok(statuses)
}

#[tokio::test]
async fn bucket_grants_burst_and_rate_and_no_more() -> anyhow::Result<()> {
    const BURST: f64 = 20.0;
    const RATE: f64 = 100.0;
    let bucket = json!({ "limit": 50, "interval": "500ms", "burst": 20 });
    let env =
        start_with_two_workers(json!([{ "name": "all", "resourceRules": match_config_maps(), "bucket": bucket }]))
            .await?;
    let requests = env.api.requests();
    let start = Instant::now();
    let statuses = repeat_requests_until(&env, "two seconds' worth is granted", || async {
        Ok(requests.count("list") >= 220)
    })
    .await?;
    let seconds = start.elapsed().as_secs_f64();
    let granted = requests.count("list");
    let allowed = BURST + RATE * seconds;
    assert!(
        granted as f64 <= allowed,
        "{granted} granted in {seconds} s, {allowed} allowed"
    );
    assert!(
        granted as f64 >= 0.7 * allowed,
        "{granted} granted in {seconds} s, {allowed} allowed"
    );
    let tally = count_statuses(statuses);
    assert_eq!(tally[&200], usize::try_from(granted)?, "{tally:?}");
    assert!(tally.len() == 2 && tally[&429] > 0, "{tally:?}");
    for (decision, count) in [("granted", tally[&200]), ("refused", tally[&429])] {
        let series = format!(r#"ctrlmesh_plugin_{decision}_total{{entry="rate-limit/test",label="all"}}"#);
        assert_eq!(env.sidecar.metric_value(&series).await?, count as f64, "{decision}");
    }
    Ok(())
}

/// Sends 64 requests that the API server holds, and waits until all but `held` are answered; returns the clients.
async fn hold_requests(env: &TestEnv, gate: &Gate, held: usize) -> anyhow::Result<JoinSet<anyhow::Result<u16>>> {
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = env.client();
        clients.spawn(async move { Ok(client.get(LIST).await?.status) });
    }
    for _ in held..CLIENTS {
        let answered = tokio::time::timeout(ctrlmesh_tests::DEADLINE, clients.join_next()).await?;
        assert_eq!(answered.expect("not all have ended")??, 429);
    }
    gate.wait_for_arrivals(held).await?;
    Ok(clients)
}

#[tokio::test]
async fn in_flight_requests_are_bounded() -> anyhow::Result<()> {
    const MOST: usize = 5;
    let rule = json!({ "name": "few", "resourceRules": match_config_maps(), "maxInFlight": MOST });
    let env = start_with_two_workers(json!([rule])).await?;
    let (api, requests) = (&env.api, env.api.requests());
    for round in 1..=3 {
        let gate = Gate::new();
        let rule = api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
        let mut clients = hold_requests(&env, &gate, MOST).await?;
        assert_eq!(api.activity().requests, MOST, "each place is taken");
        api.faults().remove(rule);
        gate.open();
        while let Some(answered) = clients.join_next().await {
            assert_eq!(answered??, 200);
        }
        assert_eq!(requests.count("list"), round * MOST as u64, "and each is given back");
    }
    let statuses = repeat_requests_until(&env, "places go from hand to hand", || async {
        Ok(requests.count("list") >= 500)
    })
    .await?;
    assert_eq!(count_statuses(statuses).keys().copied().collect::<Vec<_>>(), [200, 429]);
    assert_eq!(api.activity().most_requests, MOST, "as the API server saw it");
    Ok(())
}

#[tokio::test]
async fn place_is_freed_however_its_request_ends() -> anyhow::Result<()> {
    let rule = json!({ "name": "one", "resourceRules": match_config_maps(), "maxInFlight": 1 });
    let env = start_with_two_workers(json!([rule])).await?;
    let client = env.client();
    let gate = Gate::new();
    let held = Rule::new(Fault::Hold(gate.clone())).verb("list").times(1);
    env.api.faults().add(held);
    let gone = tokio::spawn({
        let client = client.clone();
        async move { client.get(LIST).await }
    });
    gate.wait_for_arrivals(1).await?;
    assert_eq!(client.get(LIST).await?.status, 429);
    gone.abort();
    let is_free = || async { Ok(client.get(LIST).await?.status == 200) };
    wait_until("the place of a client that went away is free", is_free).await?;
    let reset = Fault::ResetStream(ctrlmesh_testkit::FaultTime::AfterExecuting);
    env.api.faults().add(Rule::new(reset).verb("list").times(1));
    wait_until("the response breaks off", || async {
        Ok(client.get(LIST).await?.status == 502)
    })
    .await?;
    wait_until("the place is free again", is_free).await?;
    // A watch takes no place, nor does it wait for one.
    let mut watch = client.open_stream(&format!("{LIST}?watch=1")).await?;
    env.seed_config_maps("default", "a", 1)?;
    watch.next_event().await?;
    wait_until("an open watch leaves the place to others", is_free).await
}

#[tokio::test]
async fn queued_requests_all_arrive_at_the_rate() -> anyhow::Result<()> {
    let bucket = json!({ "limit": 20, "interval": "1s", "burst": 2 });
    let rule = json!({ "name": "slow", "resourceRules": match_config_maps(), "bucket": bucket, "queue": "30s" });
    let env = start_with_two_workers(json!([rule])).await?;
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..12 {
        let client = env.client();
        clients.spawn(async move { Ok(client.get(LIST).await?.status) });
    }
    while let Some(answered) = clients.join_next().await {
        let status: anyhow::Result<u16> = answered?;
        assert_eq!(status?, 200);
    }
    // Two at once, then ten at 20 per second.
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!(env.api.requests().count("list"), 12);
    let counted = async |decision: &str| {
        let series = format!(r#"ctrlmesh_plugin_{decision}_total{{entry="rate-limit/test",label="slow"}}"#);
        env.sidecar.metric_value(&series).await
    };
    assert_eq!(counted("granted").await? + counted("queued").await?, 12.0);
    assert!(counted("queued").await? >= 1.0);
    assert_eq!(counted("refused").await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn request_is_refused_at_once_when_waiting_would_be_in_vain() -> anyhow::Result<()> {
    let bucket = json!({ "limit": 1, "interval": "1h", "burst": 1 });
    let rule = json!({ "name": "slow", "resourceRules": match_config_maps(), "bucket": bucket, "queue": "60s" });
    let env = start_with_two_workers(json!([rule])).await?;
    let client = Client::http2(env.sidecar.api_address());
    assert_eq!(client.get(LIST).await?.status, 200);
    let start = Instant::now();
    let refused = client.get(LIST).await?;
    assert_eq!(refused.status, 429);
    assert!(start.elapsed() < Duration::from_secs(30), "it was not kept waiting");
    let seconds: u64 = refused.headers["retry-after"].to_str()?.parse()?;
    assert!((3500..=4400).contains(&seconds), "{seconds}");
    Ok(())
}
