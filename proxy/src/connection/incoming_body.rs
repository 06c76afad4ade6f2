//! Request bodies: reserves memory for bytes that arrive before they are read, and gives a body that is not read to its end to its
//! connection.
//!
//! Over HTTP/1.1 the connection discards the rest (`unread_body`), so that the client can use the connection again. If the rest is known to
//! be too long, or the client waits for `100 Continue`, the response says `Connection: close`.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::header::EXPECT;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::activity;
use super::handle::{Connection, STREAM_WINDOW};
use super::memory::OverBound;
use super::unread_body::{MAX_DISCARDED, UnreadBody};

/// The body of a request. Over HTTP/1.1 the connection counts as in use until the body has ended.
pub(crate) struct IncomingBody {
    incoming: Option<Incoming>,
    /// `None` if the body has ended, or for HTTP/2, which resets only the stream.
    guard: Option<BodyGuard>,
    /// Reservation for bytes that may have arrived and were not read yet, until the body has ended.
    arriving: Option<Arriving>,
}

struct BodyGuard {
    connection: Rc<Connection>,
    request: activity::Request,
    /// Whether the client sends nothing before `100 Continue`, which reading the body triggers.
    awaits_continue: bool,
}

impl IncomingBody {
    /// Takes over the body from hyper.
    pub(crate) fn new(connection: &Rc<Connection>, request: Request<Incoming>) -> Request<Self> {
        let is_guarded = connection.activity.is_http1() && !request.body().is_end_stream();
        let guard = is_guarded.then(|| BodyGuard {
            connection: Rc::clone(connection),
            request: connection.activity.begin(),
            awaits_continue: request.headers().contains_key(EXPECT),
        });
        request.map(|incoming| Self {
            incoming: Some(incoming),
            guard,
            arriving: None,
        })
    }

    /// Reserves memory for the bytes that may arrive before they are read, until the body has ended.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn hold(&mut self, connection: &Rc<Connection>) -> Result<(), OverBound> {
        if self.is_end_stream() {
            return Ok(());
        }
        let length = self.size_hint().upper().and_then(|length| usize::try_from(length).ok());
        let window = length.map_or(STREAM_WINDOW as usize, |length| length.min(STREAM_WINDOW as usize));
        self.arriving = Some(Arriving::begin(connection, window)?);
        Ok(())
    }
}

/// Reservation of an arriving body's window.
struct Arriving {
    connection: Rc<Connection>,
    window: usize,
}

impl Arriving {
    fn begin(connection: &Rc<Connection>, window: usize) -> Result<Self, OverBound> {
        connection.begin_arriving(window)?;
        Ok(Self {
            connection: Rc::clone(connection),
            window,
        })
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.connection.end_arriving(self.window);
    }
}

impl Body for IncomingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let Some(incoming) = &mut this.incoming else {
            return Poll::Ready(None);
        };
        if let Some(guard) = &mut this.guard {
            guard.awaits_continue = false;
        }
        let frame = ready!(Pin::new(incoming).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            this.guard = None;
        }
        if !matches!(frame, Some(Ok(_))) || this.is_end_stream() {
            this.arriving = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for IncomingBody {
    fn drop(&mut self) {
        let (Some(incoming), Some(guard)) = (self.incoming.take(), self.guard.take()) else {
            return;
        };
        if incoming.is_end_stream() {
            return;
        }
        let BodyGuard {
            connection,
            request,
            awaits_continue,
        } = guard;
        // A client that did not get `100 Continue` may send the body or its next request; the two cannot be distinguished.
        let ends_connection = awaits_continue || incoming.size_hint().lower() > MAX_DISCARDED;
        let rest = (!awaits_continue).then(|| UnreadBody::new(incoming, request));
        connection.discard(rest, ends_connection);
    }
}
