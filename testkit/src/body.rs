//! Response bodies: complete, paged, or a watch; and the faults that a body can have.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};

use crate::faults::Gate;
use crate::list::Page;
use crate::watch_stream::Watch;

/// Pause before a body breaks off: a reset drops unwritten bytes, and hyper does not report when they are written.
const CUT_PAUSE: Duration = Duration::from_millis(20);

pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, Interrupted>;

/// A response that is interrupted on purpose. hyper uses its cause as the reason of the `RST_STREAM`.
#[derive(Debug)]
pub(crate) struct Interrupted(h2::Error);

impl Interrupted {
    pub(crate) fn new() -> Self {
        Self(h2::Reason::INTERNAL_ERROR.into())
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the response was interrupted by a fault rule")
    }
}

impl StdError for Interrupted {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

pub(crate) fn full_body(bytes: impl Into<Bytes>) -> ResponseBody {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn stream_body(frames: impl Stream<Item = Result<Frame<Bytes>, Interrupted>> + Send + 'static) -> ResponseBody {
    StreamBody::new(frames).boxed_unsync()
}

/// A list. One of a single chunk has a `Content-Length`.
pub(crate) fn page_body(mut page: Page) -> ResponseBody {
    let (Some(first), second) = (page.next(), page.next()) else {
        return full_body(Bytes::new());
    };
    let Some(second) = second else { return full_body(first) };
    let chunks = [first, second].into_iter().chain(page);
    stream_body(stream::iter(chunks.map(|chunk| Ok(Frame::data(chunk)))))
}

/// A watch: one frame per event.
pub(crate) fn watch_body(watch: Watch) -> ResponseBody {
    stream_body(stream::unfold(watch, async |mut watch| {
        let line = watch.next().await?;
        Some((Ok(Frame::data(line)), watch))
    }))
}

#[derive(Debug, Default)]
pub(crate) struct BodyFaults {
    /// Bytes per piece, and pause before each.
    pub(crate) slow: Option<(usize, Duration)>,
    /// Bytes before the body breaks off.
    pub(crate) cut_after: Option<usize>,
    pub(crate) trailers: Option<HeaderMap>,
    /// The end of the body is delayed until the gate opens.
    pub(crate) late_end: Option<Gate>,
}

impl BodyFaults {
    fn has_no_fault(&self) -> bool {
        self.slow.is_none() && self.cut_after.is_none() && self.trailers.is_none()
    }

    pub(crate) fn apply_to_body(mut self, body: ResponseBody) -> ResponseBody {
        let body = match self.late_end.take() {
            Some(gate) => LateEnd::new(body, gate).boxed_unsync(),
            None => body,
        };
        if self.has_no_fault() {
            return body;
        }
        let shaped = FaultyBody {
            shape: self,
            body,
            left: Bytes::new(),
        };
        stream_body(stream::unfold(Some(shaped), async |shaped| shaped?.next_frame().await))
    }
}

/// A body that delays its end, but not its length.
struct LateEnd {
    body: ResponseBody,
    /// `None` once the gate is open.
    gate: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl LateEnd {
    fn new(body: ResponseBody, gate: Gate) -> Self {
        let opened = async move {
            gate.wait_until_open().await;
        };
        Self {
            body,
            gate: Some(Box::pin(opened)),
        }
    }
}

impl Body for LateEnd {
    type Data = Bytes;
    type Error = Interrupted;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Interrupted>>> {
        if let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) {
            return Poll::Ready(Some(frame));
        }
        if let Some(gate) = &mut self.gate {
            ready!(gate.as_mut().poll(cx));
            self.gate = None;
        }
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct FaultyBody {
    shape: BodyFaults,
    body: ResponseBody,
    left: Bytes,
}

type Step = (Result<Frame<Bytes>, Interrupted>, Option<FaultyBody>);

impl FaultyBody {
    /// The next frame and the remaining body; `None` at the end.
    async fn next_frame(mut self) -> Option<Step> {
        if self.shape.cut_after == Some(0) {
            tokio::time::sleep(CUT_PAUSE).await;
            return Some((Err(Interrupted::new()), None));
        }
        while self.left.is_empty() {
            let frame = match self.body.frame().await {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Some((Err(error), None)),
                None => {
                    return self
                        .shape
                        .trailers
                        .take()
                        .map(|trailers| (Ok(Frame::trailers(trailers)), None));
                }
            };
            match frame.into_data() {
                Ok(data) => self.left = data,
                Err(other) => return Some((Ok(other), Some(self))),
            }
        }
        let mut size = self.left.len();
        if let Some((chunk, every)) = self.shape.slow {
            tokio::time::sleep(every).await;
            size = size.min(chunk.max(1));
        }
        if let Some(remaining) = &mut self.shape.cut_after {
            size = size.min(*remaining);
            *remaining -= size;
        }
        let piece = self.left.split_to(size);
        Some((Ok(Frame::data(piece)), Some(self)))
    }
}
