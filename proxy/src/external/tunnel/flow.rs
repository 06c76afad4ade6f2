//! Observes a tunnel's traffic at the target's side: how much, when last, and how it ended.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::observe::record::Record;

/// The observed traffic of a tunnel.
pub(super) struct Flow {
    record: Rc<Record>,
    last: Cell<Instant>,
    is_half_closed: Cell<bool>,
    is_broken: Cell<bool>,
    half_closed: Notify,
}

impl Flow {
    pub(super) fn new(record: Rc<Record>) -> Self {
        Self {
            record,
            last: Cell::new(Instant::now()),
            is_half_closed: Cell::default(),
            is_broken: Cell::default(),
            half_closed: Notify::new(),
        }
    }

    /// When bytes passed last.
    pub(super) fn last_activity(&self) -> Instant {
        self.last.get()
    }

    /// Whether one side has ended.
    pub(super) fn is_half_closed(&self) -> bool {
        self.is_half_closed.get()
    }

    /// Waits until one side ends.
    pub(super) async fn half_closed(&self) {
        self.half_closed.notified().await;
    }

    /// Whether the target's side has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    fn record_activity(&self) {
        self.last.set(Instant::now());
    }

    fn mark_ended(&self) {
        if !self.is_half_closed.replace(true) {
            self.record_activity();
            self.half_closed.notify_one();
        }
    }

    fn observe_result<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(result, Poll::Ready(Err(_))) {
            self.is_broken.set(true);
        }
        result
    }
}

pub(super) struct Metered<S> {
    stream: S,
    flow: Rc<Flow>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, flow: Rc<Flow>) -> Self {
        Self { stream, flow }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = Pin::new(&mut this.stream).poll_read(cx, buf);
        match buf.filled().len() - before {
            0 if matches!(result, Poll::Ready(Ok(()))) && buf.remaining() > 0 => this.flow.mark_ended(),
            0 => {}
            read => {
                this.flow.record_activity();
                this.flow.record.add_response_bytes(read);
            }
        }
        this.flow.observe_result(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = &result {
            this.flow.record_activity();
            this.flow.record.add_request_bytes(*written);
        }
        this.flow.observe_result(result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let result = Pin::new(&mut this.stream).poll_flush(cx);
        this.flow.observe_result(result)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // The client's side has ended.
        this.flow.mark_ended();
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}
