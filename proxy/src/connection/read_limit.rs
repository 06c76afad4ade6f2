//! Keeps hyper's read buffer of an HTTP/1.1 connection small.
//!
//! hyper doubles the size of its reads when one is filled, up to the largest head, and never releases its buffer. So after a large upload
//! a connection would keep 128 to 250 KiB, also while it is idle or serves a watch. Reads that cannot fill the first buffer keep it at
//! 8 KiB, as `memory_shares` expects. It still grows with a larger head.
//! A tunnel reads into a buffer of its own, so it is not limited.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Most bytes of one read: one less than hyper's first buffer (`INIT_BUFFER_SIZE`), because a read that fills it doubles the next one.
const MAX_READ: u64 = (8 << 10) - 1;

/// Whether the reads of a connection are limited. They are until a tunnel begins.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReadLimit(Arc<AtomicBool>);

impl ReadLimit {
    pub(super) fn lift(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_lifted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection's stream whose reads are limited.
#[derive(Debug)]
pub(crate) struct LimitedReads<S> {
    stream: S,
    limit: ReadLimit,
}

impl<S> LimitedReads<S> {
    pub(crate) const fn new(stream: S, limit: ReadLimit) -> Self {
        Self { stream, limit }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedReads<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.limit.is_lifted() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let mut limited = AsyncReadExt::take(&mut this.stream, MAX_READ);
        Pin::new(&mut limited).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedReads<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicUsize;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt as _, Empty};
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// A stream that notes the largest buffer that it was to fill.
    struct Offered<S>(S, Arc<AtomicUsize>);

    impl<S: AsyncRead + Unpin> AsyncRead for Offered<S> {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.1.fetch_max(buf.remaining(), Ordering::Relaxed);
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    impl<S: AsyncWrite + Unpin> AsyncWrite for Offered<S> {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, buf)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    async fn read_body(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
        request.into_body().collect().await.unwrap();
        Ok(Response::new(Empty::new()))
    }

    /// The largest read that hyper does while a body of 1 MiB is uploaded.
    async fn largest_read(limit: Option<ReadLimit>) -> usize {
        let (mut client, server) = tokio::io::duplex(4 << 20);
        let head = b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 1048576\r\n\r\n";
        client.write_all(head).await.unwrap();
        client.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
        let largest: Arc<AtomicUsize> = Arc::default();
        let builder = http1::Builder::new();
        let service = service_fn(read_body);
        // hyper's buffers are seen from outside of the limit.
        if let Some(limit) = limit {
            let stream = Offered(LimitedReads::new(server, limit), Arc::clone(&largest));
            builder.serve_connection(TokioIo::new(stream), service).await.unwrap();
        } else {
            let stream = Offered(server, Arc::clone(&largest));
            builder.serve_connection(TokioIo::new(stream), service).await.unwrap();
        }
        largest.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn upload_does_not_grow_read_buffer_of_hyper() {
        let limited = largest_read(Some(ReadLimit::default())).await;
        assert!(limited <= 16 << 10, "{limited}");
        let unlimited = largest_read(None).await;
        assert!(unlimited >= 128 << 10, "hyper needs no limit any more: {unlimited}");
    }

    #[tokio::test]
    async fn reads_of_a_tunnel_are_not_limited() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(&vec![0; 1 << 17]).await.unwrap();
        let limit = ReadLimit::default();
        let mut stream = LimitedReads::new(server, limit.clone());
        let mut buffer = vec![0; 1 << 16];
        assert_eq!(stream.read(&mut buffer).await.unwrap() as u64, MAX_READ);
        limit.lift();
        assert_eq!(stream.read(&mut buffer).await.unwrap(), buffer.len());
    }
}
