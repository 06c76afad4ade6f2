//! The bodies that pass the sidecar: streamed frame by frame, counted, never buffered unless an edit needs it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

use crate::record::Record;
use crate::respond::Reply;
use crate::shape::BrokenOff;
use crate::upstream::{BoxError, UpstreamBody};
use crate::verdict::Failure;

/// A client that sends nothing of its body for so long is given up: the API server would wait as long itself.
const IDLE_BODY: Duration = Duration::from_secs(60);

/// The API server's own limit for a request body (apiserver `MaxRequestBodyBytes`, 3 MiB).
const MAX_COLLECTED: usize = 3 << 20;

/// A body of any kind, for the rare requests that need more than passing frames on.
pub(crate) type BoxBody = Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>;

/// What goes to the API server.
pub(crate) enum RequestBody {
    /// Nothing, or bytes that an edit made.
    Full(Option<Bytes>),
    /// The client's own, as it comes.
    Streaming(Streaming),
}

/// The client's body with a deadline between frames.
pub(crate) struct Streaming {
    incoming: Incoming,
    record: Rc<Record>,
    idle: Option<Pin<Box<Sleep>>>,
}

/// The client sent nothing of its body for too long.
#[derive(Debug, thiserror::Error)]
#[error("nothing of the request body came for {} s", IDLE_BODY.as_secs())]
pub(crate) struct SlowBody;

impl RequestBody {
    /// The client's body; one that is over already is `Full(None)`.
    pub(crate) fn new(incoming: Incoming, record: &Rc<Record>) -> Self {
        if incoming.is_end_stream() {
            return Self::Full(None);
        }
        Self::Streaming(Streaming {
            incoming,
            record: Rc::clone(record),
            idle: None,
        })
    }
}

/// Reads a body to its end.
///
/// # Errors
/// A reply: too large, too slow, or broken off.
pub(crate) async fn collect<B>(body: B) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    match Limited::new(body, MAX_COLLECTED).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(Reply::body_too_large(MAX_COLLECTED)),
        Err(error) if error.is::<SlowBody>() => Err(Reply::slow_body()),
        Err(error) => Err(Reply::broken_body(&error)),
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streaming(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Streaming(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Streaming(body) => body.incoming.size_hint(),
        }
    }
}

impl Streaming {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.idle = None;
                self.record.add_request_bytes(frame.data_ref().map_or(0, Bytes::len));
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let idle = self
                    .idle
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + IDLE_BODY)));
                ready!(idle.as_mut().poll(cx));
                self.record.fail(Failure::Timeout);
                Poll::Ready(Some(Err(SlowBody.into())))
            }
        }
    }
}

/// What goes to the client. Tells the record how much went and whether all of it.
pub(crate) struct ClientBody {
    kind: Kind,
    record: Option<Rc<Record>>,
}

enum Kind {
    Full(Option<Bytes>),
    Upstream(UpstreamBody),
    Boxed(BoxBody),
}

impl ClientBody {
    /// Bytes of our own.
    pub(crate) fn full(bytes: Bytes, record: Option<Rc<Record>>) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self::with(Kind::Full(bytes), record)
    }

    /// The API server's body as it comes.
    pub(crate) fn upstream(body: UpstreamBody, record: Rc<Record>) -> Self {
        Self::with(Kind::Upstream(body), Some(record))
    }

    /// A body that is changed on its way.
    pub(crate) fn boxed(body: BoxBody, record: Rc<Record>) -> Self {
        Self::with(Kind::Boxed(body), Some(record))
    }

    fn with(kind: Kind, record: Option<Rc<Record>>) -> Self {
        let body = Self { kind, record };
        // hyper does not poll a body that says at once that it is over (204, 304, HEAD).
        if body.is_end_stream()
            && let Some(record) = &body.record
        {
            record.completed();
        }
        body
    }

    fn inspect(&self, frame: Option<&Result<Frame<Bytes>, BoxError>>) {
        let Some(record) = &self.record else { return };
        match frame {
            Some(Ok(frame)) => record.add_response_bytes(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(error)) if error.is::<BrokenOff>() => record.fail(Failure::PluginReset),
            Some(Err(_)) => record.fail(Failure::UpstreamReset),
            None => record.completed(),
        }
        if self.is_end_stream() {
            record.completed();
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match &mut self.kind {
            Kind::Full(bytes) => bytes.take().map(|bytes| Ok(Frame::data(bytes))),
            Kind::Upstream(body) => ready!(Pin::new(body).poll_frame(cx)),
            Kind::Boxed(body) => ready!(body.as_mut().poll_frame(cx)),
        };
        self.inspect(frame.as_ref());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Full(bytes) => bytes.is_none(),
            Kind::Upstream(body) => body.is_end_stream(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Kind::Upstream(body) => body.size_hint(),
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}
