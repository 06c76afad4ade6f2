//! The real rate-limit plugin under 64 clients at once, on two worker threads: what the API server gets is what the rules
//! allow, no more and no less.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ctrlmesh_testkit::{ApiServer, Fault, Gate, Rule};
use ctrlmesh_tests::{Client, EntrySpec, Stand, wait_until};
use serde_json::{Value, json};
use tokio::task::JoinSet;

pub(crate) const LIST: &str = "/api/v1/configmaps";
const CLIENTS: usize = 64;

/// The plugin with these rules.
pub(crate) fn limiter(rules: Value) -> EntrySpec {
    EntrySpec::new("rate-limit/test", ctrlmesh_plugins_builtin::RATE_LIMIT).settings(json!({ "rateLimitings": rules }))
}

/// Every request for config maps.
pub(crate) fn maps() -> Value {
    json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"], "namespaces": ["*"] }])
}

/// A sidecar with two threads that have requests.
async fn two_threads(rules: Value) -> anyhow::Result<Stand> {
    let api = ApiServer::builder().start().await?;
    Stand::around(api, vec![limiter(rules)], &["--workers", "2"]).await
}

/// How many answers have each status.
fn tally(statuses: impl IntoIterator<Item = u16>) -> BTreeMap<u16, usize> {
    let mut tally = BTreeMap::new();
    for status in statuses {
        *tally.entry(status).or_default() += 1;
    }
    tally
}

/// 64 clients that ask again and again, as soon as they are answered, until `enough`; returns the answers' statuses.
async fn storm<F>(stand: &Stand, what: &str, enough: impl Fn() -> F) -> anyhow::Result<Vec<u16>>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, over) = (stand.client(), Arc::clone(&over));
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
async fn a_bucket_grants_its_burst_and_its_rate_and_no_more() -> anyhow::Result<()> {
    const BURST: f64 = 20.0;
    const RATE: f64 = 100.0;
    let bucket = json!({ "limit": 50, "interval": "500ms", "burst": 20 });
    let stand = two_threads(json!([{ "name": "all", "resourceRules": maps(), "bucket": bucket }])).await?;
    let requests = stand.api.requests();
    let start = Instant::now();
    let statuses = storm(&stand, "two seconds' worth is granted", || async {
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
    let tally = tally(statuses);
    assert_eq!(tally[&200], usize::try_from(granted)?, "{tally:?}");
    assert!(tally.len() == 2 && tally[&429] > 0, "{tally:?}");
    for (decision, count) in [("granted", tally[&200]), ("refused", tally[&429])] {
        let series = format!(r#"ctrlmesh_plugin_{decision}_total{{entry="rate-limit/test",label="all"}}"#);
        assert_eq!(stand.sidecar.metric(&series).await?, count as f64, "{decision}");
    }
    Ok(())
}

/// Sends 64 requests that the API server holds, and waits until all but `held` are answered; returns the clients.
async fn hold(stand: &Stand, gate: &Gate, held: usize) -> anyhow::Result<JoinSet<anyhow::Result<u16>>> {
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = stand.client();
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
async fn so_many_requests_are_in_flight_and_no_more() -> anyhow::Result<()> {
    const MOST: usize = 5;
    let rule = json!({ "name": "few", "resourceRules": maps(), "maxInFlight": MOST });
    let stand = two_threads(json!([rule])).await?;
    let (api, requests) = (&stand.api, stand.api.requests());
    for round in 1..=3 {
        let gate = Gate::new();
        let rule = api.faults().add(Rule::new(Fault::Hold(gate.clone())).verb("list"));
        let mut clients = hold(&stand, &gate, MOST).await?;
        assert_eq!(api.activity().requests, MOST, "each place is taken");
        api.faults().remove(rule);
        gate.open();
        while let Some(answered) = clients.join_next().await {
            assert_eq!(answered??, 200);
        }
        assert_eq!(requests.count("list"), round * MOST as u64, "and each is given back");
    }
    let statuses = storm(&stand, "places go from hand to hand", || async {
        Ok(requests.count("list") >= 500)
    })
    .await?;
    assert_eq!(tally(statuses).keys().copied().collect::<Vec<_>>(), [200, 429]);
    assert_eq!(api.activity().most_requests, MOST, "as the API server saw it");
    Ok(())
}

#[tokio::test]
async fn a_place_comes_back_however_its_request_ends() -> anyhow::Result<()> {
    let rule = json!({ "name": "one", "resourceRules": maps(), "maxInFlight": 1 });
    let stand = two_threads(json!([rule])).await?;
    let client = stand.client();
    let gate = Gate::new();
    let held = Rule::new(Fault::Hold(gate.clone())).verb("list").times(1);
    stand.api.faults().add(held);
    let gone = tokio::spawn({
        let client = client.clone();
        async move { client.get(LIST).await }
    });
    gate.wait_for_arrivals(1).await?;
    assert_eq!(client.get(LIST).await?.status, 429);
    gone.abort();
    let is_free = || async { Ok(client.get(LIST).await?.status == 200) };
    wait_until("the place of a client that went away is free", is_free).await?;
    let reset = Fault::ResetStream(ctrlmesh_testkit::When::AfterExecuting);
    stand.api.faults().add(Rule::new(reset).verb("list").times(1));
    wait_until("the answer breaks off", || async {
        Ok(client.get(LIST).await?.status == 502)
    })
    .await?;
    wait_until("the place is free again", is_free).await?;
    // A watch takes none, and neither does it wait for one.
    let mut watch = client.stream(&format!("{LIST}?watch=1")).await?;
    stand.seed("default", "a", 1)?;
    watch.event().await?;
    wait_until("an open watch leaves the place to others", is_free).await
}

#[tokio::test]
async fn queued_requests_all_arrive_at_the_rate() -> anyhow::Result<()> {
    let bucket = json!({ "limit": 20, "interval": "1s", "burst": 2 });
    let rule = json!({ "name": "slow", "resourceRules": maps(), "bucket": bucket, "queue": "30s" });
    let stand = two_threads(json!([rule])).await?;
    let start = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..12 {
        let client = stand.client();
        clients.spawn(async move { Ok(client.get(LIST).await?.status) });
    }
    while let Some(answered) = clients.join_next().await {
        let status: anyhow::Result<u16> = answered?;
        assert_eq!(status?, 200);
    }
    // Two at once, then ten at 20 a second.
    assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
    assert_eq!(stand.api.requests().count("list"), 12);
    let counted = async |decision: &str| {
        let series = format!(r#"ctrlmesh_plugin_{decision}_total{{entry="rate-limit/test",label="slow"}}"#);
        stand.sidecar.metric(&series).await
    };
    assert_eq!(counted("granted").await? + counted("queued").await?, 12.0);
    assert!(counted("queued").await? >= 1.0);
    assert_eq!(counted("refused").await?, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_client_that_waits_in_vain_is_refused_at_once() -> anyhow::Result<()> {
    let bucket = json!({ "limit": 1, "interval": "1h", "burst": 1 });
    let rule = json!({ "name": "slow", "resourceRules": maps(), "bucket": bucket, "queue": "60s" });
    let stand = two_threads(json!([rule])).await?;
    let client = Client::http2(stand.sidecar.api());
    assert_eq!(client.get(LIST).await?.status, 200);
    let start = Instant::now();
    let refused = client.get(LIST).await?;
    assert_eq!(refused.status, 429);
    assert!(start.elapsed() < Duration::from_secs(30), "it was not kept waiting");
    let seconds: u64 = refused.headers["retry-after"].to_str()?.parse()?;
    assert!((3500..=4400).contains(&seconds), "{seconds}");
    Ok(())
}
