//! Sidecars some of whose responses are lost.

use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

use super::*;

/// Answers that get lost from now on.
type Lost = Arc<AtomicU64>;

/// A sidecar that says `status` at the `last` address of 127.0.0.0/24, but for responses that get lost.
struct Losing {
    sidecar: Sidecar,
    lost: Lost,
}

impl Losing {
    async fn start(last: u8, port: u16) -> (Self, u16) {
        let ip = format!("127.0.0.{last}");
        let listener = TcpListener::bind((ip.as_str(), port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (says, asked, lost) = (SharedStatus::default(), Arc::new(AtomicU64::new(0)), Lost::default());
        let state = (Arc::clone(&says), Arc::clone(&asked), Arc::clone(&lost));
        let router = Router::new()
            .route("/status", get(serve_some_statuses))
            .with_state(state);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let task = task.abort_handle();
        let sidecar = Sidecar {
            ip,
            port,
            says,
            asked,
            task,
        };
        (Self { sidecar, lost }, port)
    }

    fn lose_responses(&self, responses: u64) {
        self.lost.store(responses, Ordering::SeqCst);
    }

    async fn until_asked(&self, more: u64) {
        let enough = self.sidecar.poll_count() + more;
        until_counted(|| self.sidecar.poll_count() >= enough).await;
    }
}

async fn serve_some_statuses(State((says, asked, lost)): State<(SharedStatus, Arc<AtomicU64>, Lost)>) -> Response {
    let left = lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    if left.is_ok() {
        asked.fetch_add(1, Ordering::Relaxed);
        return StatusCode::BAD_GATEWAY.into_response();
    }
    serve_status(State((says, asked))).await.into_response()
}

pub(super) fn shard(name: &str, label: &str, after: u64) -> Value {
    let mut shard = samples::shard(name, &[]);
    shard["spec"]["limits"][0]["selector"]["matchLabels"] = json!({ "a": label });
    shard["spec"]["unreachablePods"] = json!({ "policy": "Proceed", "afterSeconds": after });
    shard
}

pub(super) fn pod_of(shard: &str, ip: &str) -> Value {
    let mut pod = pod(&format!("{shard}-0"), ip);
    pod["metadata"]["labels"]["shard"] = json!(shard);
    pod
}

fn is_handing_over(state: &Snapshot<'_>, name: &str) -> bool {
    condition_of(state, "shardingconfigs", name, "Distributed")[1] == "HandingOver"
}

#[tokio::test]
async fn live_pod_is_not_overtaken_after_one_lost_response() {
    let (left, port) = Losing::start(41, 0).await;
    let (right, _) = Losing::start(42, port).await;
    left.sidecar.set_status(status_running("left-0", 0, None));
    right.sidecar.set_status(status_running("right-0", 0, None));
    let server = server().await;
    put(&server, pod_of("left", &left.sidecar.ip));
    put(&server, pod_of("right", &right.sidecar.ip));
    put(&server, shard("left", "b", 1));
    let (context, task) = start(&server, port, &["--settle-ms=0"]).await;
    let first = until_entries(&server, 1).await;
    left.sidecar
        .set_status(status_running("left-0", first.generation, Some(&first)));
    right
        .sidecar
        .set_status(status_running("right-0", first.generation, None));
    put(&server, shard("right", "b", 1));
    put(&server, shard("left", "c", 1));
    until(&server, "right waits", |state| is_handing_over(state, "right")).await;
    let mut own = server.store().read(chain).unwrap();
    own.entries.retain(|entry| entry.name.ends_with("/right"));
    right
        .sidecar
        .set_status(status_running("right-0", own.generation, Some(&own)));
    // By then it would be polled every ten seconds if no shard waited for it.
    left.until_asked(10).await;
    let overtaken = || context.metrics.distribution.overtaken.get();
    for _ in 0..2 {
        left.lose_responses(1);
        left.until_asked(5).await;
    }
    assert_eq!(overtaken(), 0);
    server.store().read(|state| assert!(is_handing_over(state, "right")));
    let (lost, asked) = (Instant::now(), left.sidecar.poll_count());
    left.lose_responses(u64::MAX);
    until_counted(|| overtaken() == 1).await;
    assert!(lost.elapsed() > Duration::from_secs(1), "{:?}", lost.elapsed());
    let asked = left.sidecar.poll_count() - asked;
    assert!(asked >= 3, "it was asked {asked} times");
    task.stop().await;
}

#[tokio::test]
async fn lost_response_does_not_change_status() {
    let (sidecar, port) = Losing::start(43, 0).await;
    sidecar.sidecar.set_status(status_running("operator-0", 0, None));
    let server = server().await;
    put(&server, pod("operator-0", &sidecar.sidecar.ip));
    put(&server, samples::faults("a"));
    let (context, task) = start(&server, port, &["--poll-seconds=1"]).await;
    let chain = until_entries(&server, 1).await;
    let whole = status_running("operator-0", chain.generation, Some(&chain));
    sidecar.sidecar.set_status(whole);
    let is_enforced = |state: &Snapshot<'_>| condition(state, "a", "Enforced")[0] == "True";
    until(&server, "it is enforced", is_enforced).await;
    let published = || {
        let seen = server.requests().recent().into_iter();
        seen.filter(|seen| seen.verb == "patch" && seen.target.contains("/status"))
            .count()
    };
    let (before, passes) = (published(), context.metrics.distribution.passes.get());
    for _ in 0..3 {
        sidecar.lose_responses(1);
        sidecar.until_asked(2).await;
    }
    until_counted(|| context.metrics.distribution.passes.get() > passes).await;
    assert_eq!(context.metrics.distribution.polls_failed.get(), 3);
    assert_eq!(published(), before);
    sidecar.lose_responses(u64::MAX);
    until(&server, "it is not enforced", |state| {
        condition(state, "a", "Enforced")[0] == "False"
    })
    .await;
    task.stop().await;
}
