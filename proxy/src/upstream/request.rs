//! A request in transit: its head, kept for a retry, and its body, of which a limited part is kept as well.
//!
//! Leaves writing it to the protocols.

use std::{
    collections::VecDeque,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Uri, Version,
    header::{EXPECT, HOST},
    request::Parts,
    uri::PathAndQuery,
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

use super::{
    error::{BoxError, SendError},
    target::Target,
};

/// An extension of a request that replaces [`Limits::head_timeout`](super::Limits::head_timeout): `None` for requests whose response may
/// take any time to begin (`pods/proxy`, for instance).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadTimeout(pub Option<Duration>);

/// The head of a request before it is directed to a target.
#[derive(Debug)]
pub struct RequestHead {
    pub method: Method,
    pub path: Option<PathAndQuery>,
    pub headers: HeaderMap,
    pub head_timeout: Option<HeadTimeout>,
}

impl From<Parts> for RequestHead {
    fn from(parts: Parts) -> Self {
        Self {
            method: parts.method,
            path: parts.uri.path_and_query().cloned(),
            headers: parts.headers,
            head_timeout: parts.extensions.get().copied(),
        }
    }
}

/// Method, path and headers of a request.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) method: Method,
    pub(super) head_timeout: Option<HeadTimeout>,
    path: PathAndQuery,
    headers: HeaderMap,
    host: HostField,
}

/// The `Host` that a head has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostField {
    /// The client's, if it sent one.
    OfClient,
    OfTarget,
    /// None: HTTP/2 has it in its URI.
    Removed,
}

impl Head {
    /// Directs a request to the target.
    ///
    /// `Host` is the target's, regardless of the client's. `Expect: 100-continue` is removed: the sidecar sends 100 when it first reads the
    /// body, which is when the body is first needed here. Waiting for the API server's own 100 would cost a round trip for a feature that
    /// Kubernetes clients never use.
    pub(super) fn new(head: RequestHead, target: &Target) -> Result<Self, SendError> {
        let RequestHead {
            method,
            path,
            mut headers,
            head_timeout,
        } = head;
        let invalid = |source: BoxError| SendError::InvalidRequest { source };
        if method == Method::CONNECT {
            return Err(invalid("CONNECT is not for API servers".into()));
        }
        let path = target.request_path(path).map_err(|error| invalid(error.into()))?;
        headers.remove(EXPECT);
        Ok(Self {
            method,
            head_timeout,
            path,
            headers,
            host: HostField::OfClient,
        })
    }

    /// Whether repeating the request does no harm even if it was carried out (RFC 9110 §9.2.2; the read-only verbs of the API).
    pub(super) fn is_repeatable(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    pub(super) fn http2(&mut self, target: &Target) -> Result<Request<()>, http::Error> {
        if self.host != HostField::Removed {
            self.headers.remove(HOST);
            self.host = HostField::Removed;
        }
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(target.scheme().clone());
        parts.authority = Some(target.authority().clone());
        parts.path_and_query = Some(self.path.clone());
        Ok(self.request(Uri::from_parts(parts)?, self.headers.clone(), Version::HTTP_2, ()))
    }

    pub(super) fn http1<B>(&mut self, target: &Target, body: B) -> Request<B> {
        // Before the copy is made: a copy has no room for one more field.
        if self.host != HostField::OfTarget {
            self.headers.insert(HOST, target.host_header().clone());
            self.host = HostField::OfTarget;
        }
        self.request(
            Uri::from(self.path.clone()),
            self.headers.clone(),
            Version::HTTP_11,
            body,
        )
    }

    fn request<B>(&self, uri: Uri, headers: HeaderMap, version: Version, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        *request.version_mut() = version;
        request
    }
}

type Source = Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>;

/// Kept frames below this size are copied, because each would otherwise keep the whole buffer that it was read into.
const SMALL_FRAME: usize = 4 << 10;

/// Memory that a kept frame costs in addition to its bytes.
const FRAME_OVERHEAD: usize = 128;

/// Memory for bytes that are kept for a retry. They are not essential: without them the request goes on, but cannot be repeated.
pub trait ReplayRoom {
    /// Reserves bytes. Returns whether there was room.
    fn take(&self, bytes: usize) -> bool;
    fn give_back(&self, bytes: usize);
}

/// A request body that can be sent again as long as it stays small.
pub(super) struct RequestBody {
    source: Source,
    ended: bool,
    /// Frames taken from the source; empty once they became too large.
    kept: Vec<Bytes>,
    kept_trailers: Option<HeaderMap>,
    kept_bytes: usize,
    keep_at_most: usize,
    /// `None` allows as much as `keep_at_most` says.
    room: Option<Rc<dyn ReplayRoom>>,
    /// Bytes reserved in `room`.
    taken: usize,
    /// The part of `kept` that this attempt still has to send.
    replay: VecDeque<Bytes>,
    replay_trailers: Option<HeaderMap>,
}

impl std::fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestBody")
            .field("kept_bytes", &self.kept_bytes)
            .finish_non_exhaustive()
    }
}

impl RequestBody {
    /// Returns `None` for an empty body: such requests need neither a box nor a second frame.
    pub(super) fn new<B>(body: B, keep_at_most: usize, room: Option<Rc<dyn ReplayRoom>>) -> Option<Box<Self>>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        if body.is_end_stream() {
            return None;
        }
        Some(Box::new(Self {
            source: Box::pin(body.map_err(Into::into)),
            ended: false,
            kept: Vec::new(),
            kept_trailers: None,
            kept_bytes: 0,
            keep_at_most,
            room,
            taken: 0,
            replay: VecDeque::new(),
            replay_trailers: None,
        }))
    }

    /// Restarts the body; returns `false` if it has become too large to keep.
    pub(super) fn rewind(&mut self) -> bool {
        if self.kept_bytes > self.keep_at_most {
            return false;
        }
        self.replay = self.kept.iter().cloned().collect();
        self.replay_trailers = self.kept_trailers.clone();
        true
    }

    fn keep(&mut self, data: &Bytes) {
        self.kept_bytes = self.kept_bytes.saturating_add(data.len());
        if self.kept_bytes > self.keep_at_most || !self.take_room(data.len() + FRAME_OVERHEAD) {
            self.kept_bytes = usize::MAX;
            self.kept = Vec::new();
            self.give_back();
            return;
        }
        self.kept.push(match data.len() {
            ..SMALL_FRAME => Bytes::copy_from_slice(data),
            _ => data.clone(),
        });
    }

    fn take_room(&mut self, bytes: usize) -> bool {
        let is_taken = self.room.as_ref().is_none_or(|room| room.take(bytes));
        if is_taken {
            self.taken += bytes;
        }
        is_taken
    }

    fn give_back(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        if let Some(room) = &self.room {
            room.give_back(taken);
        }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(data) = this.replay.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(trailers) = this.replay_trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        let frame = match ready!(this.source.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            end => {
                this.ended = true;
                return Poll::Ready(end);
            }
        };
        if let Some(data) = frame.data_ref() {
            this.keep(data);
        } else {
            this.kept_trailers = frame.trailers_ref().cloned();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.replay.is_empty() && self.replay_trailers.is_none() && (self.ended || self.source.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.source.size_hint();
        let replay = self.replay.iter().map(|data| data.len() as u64).sum::<u64>();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(replay));
        }
        hint.set_lower(hint.lower().saturating_add(replay));
        hint
    }
}
