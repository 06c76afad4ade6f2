//! A body whose flow a plugin shapes: delayed, slowed down, cut, or ended early.
//!
//! The plugin chooses the shape (WIT `body-shape`). hyper ends the connection after a cut: the error carries the HTTP/2 reason.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use ctrlmesh_wire::{WatchEncoding, watch_error_event};
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep};

use crate::connection::Connection;
use crate::plugin::verdict::{BodyShape, Reset};
use crate::respond::Reply;
use crate::stream::watch::Boundary;
use crate::upstream::BoxError;

/// A hang ends after this time: longer than any client's own timeout, and short enough not to leak.
pub(crate) const LONGEST_HANG: Duration = Duration::from_secs(600);

/// hyper writes out its buffer while a body makes it wait; an error right behind the bytes would discard them.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

/// Size of paced slices; smaller ones only cost wake-ups.
const PACE_SLICE: usize = 4096;

/// Message that a watch gets when its version is compacted (k8s.io/apiserver `pkg/storage/etcd3/errors.go`, `interpretWatchError`).
const COMPACTED_MESSAGE: &str = "The resourceVersion for the provided watch is too old.";

pub(crate) struct ShapedBody<B> {
    inner: B,
    shape: BodyShape,
    encoding: Option<WatchEncoding>,
    boundary: Boundary,
    /// Nothing is sent until this ends (hold, pace, hang).
    pause: Option<Pin<Box<Sleep>>>,
    end: Option<Pin<Box<Sleep>>>,
    sent: u64,
    /// Bytes that were read and not sent yet.
    kept: Bytes,
    state: State,
    connection: Rc<Connection>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The time is over: the body ends at the next event boundary.
    Ending,
    /// The body is cut: the error follows, after the pause if it is a hang.
    Cut,
    Ended,
}

/// A plugin broke the exchange off. hyper searches the chain of causes for the `h2::Error`.
#[derive(Debug, thiserror::Error)]
#[error("response aborted by a plugin")]
pub(crate) struct BrokenOff {
    #[source]
    reason: h2::Error,
}

impl BrokenOff {
    pub(crate) fn new(how: Reset) -> Self {
        let reason = match how {
            Reset::InternalError => h2::Reason::INTERNAL_ERROR,
            Reset::Cancel | Reset::Close | Reset::Hang | Reset::BlackHole => h2::Reason::CANCEL,
        };
        Self { reason: reason.into() }
    }
}

impl<B> ShapedBody<B> {
    /// `encoding` is that of a watch, for the ERROR event.
    pub(crate) fn new(inner: B, shape: BodyShape, encoding: Option<WatchEncoding>, connection: Rc<Connection>) -> Self {
        let timer = |after: Duration| Box::pin(tokio::time::sleep_until(Instant::now() + after));
        let pause = shape.hold.map(timer);
        let end = shape.end_after.map(timer);
        Self {
            inner,
            shape,
            encoding,
            boundary: Boundary::new(encoding),
            pause,
            end,
            sent: 0,
            kept: Bytes::new(),
            state: State::Open,
            connection,
        }
    }

    fn pause_for(&mut self, time: Duration) {
        self.pause = Some(Box::pin(tokio::time::sleep_until(Instant::now() + time)));
    }

    /// Takes the part of the kept bytes that may be sent now.
    fn next_slice(&mut self) -> Frame<Bytes> {
        let mut size = self.kept.len();
        if let Some(pace) = self.shape.pace.filter(|pace| *pace > 0) {
            size = size
                .min(PACE_SLICE)
                .min(usize::try_from(pace).unwrap_or(PACE_SLICE).max(1));
            let nanos = u64::try_from(size).unwrap_or(u64::MAX).saturating_mul(1_000_000_000) / u64::from(pace);
            self.pause_for(Duration::from_nanos(nanos));
        }
        if let Some(cut) = self.shape.cut_after {
            let left = usize::try_from(cut.saturating_sub(self.sent)).unwrap_or(usize::MAX);
            size = size.min(left);
        }
        self.sent += size as u64;
        let slice = self.kept.split_to(size);
        self.boundary.track_events(&slice);
        Frame::data(slice)
    }

    fn is_cut(&self) -> bool {
        self.shape.cut_after.is_some_and(|cut| self.sent >= cut)
    }

    fn cut_body(&mut self) {
        self.state = State::Cut;
        self.pause_for(if self.shape.reset == Reset::Hang {
            LONGEST_HANG
        } else {
            FLUSH_PAUSE
        });
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.end {
            Some(end) => end.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for ShapedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.state == State::Ended {
            return Poll::Ready(None);
        }
        if this.state == State::Open && this.poll_end(cx).is_ready() {
            this.state = State::Ending;
        }
        if this.state == State::Ending && this.boundary.is_at_boundary() {
            this.state = State::Ended;
            let expired = Reply::expired(COMPACTED_MESSAGE);
            let event = this.encoding.filter(|_| this.shape.expired);
            return Poll::Ready(
                event.map(|encoding| Ok(Frame::data(watch_error_event(expired.status(), encoding).into()))),
            );
        }
        if let Some(pause) = &mut this.pause {
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        if this.state == State::Cut {
            if this.shape.reset == Reset::BlackHole {
                // The body ends with the connection.
                this.connection.silence();
                return Poll::Pending;
            }
            this.state = State::Ended;
            if this.shape.reset == Reset::Close {
                this.connection.close();
            }
            return Poll::Ready(Some(Err(BrokenOff::new(this.shape.reset).into())));
        }
        if this.is_cut() {
            this.cut_body();
            return self.poll_frame(cx);
        }
        if this.kept.is_empty() {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.kept = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        Poll::Ready(Some(Ok(this.next_slice())))
    }
}

#[cfg(test)]
mod tests;
