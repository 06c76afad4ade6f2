//! Limits the rate and duration of the manager's requests to the API server: one token bucket for all its parts.
//!
//! Guarantees: in any time `t`, at most `burst + qps * t` requests of [`Priority::Normal`] and [`Priority::Background`] are sent,
//! retries included. Background work leaves half of the burst to the others, so that labelling a whole cluster delays no change of
//! a chain. No request is waited for longer than its deadline, body included. The deadline of a watch begins after the duration
//! that it asked for, so that a watch on a dead connection is restarted.
//!
//! Caveats: a watch counts as one request, however long it lasts. Background work waits while others use up the rate.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use super::lock::lock_unpoisoned;

use axum::body::Body as ResponseBody;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tower::retry::Retry;
use tower::{BoxError, Service};

/// Duration of a watch that names none; `kube` names one.
const DEFAULT_WATCH_TIME: Duration = Duration::from_secs(290);

/// There was no response in time. It is not known whether the request was executed.
#[derive(Debug, thiserror::Error)]
#[error("no response within {0:?}; is the network, or the API server, overloaded?")]
struct DeadlineExceeded(Duration);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Never waits, but is counted: the leader's lease, which is lost if it is renewed late, and evictions.
    Urgent,
    /// In the order in which they are sent.
    Normal,
    /// Work that may take minutes.
    Background,
}

#[derive(Debug)]
pub struct Bucket {
    per_second: f64,
    burst: f64,
    /// Tokens that background work leaves to others.
    reserve: f64,
    level: Mutex<Level>,
    /// Background requests wait one behind the other.
    background: Semaphore,
}

/// The number of tokens at a time. A negative number of tokens is promised.
#[derive(Debug)]
struct Level {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket: requests per second, and how many may follow each other at once.
    #[must_use]
    pub fn new(qps: u32, burst: u32) -> Self {
        let burst = f64::from(burst.max(1));
        Self {
            per_second: f64::from(qps.max(1)),
            burst,
            reserve: (burst / 2.0).min(burst - 1.0),
            level: Mutex::new(Level {
                tokens: burst,
                at: Instant::now(),
            }),
            background: Semaphore::new(1),
        }
    }

    /// Waits until a request may be sent.
    pub async fn take(&self, priority: Priority) {
        match priority {
            Priority::Urgent => drop(self.take_future_token(Instant::now())),
            Priority::Normal => sleep(self.take_future_token(Instant::now())).await,
            Priority::Background => {
                // The semaphore is never closed.
                let _turn = self.background.acquire().await;
                while let Err(wait) = self.try_take_spare_token(Instant::now()) {
                    sleep(wait).await;
                }
            }
        }
    }

    /// Takes a token, even one that is still to come. Returns the wait for it.
    fn take_future_token(&self, now: Instant) -> Duration {
        self.with_level(now, |tokens| {
            *tokens -= 1.0;
            self.time_until(-*tokens)
        })
    }

    /// Takes a token that no other request needs. Otherwise returns the wait until there may be one.
    fn try_take_spare_token(&self, now: Instant) -> Result<(), Duration> {
        self.with_level(now, |tokens| {
            let missing = self.reserve + 1.0 - *tokens;
            if missing > 0.0 {
                return Err(self.time_until(missing));
            }
            *tokens -= 1.0;
            Ok(())
        })
    }

    fn time_until(&self, missing: f64) -> Duration {
        // A nanosecond more, so that it is not woken just before.
        let wait = Duration::try_from_secs_f64(missing / self.per_second).unwrap_or_default();
        if wait.is_zero() {
            wait
        } else {
            wait + Duration::from_nanos(1)
        }
    }

    fn with_level<T>(&self, now: Instant, take: impl FnOnce(&mut f64) -> T) -> T {
        let mut level = lock_unpoisoned(&self.level);
        let gained = now.duration_since(level.at).as_secs_f64() * self.per_second;
        level.tokens = (level.tokens + gained).min(self.burst);
        level.at = level.at.max(now);
        take(&mut level.tokens)
    }
}

