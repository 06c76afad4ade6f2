//! Sends a request body on an HTTP/2 stream at the pace that the server's windows allow.
//!
//! A plain state machine, not a task: it is polled with the response head, and then with the response body.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body;

use super::{error::BoxError, request::RequestBody};

/// Data up to this size is passed to the connection at once, without waiting for a window: an object of usual size then leaves in the same
/// packet as its head. Also bounds the data that waits there for the window, per stream.
const EAGER_BYTES: usize = 16 << 10;

/// How an upload ended.
#[derive(Debug)]
pub(super) enum Uploaded {
    /// The connection has taken all of it.
    Complete,
    /// The stream takes no more: answered early, reset or broken. The response side has the reason.
    Stopped,
    /// The client's body failed; the stream has been reset.
    Failed(BoxError),
}

/// A body, its stream, and the data between them.
#[derive(Debug)]
pub(super) struct Upload {
    body: Box<RequestBody>,
    stream: SendStream<Bytes>,
    waiting: Bytes,
    unasked: usize,
}

impl Upload {
    pub(super) const fn new(body: Box<RequestBody>, stream: SendStream<Bytes>) -> Self {
        Self {
            body,
            stream,
            waiting: Bytes::new(),
            unasked: EAGER_BYTES,
        }
    }

    /// Returns the body, for another attempt.
    pub(super) fn into_body(self) -> Box<RequestBody> {
        self.body
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Uploaded> {
        loop {
            if !self.waiting.is_empty() {
                match ready!(self.poll_send(cx)) {
                    Some(()) => continue,
                    None => return Poll::Ready(Uploaded::Stopped),
                }
            }
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.stream.send_reset(Reason::CANCEL);
                    return Poll::Ready(Uploaded::Failed(error));
                }
                None => return Poll::Ready(upload_result(self.stream.send_data(Bytes::new(), true))),
            };
            match frame.into_data() {
                Ok(data) if self.fits_unasked(&data) => {
                    self.unasked -= data.len();
                    let last = self.body.is_end_stream();
                    let result = upload_result(self.stream.send_data(data, last));
                    if last || matches!(result, Uploaded::Stopped) {
                        return Poll::Ready(result);
                    }
                }
                Ok(data) => self.waiting = data,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        return Poll::Ready(upload_result(self.stream.send_trailers(trailers)));
                    }
                }
            }
        }
    }

    const fn fits_unasked(&self, data: &Bytes) -> bool {
        data.len() <= self.unasked
    }

    /// Sends as much waiting data as the window allows. Returns `None` if the stream has ended.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        self.stream.reserve_capacity(self.waiting.len());
        let mut room = self.stream.capacity();
        if room == 0 {
            room = match ready!(self.stream.poll_capacity(cx)) {
                Some(Ok(room)) => room,
                Some(Err(_)) | None => return Poll::Ready(None),
            };
        }
        let data = self.waiting.split_to(room.min(self.waiting.len()));
        let sent = self.stream.send_data(data, false);
        Poll::Ready(sent.ok())
    }
}

fn upload_result(result: Result<(), h2::Error>) -> Uploaded {
    match result {
        Ok(()) => Uploaded::Complete,
        Err(_) => Uploaded::Stopped,
    }
}
