//! Responses that have arrived over HTTP/2 and are not read: bounded for a worker thread, whatever clients do.
//!
//! A client that stops reading stops the server through the window of its stream, so each such response is bounded. A thousand of them are
//! not small: beyond a bound the one that has not been read for the longest time is given up. All responses are summed up only
//! after a certain amount of data has arrived, not for each frame.

use std::{
    cell::{Cell, RefCell},
    rc::{Rc, Weak},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::RecvStream;
use http_body::Frame;
use tokio::time::Instant;

use super::error::{BodyError, BoxError};
use crate::memory_shares::ClientShares;

/// Most bytes that arrive between two checks.
const CHECK_AFTER_BYTES: usize = 1 << 20;

/// A response with less than this is given up only if there is no larger one: its reader is slow, but it reads.
const LARGE_RESPONSE: usize = 128 << 10;

/// The responses of one worker thread that are being read.
#[derive(Debug)]
pub struct UnreadResponses {
    /// At most this many bytes stay unread after a check.
    bound: usize,
    /// Bytes that arrive between two checks.
    check_after: usize,
    responses: RefCell<Vec<Weak<UnreadResponse>>>,
    /// Number of tracked responses at which ended ones are forgotten.
    forget_at: Cell<usize>,
    /// Bytes that have arrived since the last check.
    arrived: Cell<usize>,
}

/// The body of one response.
#[derive(Debug)]
pub(super) struct UnreadResponse {
    /// `None` if it was given up.
    stream: RefCell<Option<RecvStream>>,
    last_read: Cell<Instant>,
}

impl Default for UnreadResponses {
    fn default() -> Self {
        Self::within(ClientShares::unlimited(1).unread_of_thread(1))
    }
}

impl UnreadResponses {
    /// Keeps unread responses within this bound, including what arrives until they are checked.
    #[must_use]
    pub fn within(bound: usize) -> Self {
        let check_after = CHECK_AFTER_BYTES.min(bound / 4);
        Self {
            bound: bound - check_after,
            check_after,
            responses: RefCell::default(),
            forget_at: Cell::default(),
            arrived: Cell::default(),
        }
    }

    /// Fewer are not worth a check.
    const MIN_TRACKED: usize = 64;

    pub(super) fn track(&self, stream: RecvStream) -> Rc<UnreadResponse> {
        let response = Rc::new(UnreadResponse {
            stream: RefCell::new(Some(stream)),
            last_read: Cell::new(Instant::now()),
        });
        let mut responses = self.responses.borrow_mut();
        if responses.len() >= self.forget_at.get().max(Self::MIN_TRACKED) {
            responses.retain(|response| response.strong_count() > 0);
            self.forget_at.set(2 * responses.len());
        }
        responses.push(Rc::downgrade(&response));
        response
    }

    /// Notes bytes that have arrived on a connection.
    pub(super) fn arrived(&self, bytes: usize) {
        self.arrived.set(self.arrived.get().saturating_add(bytes));
    }

    /// Gives up unread responses if all together take too much. Call it after bytes have arrived, outside of `h2`.
    pub(super) fn bound(&self) {
        if self.arrived.get() < self.check_after {
            return;
        }
        self.arrived.set(0);
        let mut unread: Vec<_> = self.unread();
        let mut total: usize = unread.iter().map(|(_, bytes)| bytes).sum();
        if total <= self.bound {
            return;
        }
        unread.sort_by_key(|(response, bytes)| (*bytes < LARGE_RESPONSE, response.last_read.get()));
        let mut given_up = 0;
        for (response, bytes) in unread {
            if total <= self.bound {
                break;
            }
            // This resets the stream, which frees the bytes that have arrived.
            drop(response.stream.take());
            total -= bytes;
            given_up += 1;
        }
        tracing::warn!(
            given_up,
            "clients do not read their responses; resetting those unread for longest"
        );
    }

    fn unread(&self) -> Vec<(Rc<UnreadResponse>, usize)> {
        let responses = self.responses.borrow();
        let alive = responses.iter().filter_map(Weak::upgrade);
        let sized = alive.map(|response| {
            let bytes = response.unread_bytes();
            (response, bytes)
        });
        sized.filter(|(_, bytes)| *bytes > 0).collect()
    }
}

impl UnreadResponse {
    fn unread_bytes(&self) -> usize {
        let mut stream = self.stream.borrow_mut();
        stream
            .as_mut()
            .map_or(0, |stream| stream.flow_control().used_capacity())
    }

    /// The stream, unless it was given up.
    pub(super) fn take_stream(&self) -> Option<RecvStream> {
        self.stream.take()
    }

    /// Whether all of it has been read. Never true early for a response that was given up.
    pub(super) fn is_over(&self) -> bool {
        self.stream.borrow().as_ref().is_some_and(RecvStream::is_end_stream)
    }

    pub(super) fn poll_frame(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.last_read.set(Instant::now());
        match &mut *self.stream.borrow_mut() {
            Some(stream) => poll_stream(stream, cx),
            None => Poll::Ready(Some(Err(BodyError::Unread.into()))),
        }
    }
}

fn poll_stream(stream: &mut RecvStream, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    let failed = |error: h2::Error| Some(Err(BodyError::from(error).into()));
    loop {
        match ready!(stream.poll_data(cx)) {
            // Go's servers end a response with an empty frame.
            Some(Ok(data)) if data.is_empty() => {}
            Some(Ok(data)) => {
                // This fails only if the stream has ended, when no window is needed.
                let _ = stream.flow_control().release_capacity(data.len());
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            Some(Err(error)) => return Poll::Ready(failed(error)),
            None => break,
        }
    }
    match ready!(stream.poll_trailers(cx)) {
        Ok(trailers) => Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers)))),
        Err(error) => Poll::Ready(failed(error)),
    }
}
