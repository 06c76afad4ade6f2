//! A page of a list whose bytes wait until an object of it is kept, so that another page can take the place of an empty one.
//!
//! Guarantees: the page passes unchanged; at most [`MAX_HELD_BYTES`] wait, and beyond that the page passes although no object of it is kept
//! yet. Zeros are counted and not stored: in protobuf, they are all that is left of objects.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::kept_objects::KeptObjectsBody;
use crate::upstream::BoxError;

/// Most bytes that wait: as many as the metadata of a list have at most, the columns of a table, and the heads of 10,000 objects.
const MAX_HELD_BYTES: usize = 256 << 10;

/// Largest frame of the bytes that have waited, in bytes.
const MAX_FRAME_BYTES: usize = 64 << 10;

/// Bytes that are read in one turn. A page of which nothing passes must not take the thread for itself.
const MAX_TURN_BYTES: usize = 1 << 20;

/// Fewer zeros than this are stored like other bytes.
const MIN_COUNTED_ZEROS: usize = 32;

/// The body of a page that [`Self::next_token`] reads first.
pub(crate) struct HeldPage<B> {
    body: KeptObjectsBody<B>,
    held: HeldBytes,
    /// The trailers or the error behind the bytes that wait.
    held_end: Option<Result<Frame<Bytes>, BoxError>>,
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> HeldPage<B> {
    /// The body of a list.
    pub(crate) fn new(body: KeptObjectsBody<B>) -> Self {
        Self {
            body,
            held: HeldBytes::default(),
            held_end: None,
        }
    }

    /// Reads until an object is kept or the page ends. Returns the token of the next page if the whole page has no object that is kept.
    /// What was read waits in the body, also if the future is dropped.
    pub(crate) async fn next_token(&mut self) -> Option<String> {
        poll_fn(|cx| self.poll_next_token(cx)).await
    }

    fn poll_next_token(&mut self, cx: &mut Context<'_>) -> Poll<Option<String>> {
        let mut read_bytes = 0;
        while !self.body.has_kept_object() && !self.held.is_full() && self.held_end.is_none() {
            if read_bytes >= MAX_TURN_BYTES {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        read_bytes += data.len();
                        self.held.push(&data);
                    }
                    Err(trailers) => self.held_end = Some(Ok(trailers)),
                },
                Some(Err(error)) => self.held_end = Some(Err(error)),
                None => break,
            }
        }
        let is_empty = self.body.is_end_stream() && !self.body.has_kept_object();
        let is_whole = is_empty && !matches!(self.held_end, Some(Err(_)));
        let token = self.body.continue_token().filter(|_| is_whole);
        Poll::Ready(token.map(str::to_owned))
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for HeldPage<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(data) = this.held.next_frame() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match this.held_end.take() {
            Some(end) => Poll::Ready(Some(end)),
            None => Pin::new(&mut this.body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.runs.is_empty() && self.held_end.is_none() && self.body.is_end_stream()
    }
}

/// Bytes that wait, in their order.
#[derive(Default)]
struct HeldBytes {
    /// The bytes that are stored.
    stored: Vec<u8>,
    /// Number of stored bytes that were sent.
    sent: usize,
    runs: VecDeque<Run>,
}

/// Stored bytes and the zeros behind them. It is not empty.
struct Run {
    stored: usize,
    zeros: usize,
}

impl HeldBytes {
    fn is_full(&self) -> bool {
        self.stored.len() + self.runs.len() * size_of::<Run>() > MAX_HELD_BYTES
    }

    fn push(&mut self, data: &[u8]) {
        for part in data.chunk_by(|before, behind| (*before == 0) == (*behind == 0)) {
            let follows_zeros = self.runs.back().is_some_and(|run| run.zeros > 0);
            let is_counted = part.first() == Some(&0) && (follows_zeros || part.len() >= MIN_COUNTED_ZEROS);
            let (stored, zeros) = if is_counted { (0, part.len()) } else { (part.len(), 0) };
            if stored > 0 {
                self.stored.extend_from_slice(part);
            }
            match self.runs.back_mut() {
                // Bytes that are stored begin a run behind zeros.
                Some(run) if is_counted || !follows_zeros => {
                    run.stored += stored;
                    run.zeros += zeros;
                }
                _ => self.runs.push_back(Run { stored, zeros }),
            }
        }
    }

    /// The next bytes; `None` if all were sent.
    fn next_frame(&mut self) -> Option<Bytes> {
        let mut frame = Vec::new();
        while let Some(run) = self.runs.front_mut() {
            let room = MAX_FRAME_BYTES - frame.len();
            let (stored, zeros) = (run.stored.min(room), run.zeros.min(room.saturating_sub(run.stored)));
            let end = self.sent + stored;
            frame.extend_from_slice(self.stored.get(self.sent..end).unwrap_or_default());
            frame.resize(frame.len() + zeros, 0);
            self.sent = end;
            run.stored -= stored;
            run.zeros -= zeros;
            if run.stored + run.zeros > 0 {
                break;
            }
            self.runs.pop_front();
        }
        (!frame.is_empty()).then(|| Bytes::from(frame.into_boxed_slice()))
    }
}

#[cfg(test)]
pub(crate) mod tests;
