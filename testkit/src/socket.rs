//! The byte streams below hyper: a TCP socket that can end with RST, and a layer that replays sniffed bytes and inserts an interim
//! response. [`crate::connection`] knows the protocols.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::lock::lock_unpoisoned;

/// Lets a request handler change the bytes of its connection.
#[derive(Debug, Default)]
pub(crate) struct SocketControl {
    /// End with RST instead of FIN.
    reset: AtomicBool,
    /// Written before hyper's next bytes.
    interim: Mutex<Bytes>,
}

impl SocketControl {
    pub(crate) fn reset_on_drop(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    /// Sends `bytes` before hyper's next bytes. On HTTP/1.1, that is the response to the current request.
    pub(crate) fn send_interim(&self, bytes: Bytes) {
        *lock_unpoisoned(&self.interim) = bytes;
    }

    fn take_interim(&self) -> Bytes {
        std::mem::take(&mut *lock_unpoisoned(&self.interim))
    }
}

/// A TCP stream that is reset on drop if its control says so.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    tricks: Arc<SocketControl>,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, tricks: Arc<SocketControl>) -> Self {
        Self { stream, tricks }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.tricks.reset.load(Ordering::Relaxed)
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::warn!(%error, "cannot reset the connection");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The stream that hyper reads and writes.
#[derive(Debug)]
pub(crate) struct Layer<S> {
    inner: S,
    /// Bytes already read to detect the protocol.
    sniffed: Bytes,
    interim: Bytes,
    tricks: Arc<SocketControl>,
}

impl<S> Layer<S> {
    pub(crate) fn new(inner: S, sniffed: Bytes, tricks: Arc<SocketControl>) -> Self {
        Self {
            inner,
            sniffed,
            interim: Bytes::new(),
            tricks,
        }
    }
}

impl<S: AsyncWrite + Unpin> Layer<S> {
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.interim.is_empty() {
            self.interim = self.tricks.take_interim();
        }
        while !self.interim.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.interim))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.interim.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Layer<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.sniffed.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let size = self.sniffed.len().min(buf.remaining());
        let bytes = self.sniffed.split_to(size);
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Layer<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(cx))?;
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_interim(cx))?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
