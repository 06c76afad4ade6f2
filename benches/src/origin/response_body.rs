//! The bodies of the origin's responses: small objects, large lists, and watches whose events say when they were sent.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Bytes of a large list, or of the events with which a watch begins, that are sent at once, like a server that encodes
/// object by object.
const PIECE: usize = 64 << 10;

thread_local! {
    /// Number of watches with events so far, which spreads their events over time.
    static WATCHES: Cell<u32> = const { Cell::new(0) };
}

pub(super) enum ResponseBody {
    Whole(Option<Bytes>),
    /// Proxies do not parse lists, so only the size is that of a list.
    Large {
        left: usize,
        piece: Bytes,
    },
    Events(Interval),
    /// One event, and then nothing.
    QuietEvents {
        first: bool,
    },
    /// The events with which a watch begins, and then nothing.
    InitialEvents {
        rest: Bytes,
    },
}

impl ResponseBody {
    pub(super) fn large_list(bytes: usize) -> Self {
        Self::Large {
            left: bytes,
            piece: vec![b' '; PIECE].into(),
        }
    }

    /// Events at this interval. Watches that are opened together send theirs a millisecond apart, not all at once.
    pub(super) fn watch_events(every: Duration) -> Self {
        let number = WATCHES.replace(WATCHES.get().wrapping_add(1));
        let every = every.max(Duration::from_millis(1));
        let milliseconds = u32::try_from(every.as_millis()).unwrap_or(u32::MAX);
        let first = Instant::now() + Duration::from_millis(u64::from(number % milliseconds));
        let mut ticks = interval_at(first, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self::Events(ticks)
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

impl Body for ResponseBody {
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
            Self::InitialEvents { rest } if rest.is_empty() => return Poll::Pending,
            Self::InitialEvents { rest } => Some(rest.split_to(rest.len().min(PIECE))),
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            // Like the API server: the length of a large list is unknown before its end.
            Self::Large { .. } | Self::Events(_) | Self::QuietEvents { .. } | Self::InitialEvents { .. } => {
                SizeHint::default()
            }
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
        let mut body = ResponseBody::large_list(3 * PIECE + 1);
        let mut bytes = 0;
        let next = |body: &mut ResponseBody| {
            let polled = Pin::new(body).poll_frame(&mut Context::from_waker(std::task::Waker::noop()));
            match polled {
                Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap().len()),
                Poll::Pending => panic!("it never waits"),
            }
        };
        while let Some(length) = next(&mut body) {
            bytes += length;
        }
        assert_eq!(bytes, 3 * PIECE + 1);
        assert!(body.is_end_stream());
    }

    #[test]
    fn initial_events_are_sent_in_pieces_and_leave_the_watch_open() {
        let mut body = ResponseBody::InitialEvents {
            rest: vec![b' '; PIECE + 1].into(),
        };
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut lengths = Vec::new();
        while let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut context) {
            lengths.push(frame.unwrap().unwrap().into_data().unwrap().len());
        }
        assert_eq!(lengths, [PIECE, 1]);
        assert!(!body.is_end_stream());
    }
}