/// A client whose requests take tokens and are given up at their deadline, counted from when they are sent. Requests that the API
/// server answers with 429, 503 or 504 are retried after its `Retry-After`, each time with a new token, unless they are urgent.
/// Therefore `client` itself should have no retries (`Config::default_retry`).
#[must_use]
pub fn rate_limited(client: &Client, bucket: &Arc<Bucket>, priority: Priority, deadline: Duration) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = LimitedClient {
        client: client.clone(),
        bucket: Arc::clone(bucket),
        priority,
        deadline,
    };
    if priority == Priority::Urgent {
        Client::new(service, namespace)
    } else {
        Client::new(Retry::new(retry_policy(), service), namespace)
    }
}

/// A few retries within some seconds. Callers have longer pauses of their own, and report the failure meanwhile.
fn retry_policy() -> RetryPolicy {
    let (first, longest, most) = (Duration::from_millis(100), Duration::from_secs(1), 4);
    RetryPolicy::new(first, longest, most, true).unwrap_or_else(|_| RetryPolicy::server_retry())
}

#[derive(Clone)]
struct LimitedClient {
    client: Client,
    bucket: Arc<Bucket>,
    priority: Priority,
    deadline: Duration,
}

impl LimitedClient {
    async fn limited_response(self, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        self.bucket.take(self.priority).await;
        let late = |_| DeadlineExceeded(self.deadline);
        if let Some(lasts) = watch_duration(request.uri().query().unwrap_or_default()) {
            let response = timeout(self.deadline, self.client.send(request))
                .await
                .map_err(late)??;
            let end = sleep(lasts + self.deadline);
            return Ok(response
                .map(|body| ResponseBody::from_stream(ResponseBody::new(body).into_data_stream().take_until(end))));
        }
        let whole = async {
            let (head, body) = self.client.send(request).await?.into_parts();
            let body = body.collect_bytes().await?;
            Ok(Response::from_parts(head, ResponseBody::from(body)))
        };
        timeout(self.deadline, whole).await.map_err(late)?
    }
}

/// The duration that a watch asks for. `None`: the request is not a watch.
fn watch_duration(query: &str) -> Option<Duration> {
    let mut lasts = DEFAULT_WATCH_TIME;
    let mut is_watch = false;
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("watch", value)) => is_watch = matches!(value, "true" | "1"),
            Some(("timeoutSeconds", value)) => lasts = value.parse().map_or(DEFAULT_WATCH_TIME, Duration::from_secs),
            _ => {}
        }
    }
    is_watch.then_some(lasts)
}

