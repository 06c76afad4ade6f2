//! The rest of a request body over HTTP/1.1 that is not read to its end, because the request was refused or answered early.
//!
//! hyper closes a connection whose body was dropped, without notice and often before the client has read the response. Here the connection
//! reads the rest and discards it, within limits.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::activity::{self, HEAD_TIMEOUT};

/// Maximum number of bytes that are discarded, as in Go's servers: beyond it a new connection costs less.
pub(crate) const MAX_DISCARDED: u64 = 256 << 10;

/// The rest of a body, until it ends or exceeds the limit. Dropping it earlier lets hyper close the connection.
#[derive(Debug)]
pub(super) struct UnreadBody {
    incoming: Incoming,
    /// Bytes that may still be discarded.
    left: u64,
    deadline: Pin<Box<Sleep>>,
    _request: activity::Request,
}

impl UnreadBody {
    /// The connection counts as in use by `request` until the body has ended.
    pub(super) fn new(incoming: Incoming, request: activity::Request) -> Self {
        Self {
            incoming,
            left: MAX_DISCARDED,
            deadline: Box::pin(tokio::time::sleep(HEAD_TIMEOUT)),
            _request: request,
        }
    }

    /// Discards the bytes that have arrived. Ready when the body has ended, is too long or too slow.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Poll::Ready(frame) = Pin::new(&mut self.incoming).poll_frame(cx) {
            let Some(Ok(frame)) = frame else { return Poll::Ready(()) };
            let length = frame.data_ref().map_or(0, Bytes::len) as u64;
            match self.left.checked_sub(length) {
                Some(left) => self.left = left,
                None => return Poll::Ready(()),
            }
            if self.incoming.is_end_stream() {
                return Poll::Ready(());
            }
        }
        self.deadline.as_mut().poll(cx)
    }
}
