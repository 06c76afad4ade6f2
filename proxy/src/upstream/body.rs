//! The body of a response as it arrives: data, trailers, back-pressure, and the effect of dropping it.
//!
//! Leaves the bytes to the protocols; buffers nothing.

use std::{
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::task::AbortOnDropHandle;

use super::{
    error::{BodyError, BoxError},
    http1::{Lease, LeasedBody},
    http2::{StreamBody, StreamPermit},
    pool::Open,
    unread::UnreadResponse,
    upload::Upload,
};

/// A response body. Ends with trailers if the server sent some; errors are [`BodyError`]s.
///
/// The server's window opens again as frames are taken, so a reader that stops stops the server. Dropping it before
/// its end resets the HTTP/2 stream (CANCEL) or closes the HTTP/1.1 connection: the server ends a watch at once.
#[derive(Debug)]
pub struct UpstreamBody(Kind);

#[derive(Debug)]
enum Kind {
    Http2 {
        response: Rc<UnreadResponse>,
        /// A request body that the server answered before it had received all of it.
        upload: Option<Box<Upload>>,
        /// Released as soon as the stream ends.
        permit: Option<StreamPermit>,
        ended: bool,
    },
    Http1 {
        incoming: Incoming,
        /// Returned to the pool at the end.
        lease: Option<Lease>,
    },
    /// A connection that serves no other request.
    Alone {
        incoming: Incoming,
        _driver: AbortOnDropHandle<()>,
        _open: Open,
    },
}

impl UpstreamBody {
    pub(super) fn http2(body: StreamBody) -> Self {
        let StreamBody {
            response,
            upload,
            permit,
        } = body;
        let over = upload.is_none() && response.is_over();
        let permit = if over {
            permit.finish(&response);
            None
        } else {
            Some(permit)
        };
        Self(Kind::Http2 {
            response,
            upload: upload.map(Box::new),
            permit,
            ended: over,
        })
    }

    pub(super) fn http1(body: LeasedBody) -> Self {
        let LeasedBody { incoming, lease } = body;
        let lease = if incoming.is_end_stream() {
            lease.finish();
            None
        } else {
            Some(lease)
        };
        Self(Kind::Http1 { incoming, lease })
    }

    pub(super) const fn owning_connection(incoming: Incoming, driver: AbortOnDropHandle<()>, open: Open) -> Self {
        Self(Kind::Alone {
            incoming,
            _driver: driver,
            _open: open,
        })
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            Kind::Http2 { ended: true, .. } => Poll::Ready(None),
            Kind::Http2 {
                response,
                upload,
                permit,
                ended,
            } => {
                if upload.as_mut().is_some_and(|upload| upload.poll(cx).is_ready()) {
                    *upload = None;
                }
                let frame = ready!(response.poll_frame(cx));
                let is_over = upload.is_none() && response.is_over();
                *ended = is_over || !matches!(&frame, Some(Ok(frame)) if frame.is_data());
                if *ended
                    && let Some(permit) = permit.take()
                    && is_over
                {
                    permit.finish(response);
                }
                Poll::Ready(frame)
            }
            Kind::Http1 { incoming, lease } => {
                let frame = ready!(Pin::new(&mut *incoming).poll_frame(cx));
                if (frame.is_none() || incoming.is_end_stream())
                    && let Some(lease) = lease.take()
                {
                    lease.finish();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(broken_connection)))
            }
            Kind::Alone { incoming, .. } => Pin::new(incoming)
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(broken_connection))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Http2 {
                response,
                upload,
                ended,
                ..
            } => *ended || (upload.is_none() && response.is_over()),
            Kind::Http1 { incoming, .. } | Kind::Alone { incoming, .. } => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            // `Content-Length`, if there is one, is among the headers.
            Kind::Http2 { .. } if self.is_end_stream() => SizeHint::with_exact(0),
            Kind::Http2 { .. } => SizeHint::default(),
            Kind::Http1 { incoming, .. } | Kind::Alone { incoming, .. } => incoming.size_hint(),
        }
    }
}

fn broken_connection(error: hyper::Error) -> BoxError {
    BodyError::Broken { source: error.into() }.into()
}
