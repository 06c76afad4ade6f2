//! A body in gzip, inflated in transit.
//!
//! Guarantees: what has arrived is inflated at once, so that an event of a watch does not wait for the next one. A body that ends in the
//! middle, has a wrong checksum or length, or goes on after its end is a broken transfer. Memory is bounded whatever the ratio is: one frame
//! of the upstream, one frame of output and the inflater's window. The next frame of output is made when it is asked for.
//!
//! Several members, one after the other, are one body (RFC 1952, 2.2). A body without any byte is empty.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::{Decompress, DecompressError, FlushDecompress, Status};
use http_body::{Body, Frame};

use crate::upstream::BoxError;

/// Largest frame of output, in bytes.
const MAX_FRAME_BYTES: usize = 64 << 10;

/// Most bytes that are inflated in one step. Some bytes have no output and much work, such as the codes of empty blocks.
const MAX_STEP_BYTES: usize = 16 << 10;

/// Steps of one turn, if none of them has output. Such a body must not take the thread for itself. A member costs a step at least, because
/// it needs an inflater.
const MAX_SILENT_STEPS: usize = 16;

/// Base-2 logarithm of the largest distance, in bytes, that Deflate allows (RFC 1951).
const WINDOW_BITS: u8 = 15;

/// Why a body cannot be inflated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InflateError {
    #[error("it is no gzip, or corrupt: {0}")]
    Corrupt(#[from] DecompressError),
    #[error("its gzip ends in the middle")]
    Unfinished,
}

/// The content of a body in gzip.
pub(crate) struct InflatedBody<B> {
    inner: B,
    /// Bytes that are not inflated yet.
    compressed: Bytes,
    /// `None` between two members.
    member: Option<Decompress>,
    /// Whether the inflater may have output for bytes that it has taken: its last output filled a frame.
    has_output: bool,
    is_ended: bool,
}

impl<B> InflatedBody<B> {
    pub(crate) fn new(inner: B) -> Self {
        Self {
            inner,
            compressed: Bytes::new(),
            member: None,
            has_output: false,
            is_ended: false,
        }
    }

    const fn needs_input(&self) -> bool {
        self.compressed.is_empty() && !self.has_output
    }

    /// Inflates some of the bytes that have arrived, up to the end of their member. The output may be empty.
    fn inflate_step(&mut self) -> Result<Bytes, InflateError> {
        let step = self.compressed.slice(..self.compressed.len().min(MAX_STEP_BYTES));
        let member = self.member.get_or_insert_with(|| Decompress::new_gzip(WINDOW_BITS));
        let taken_before = member.total_in();
        let mut out = Vec::with_capacity(MAX_FRAME_BYTES);
        let status = member.decompress_vec(&step, &mut out, FlushDecompress::None)?;
        let taken = usize::try_from(member.total_in() - taken_before).unwrap_or(usize::MAX);
        drop(self.compressed.split_to(taken.min(step.len())));
        self.has_output = out.len() == out.capacity();
        if status == Status::StreamEnd {
            self.member = None;
            self.has_output = false;
        }
        // No more memory than the bytes: they may wait for a client, and are counted by their length.
        Ok(Bytes::from(out.into_boxed_slice()))
    }

    /// Ends the body, with its trailers.
    fn end(&mut self, trailers: Option<Frame<Bytes>>) -> Option<Result<Frame<Bytes>, BoxError>> {
        self.is_ended = true;
        if self.member.is_some() {
            return Some(Err(InflateError::Unfinished.into()));
        }
        trailers.map(Ok)
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for InflatedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.is_ended {
            return Poll::Ready(None);
        }
        for _ in 0..MAX_SILENT_STEPS {
            if this.needs_input() {
                match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                    Some(Ok(frame)) => match frame.into_data() {
                        // It begins no member.
                        Ok(data) if data.is_empty() => continue,
                        Ok(data) => this.compressed = data,
                        Err(trailers) => return Poll::Ready(this.end(Some(trailers))),
                    },
                    Some(Err(error)) => {
                        this.is_ended = true;
                        return Poll::Ready(Some(Err(error)));
                    }
                    None => return Poll::Ready(this.end(None)),
                }
            }
            match this.inflate_step() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(error) => {
                    this.is_ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Not that of the upstream's body: one that ends too early must be polled to its end.
    fn is_end_stream(&self) -> bool {
        self.is_ended
    }
}

#[cfg(test)]
mod tests;
