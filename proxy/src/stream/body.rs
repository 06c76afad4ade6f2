//! The bodies that pass through the sidecar: streamed frame by frame, counted, never buffered unless an edit needs it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Response, response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use tokio::time::{Instant, Sleep};

use crate::connection::{IncomingBody, UnsentCounter};
use crate::observe::record::Record;
use crate::plugin::verdict::Failure;
use crate::respond::{Reply, SlowBody};
use crate::stream::shape::BrokenOff;
use crate::upstream::{BodyError, BoxError, UpstreamBody};

/// A request is given up if nothing of its body arrives for this long. The API server itself waits as long.
const IDLE_BODY: Duration = Duration::from_secs(60);

/// The API server's own limit for a request body (apiserver `MaxRequestBodyBytes`, 3 MiB).
const MAX_COLLECTED: usize = 3 << 20;

/// A body of any kind, for the rare exchanges that need more than passing frames on.
pub(crate) type BoxBody = Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>;

/// The body that is sent to the API server.
pub(crate) enum RequestBody {
    /// No body, or bytes that an edit made.
    Full(Option<Bytes>),
    /// The client's body, streamed.
    Streaming(Streaming),
}

/// The client's body with a deadline between frames.
pub(crate) struct Streaming {
    incoming: IncomingBody,
    record: Rc<Record>,
    idle: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    /// Wraps the client's body; one that is already complete becomes `Full(None)`.
    pub(crate) fn new(incoming: IncomingBody, record: &Rc<Record>) -> Self {
        if incoming.is_end_stream() {
            return Self::Full(None);
        }
        Self::Streaming(Streaming {
            incoming,
            record: Rc::clone(record),
            idle: None,
        })
    }

    /// The body of these bytes; of none if there are none.
    pub(crate) fn of_bytes(bytes: Bytes) -> Self {
        Self::Full(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }
}

impl RequestBody {
    /// Reads the body to its end.
    ///
    /// # Errors
    /// The reply to send if the body is too large, too slow or broken off, or if there is no memory for it.
    pub(crate) async fn collect(self) -> Result<Bytes, Reply> {
        match self {
            Self::Full(bytes) => Ok(bytes.unwrap_or_default()),
            Self::Streaming(body) => {
                let record = Rc::clone(&body.record);
                collect_body(Self::Streaming(body), |bytes| {
                    record.hold(bytes).map_err(|error| Reply::over_bound(error, true))
                })
                .await
            }
        }
    }
}

/// Reads the body of a response to its end.
///
/// # Errors
/// The reply to send if the body is too large or broken off, or if there is no memory for it.
pub(crate) async fn collect_response<B>(body: B, record: &Record) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    collect_body(body, |bytes| {
        let held = record.hold(bytes);
        held.map_err(|error| Reply::over_bound(error, record.is_repeatable()))
    })
    .await
}

/// `hold` reserves memory before bytes are kept. They are copied, because a frame of one byte would keep the whole buffer that it came in.
async fn collect_body<B>(body: B, hold: impl Fn(usize) -> Result<(), Reply>) -> Result<Bytes, Reply>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    // The announced length may be wrong: allocations follow the bytes that have arrived.
    let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let mut collected = Pieces::new(length.unwrap_or(PIECE_BYTES));
    let mut body = std::pin::pin!(Limited::new(body, MAX_COLLECTED));
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let Some(data) = frame.data_ref() else { continue };
                hold(data.len())?;
                collected.extend_from_slice(data);
            }
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                return Err(Reply::body_too_large(MAX_COLLECTED));
            }
            Err(error) if error.is::<SlowBody>() => return Err(Reply::slow_body()),
            Err(error) => return Err(Reply::broken_body(&error)),
        }
    }
    Ok(collected.into_bytes())
}

/// Size of the pieces of a body that is kept while it arrives.
const PIECE_BYTES: usize = 32 << 10;

/// The part of a body that has arrived. One buffer that grows with many others would be copied each time, and leave holes in the heap
/// that are not counted.
struct Pieces(Vec<BytesMut>);

impl Pieces {
    /// `expected`: the length of the body, if it is known.
    fn new(expected: usize) -> Self {
        Self(vec![BytesMut::with_capacity(expected.min(PIECE_BYTES))])
    }