impl Service<Request<Body>> for LimitedClient {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().limited_response(request))
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_testkit::{ApiServer, Fault, Gate, Rule};
    use futures_util::FutureExt;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Api;
    use kube::api::{ListParams, WatchParams};

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(300);
    /// Timeout of a failing test.
    const PATIENCE: Duration = Duration::from_secs(20);
    const FOR_EVER: Duration = Duration::from_mins(1);

    /// ConfigMaps of a server that applies this rule to requests.
    async fn configmap_api(rule: Rule) -> (ApiServer, Api<ConfigMap>) {
        let server = ApiServer::builder().start().await.unwrap();
        server.faults().add(rule);
        let mut config = kube::Config::new(server.url().parse().unwrap());
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let bucket = Arc::new(Bucket::new(100, 100));
        let client = rate_limited(&client, &bucket, Priority::Normal, DEADLINE);
        (server, Api::namespaced(client, "default"))
    }

    #[tokio::test]
    async fn request_times_out_until_end_of_its_body() {
        let slow = Fault::SlowBody {
            chunk: 1,
            every: FOR_EVER,
        };
        for fault in [Fault::Hold(Gate::new()), slow] {
            let (_server, configmaps) = configmap_api(Rule::new(fault.clone())).await;
            let listed = timeout(PATIENCE, configmaps.list(&ListParams::default())).await;
            let problem = listed.expect("it is given up").unwrap_err().to_string();
            assert!(problem.contains("no response within 300ms"), "{fault:?}: {problem}");
        }
    }

    #[tokio::test]
    async fn watch_outlives_deadline_and_ends_after_its_duration() {
        let slow = Fault::SlowBody {
            chunk: 1,
            every: FOR_EVER,
        };
        for fault in [slow, Fault::Delay(Duration::ZERO)] {
            let (_server, configmaps) = configmap_api(Rule::new(fault.clone()).verb("watch")).await;
            let start = Instant::now();
            let events = configmaps.watch(&WatchParams::default().timeout(1), "0").await.unwrap();
            let ended = timeout(PATIENCE, events.for_each(async |_| {})).await;
            assert!(ended.is_ok(), "{fault:?}: it is given up");
            assert!(start.elapsed() > 2 * DEADLINE, "{fault:?}: {:?}", start.elapsed());
        }
    }

    #[test]
    fn watch_is_recognised_by_its_query() {
        for (query, lasts) in [
            ("", None),
            ("limit=500&watch=false", None),
            ("&limit=500&resourceVersion=1", None),
            ("watch=true", Some(290)),
            ("&watch=1&timeoutSeconds=17&allowWatchBookmarks=true", Some(17)),
        ] {
            assert_eq!(watch_duration(query), lasts.map(Duration::from_secs), "{query}");
        }
    }

    /// When each request is sent, if all are ready at `start`.
    fn send_times(bucket: &Bucket, priority: Priority, start: Instant, requests: usize) -> Vec<Duration> {
        let mut now = start;
        let one = |_| match priority {
            Priority::Background => {
                while let Err(wait) = bucket.try_take_spare_token(now) {
                    now += wait;
                }
                now - start
            }
            _ => bucket.take_future_token(start),
        };
        (0..requests).map(one).collect()
    }

    #[test]
    fn requests_are_limited_to_burst_and_rate() {
        for priority in [Priority::Normal, Priority::Background] {
            let bucket = Bucket::new(10, 5);
            let times = send_times(&bucket, priority, Instant::now(), 65);
            for (first, from) in times.iter().enumerate() {
                for (last, to) in times.iter().enumerate().skip(first) {
                    let allowed = 5.0 + 10.0 * (*to - *from).as_secs_f64();
                    let sent = f64::from(u32::try_from(last - first + 1).unwrap());
                    assert!(sent <= allowed + 1e-6, "{priority:?}: {sent} in {from:?}..{to:?}");
                }
            }
            let end = times.last().unwrap().as_secs_f64();
            assert!((6.0..6.5).contains(&end), "{priority:?}: the rate is used up: {end}");
        }
    }

    #[test]
    fn idle_time_fills_bucket_up_to_burst() {
        let (bucket, start) = (Bucket::new(10, 5), Instant::now());
        send_times(&bucket, Priority::Normal, start, 5);
        let later = send_times(&bucket, Priority::Normal, start + Duration::from_mins(1), 6);
        assert_eq!(later.iter().filter(|wait| wait.is_zero()).count(), 5);
    }

    #[test]
    fn background_work_leaves_tokens_to_others() {
        let (bucket, start) = (Bucket::new(10, 20), Instant::now());
        let now = start + *send_times(&bucket, Priority::Background, start, 300).last().unwrap();
        let waits = send_times(&bucket, Priority::Normal, now, 20);
        assert!(
            waits.iter().take(10).all(Duration::is_zero),
            "none of them waits: {waits:?}"
        );
        // Promised tokens come before background work: 10 tokens, then its reserve of 10, then its own.
        let wait = bucket.try_take_spare_token(now).unwrap_err();
        assert!((2.0..2.2).contains(&wait.as_secs_f64()), "{wait:?}");
    }

    #[tokio::test]
    async fn urgent_request_skips_queue_and_takes_token() {
        let bucket = Bucket::new(1, 1);
        for _ in 0..10 {
            assert!(bucket.take(Priority::Urgent).now_or_never().is_some());
        }
        assert!(bucket.take(Priority::Normal).now_or_never().is_none());
    }

    #[test]
    fn background_work_is_sent_with_burst_of_one() {
        let bucket = Bucket::new(1, 1);
        assert_eq!(send_times(&bucket, Priority::Background, Instant::now(), 3).len(), 3);
    }
}
