//! An open watch: passed on event by event, and ended when a new chain would show the client something else.
//!
//! Flow: when a new chain comes into force, the stream asks its plugins about the watch again, without effects. If they make the same
//! edits, nothing happens. Otherwise the client gets an ERROR event 410 `Expired` at the next event boundary, and a clean end. client-go's
//! reflector then lists again, under the new view.
//! Caveat: in an encoding whose event boundaries cannot be followed (CBOR, compressed) the stream ends without the event; the client's next
//! watch is answered with 410 because of `list_views`.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use ctrlmesh_wire::{WatchEncoding, watch_error_event};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::chain::InFlightGuard;
use crate::connection::Listener;
use crate::controller_state::list_views::Position;
use crate::respond::Reply;
use crate::upstream::BoxError;

/// Tracks the event boundaries of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// One JSON object per line.
    Line {
        at_start: bool,
    },
    /// Four bytes of big-endian length, then the event. `header` counts the bytes of the length that have not arrived yet.
    Length {
        header: u8,
        length: u32,
    },
    Unknown,
}

impl Boundary {
    pub(crate) fn new(encoding: Option<WatchEncoding>) -> Self {
        match encoding {
            Some(WatchEncoding::Json) => Self::Line { at_start: true },
            Some(WatchEncoding::Protobuf) => Self::Length { header: 4, length: 0 },
            Some(WatchEncoding::Cbor) | None => Self::Unknown,
        }
    }

    pub(crate) fn is_at_boundary(self) -> bool {
        match self {
            Self::Line { at_start } => at_start,
            Self::Length { header, length } => header == 4 && length == 0,
            Self::Unknown => true,
        }
    }

    pub(crate) fn track_events(&mut self, mut bytes: &[u8]) {
        match self {
            Self::Line { at_start } => {
                if let Some(last) = bytes.last() {
                    *at_start = *last == b'\n';
                }
            }
            Self::Length { header, length } => {
                while let Some((first, rest)) = bytes.split_first() {
                    if *header > 0 {
                        *length = (*length << 8) | u32::from(*first);
                        *header -= 1;
                        bytes = rest;
                    } else {
                        let take = bytes.len().min(*length as usize);
                        *length -= u32::try_from(take).unwrap_or(*length);
                        bytes = bytes.get(take..).unwrap_or_default();
                    }
                    if *header == 0 && *length == 0 {
                        *header = 4;
                    }
                }
            }
            Self::Unknown => {}
        }
    }
}

/// A watch at its start.
pub(crate) struct WatchStart {
    /// Notified of chains newer than the watch's.
    pub(crate) listener: Listener,
    /// Counts the watch under its chain, until a later chain that shows it the same view takes over.
    pub(crate) in_flight_guard: InFlightGuard,
}

/// Called when a new chain is in force, and at the time of the last result. Returns `None` if the watch would get another view now.
pub(crate) type Recheck = Box<dyn FnMut() -> Option<SameView>>;

/// The chain in force shows a watch the same view.
pub(crate) struct SameView {
    pub(crate) in_flight_guard: InFlightGuard,
    /// When the view must be computed again, even if the chain stays.
    pub(crate) again: Option<Instant>,
}

/// State for following new chains.
pub(crate) struct Watching {
    pub(crate) start: WatchStart,
    pub(crate) recheck: Recheck,
    /// When the view must be computed again, even if the chain stays.
    pub(crate) again: Option<Pin<Box<Sleep>>>,
    /// Called when another view ends the watch.
    pub(crate) on_expired: Rc<dyn Fn()>,
    /// Resource version at which the client may resume, unless it gets a 410.
    pub(crate) position: Option<Position>,
}

impl Watching {
    /// Whether the watch would get another view now; if so, it is counted. Registers for the next chain.
    fn poll_expired(&mut self, cx: &mut Context<'_>) -> bool {
        let is_due = self
            .again
            .as_mut()
            .is_some_and(|again| again.as_mut().poll(cx).is_ready());
        if !self.start.listener.poll_changed(cx) && !is_due {
            return false;
        }
        match (self.recheck)() {
            Some(same) => {
                self.start.in_flight_guard = same.in_flight_guard;
                self.again = same.again.map(|at| Box::pin(sleep_until(at)));
                // Registers for that time.
                if let Some(again) = &mut self.again
                    && again.as_mut().poll(cx).is_ready()
                {
                    cx.waker().wake_by_ref();
                }
                false
            }
            None => {
                self.again = None;
                if let Some(position) = &self.position {
                    position.mark_outdated();
                }
                (self.on_expired)();
                true
            }
        }
    }

    /// Waits until a stream with unknown event boundaries must end: a new chain shows another view, or the sidecar drains.
    pub(crate) async fn wait_for_end(mut self) {
        std::future::poll_fn(|cx| {
            if self.poll_expired(cx) || self.start.listener.is_ending() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

/// An open watch in transit to the client.
pub(crate) struct WatchBody<B> {
    inner: B,
    watching: Watching,
    encoding: Option<WatchEncoding>,
    boundary: Boundary,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The watch ends at the next boundary, with the ERROR event.
    Expiring,
    Ended,
}

impl<B> WatchBody<B> {
    /// `headers` are those of the response; they name the encoding.
    pub(crate) fn new(inner: B, headers: &HeaderMap, watching: Watching) -> Self {
        let encoding = watch_encoding(headers);
        Self {
            inner,
            watching,
            encoding,
            boundary: Boundary::new(encoding),
            state: State::Open,
        }
    }

    fn poll_chain_change(&mut self, cx: &mut Context<'_>) {
        if self.watching.poll_expired(cx) && self.state == State::Open {
            self.state = State::Expiring;
        }
    }

    /// The last frame, if the stream may end at this point.
    fn end_here(&mut self) -> Option<Option<Frame<Bytes>>> {
        if !self.boundary.is_at_boundary() {
            return None;
        }
        match self.state {
            State::Expiring => {
                self.state = State::Ended;
                let event = self
                    .encoding
                    .filter(|_| self.boundary != Boundary::Unknown)
                    .map(expired_frame);
                if let Some(position) = self.watching.position.as_mut().filter(|_| event.is_some()) {
                    position.mark_expired();
                }
                Some(event)
            }
            State::Open if self.watching.start.listener.is_ending() => {
                self.state = State::Ended;
                Some(None)
            }
            State::Open => None,
            State::Ended => Some(None),
        }
    }
}

fn expired_frame(encoding: WatchEncoding) -> Frame<Bytes> {
    let reply = Reply::expired("the rules of this controller's shard have changed: list again");
    Frame::data(Bytes::from(watch_error_event(reply.status(), encoding)))
}

/// The encoding of a watch; `None` if its event boundaries cannot be followed.
pub(crate) fn watch_encoding(headers: &HeaderMap) -> Option<WatchEncoding> {
    let plain = headers.get(CONTENT_ENCODING).is_none_or(|value| value == "identity");
    headers
        .get(CONTENT_TYPE)
        .filter(|_| plain)?
        .to_str()
        .ok()
        .and_then(WatchEncoding::from_content_type)
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for WatchBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.poll_chain_change(cx);
        if let Some(last) = self.end_here() {
            return Poll::Ready(last.map(Ok));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.boundary.track_events(data);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.state == State::Ended || self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests;