    fn extend_from_slice(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let room = self.0.last().map_or(0, |piece| piece.capacity() - piece.len());
            if room == 0 {
                self.0.push(BytesMut::with_capacity(PIECE_BYTES));
                continue;
            }
            let (fits, rest) = data.split_at(room.min(data.len()));
            if let Some(piece) = self.0.last_mut() {
                piece.extend_from_slice(fits);
            }
            data = rest;
        }
    }

    fn into_bytes(mut self) -> Bytes {
        if self.0.len() == 1 {
            return self.0.pop().unwrap_or_default().freeze();
        }
        let mut whole = BytesMut::with_capacity(self.0.iter().map(BytesMut::len).sum());
        // Each piece is given back before the next is copied.
        for piece in self.0 {
            whole.extend_from_slice(&piece);
        }
        whole.freeze()
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
                self.record.record_failure(Failure::Timeout);
                Poll::Ready(Some(Err(SlowBody { idle: IDLE_BODY }.into())))
            }
        }
    }
}

/// A response of the sidecar's own bytes up to this size is not counted and never waits: errors have far less.
const MAX_UNCOUNTED: usize = 16 << 10;

/// The body that is sent to the client. Reports to the record how many bytes were sent and whether the body is complete.
pub(crate) struct ClientBody {
    kind: Kind,
    record: Option<Rc<Record>>,
    /// Bounds the memory that clients' connections hold; `None` if the body is small.
    unsent_counter: Option<UnsentCounter>,
    /// Bytes that the client still expects, if the head says how many there are. An HTTP/1.1 client reads no more than these, and an HTTP/2
    /// server may mark the end in a later frame.
    left: Option<u64>,
}

enum Kind {
    Full(Option<Bytes>),
    Upstream(UpstreamBody),
    Boxed(BoxBody),
}

impl ClientBody {
    /// A body of the sidecar's own bytes.
    pub(crate) fn full(bytes: Bytes, record: Option<Rc<Record>>) -> Self {
        let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
        Self::with_kind(Kind::Full(bytes), None, record)
    }

    /// The server's response with its body streamed.
    pub(crate) fn upstream(response: Response<UpstreamBody>, record: &Rc<Record>) -> Response<Self> {
        let (head, body) = response.into_parts();
        let left = record.response_length(&head);
        let body = Self::with_kind(Kind::Upstream(body), left, Some(Rc::clone(record)));
        Response::from_parts(head, body)
    }

    /// A response whose body is changed in transit.
    pub(crate) fn boxed(head: response::Parts, body: BoxBody, record: &Rc<Record>) -> Response<Self> {
        let left = record.response_length(&head);
        let body = Self::with_kind(Kind::Boxed(body), left, Some(Rc::clone(record)));
        Response::from_parts(head, body)
    }

    fn with_kind(kind: Kind, left: Option<u64>, record: Option<Rc<Record>>) -> Self {
        let is_small = matches!(&kind, Kind::Full(bytes) if bytes.as_ref().map_or(0, Bytes::len) <= MAX_UNCOUNTED);
        let unsent_counter = record
            .as_ref()
            .filter(|_| !is_small)
            .and_then(|record| record.unsent_counter());
        let body = Self {
            kind,
            record,
            unsent_counter,
            left,
        };
        // hyper does not poll a body that reports at once that it has ended, or a response without a body (204, 304, HEAD).
        if let Some(record) = &body.record
            && body.is_complete()
        {
            record.mark_completed();
        }
        body
    }

    fn is_complete(&self) -> bool {
        self.left == Some(0) || self.is_end_stream()
    }

    fn record_frame(&mut self, frame: Option<&Result<Frame<Bytes>, BoxError>>) {
        let Some(record) = &self.record else { return };
        match frame {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                record.add_response_bytes(length);
                self.left = self.left.map(|left| left.saturating_sub(length as u64));
            }
            Some(Err(error)) if error.is::<BrokenOff>() => record.record_failure(Failure::PluginReset),
            Some(Err(error)) if matches!(error.downcast_ref(), Some(BodyError::Unread)) => {
                record.record_failure(Failure::ClientGone)
            }
            Some(Err(_)) => record.record_failure(Failure::UpstreamReset),
            None => record.mark_completed(),
        }
        if self.is_complete() {
            record.mark_completed();
        }
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(unsent_counter) = &self.unsent_counter {
            ready!(unsent_counter.poll_room(cx));
        }
        let frame = match &mut self.kind {
            Kind::Full(bytes) => bytes.take().map(|bytes| Ok(Frame::data(bytes))),
            Kind::Upstream(body) => ready!(Pin::new(body).poll_frame(cx)),
            Kind::Boxed(body) => ready!(body.as_mut().poll_frame(cx)),
        };
        self.record_frame(frame.as_ref());
        Poll::Ready(match &self.unsent_counter {
            Some(unsent_counter) => {
                frame.map(|frame| frame.map(|frame| frame.map_data(|data| unsent_counter.count(data))))
            }
            None => frame,
        })
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
