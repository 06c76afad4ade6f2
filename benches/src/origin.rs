//! The API server of the benchmarks, HTTP/1.1: a small JSON list, a large one, and watches.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::process::announce_address;

/// Answered with [`SMALL`].
pub(crate) const LIST: &str = "/api/v1/namespaces/default/configmaps?limit=500";
/// Answered with [`SMALL`].
pub(crate) const GET: &str = "/api/v1/namespaces/default/configmaps/a";
/// Answered with [`LARGE_BYTES`].
pub(crate) const LARGE: &str = "/api/v1/configmaps";
/// Sends an event every [`EVENT_INTERVAL`] with the time at which it was sent.
pub(crate) const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true";
/// One event, and then nothing.
pub(crate) const QUIET_WATCH: &str = "/api/v1/namespaces/quiet/configmaps?watch=true";

/// Size of a large list: all pods of a cluster with some thousand nodes.
pub(crate) const LARGE_BYTES: usize = 64 << 20;

/// About the size of one small object.
const SMALL: &str = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":[{"metadata":{"name":"a","namespace":"b","labels":{"shard":"a"}}}]}"#;

/// Bytes of a large list that are sent at once, like a server that encodes object by object.
const PIECE: usize = 64 << 10;

/// A busy watch: a controller of many objects sees hundreds of events per second.
const EVENT_INTERVAL: Duration = Duration::from_millis(2);

pub(crate) async fn serve_origin() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce_address(listener.local_addr()?)?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::task::spawn_local(async move {
            // A client that goes away is how a measurement ends.
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer_request))
                .await;
        });
    }
}

async fn answer_request(request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let answer = match request.uri().path() {
        path if is_watch && path.contains("/quiet/") => Answer::watch_events(None),
        _ if is_watch => Answer::watch_events(Some(EVENT_INTERVAL)),
        LARGE => Answer::large_list(),
        _ => Answer::Whole(Some(Bytes::from_static(SMALL.as_bytes()))),
    };
    let mut response = Response::new(answer);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

enum Answer {
    Whole(Option<Bytes>),
    Large { left: usize, piece: Bytes },
    Events(Interval),
    QuietEvents { first: bool },
}

impl Answer {
    fn large_list() -> Self {
        Self::Large {
            left: LARGE_BYTES,
            piece: vec![b' '; PIECE].into(),
        }
    }

    fn watch_events(every: Option<Duration>) -> Self {
        match every {
            Some(every) => {
                let mut ticks = interval(every);
                ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                Self::Events(ticks)
            }
            None => Self::QuietEvents { first: true },
        }
    }
}

/// A watch event with the time at which it was sent.
fn watch_event() -> Bytes {
    let sent = since_epoch().as_nanos();
    let event = serde_json::json!({
        "type": "MODIFIED",
        "object": {
            "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": {
                "name": "a", "namespace": "default", "resourceVersion": "42", "labels": { "shard": "a" },
                "annotations": { "sent": sent.to_string() },
            },
        },
    });
    format!("{event}\n").into()
}

/// When an event was sent, on the clock that all processes share. `None` if the frame is not exactly one event.
pub(crate) fn sent_at(frame: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(frame).ok()?;
    let (_, rest) = text.split_once(r#""sent":""#)?;
    let (nanoseconds, _) = rest.split_once('"')?;
    Some(Duration::from_nanos(nanoseconds.parse().ok()?))
}

/// The clock that all processes share.
pub(crate) fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Whole(bytes) => bytes.take(),
            Self::Large { left: 0, .. } => None,
            Self::Large { left, piece } => {
                let length = piece.len().min(*left);
                *left -= length;
                Some(piece.slice(..length))
            }
            Self::Events(ticks) => {
                ready!(ticks.poll_tick(cx));
                Some(watch_event())
            }
            Self::QuietEvents { first: false } => return Poll::Pending,
            Self::QuietEvents { first } => {
                *first = false;
                Some(watch_event())
            }
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            // Like the API server: the length of a large list is unknown before its end.
            Self::Large { .. } | Self::Events(_) | Self::QuietEvents { .. } => SizeHint::default(),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Large { left: 0, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_one_line_and_says_when_it_was_sent() {
        let before = since_epoch();
        let event = watch_event();
        let at = sent_at(&event).unwrap();
        assert!(before <= at && at <= since_epoch());
        assert!(event.ends_with(b"}\n") && event.iter().filter(|byte| **byte == b'\n').count() == 1);
        assert_eq!(sent_at(b"{}\n"), None);
    }

    #[tokio::test]
    async fn large_list_has_its_size() {
        let mut body = Answer::large_list();
        let mut bytes = 0;
        let next = |body: &mut Answer| {
            let polled = Pin::new(body).poll_frame(&mut Context::from_waker(std::task::Waker::noop()));
            match polled {
                Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap().len()),
                Poll::Pending => panic!("it never waits"),
            }
        };
        while let Some(length) = next(&mut body) {
            bytes += length;
        }
        assert_eq!(bytes, LARGE_BYTES);
        assert!(body.is_end_stream());
    }
}
