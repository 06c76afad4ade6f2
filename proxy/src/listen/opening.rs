//! Detects the protocol from the first bytes of a connection, and passes them on to the next reader of the stream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use crate::connection::Timeouts;

/// The HTTP version that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Result of the first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    Tls,
    Plain(Protocol),
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const TLS_HANDSHAKE: u8 = 0x16;

/// Reads until the protocol is known. Returns `None` if the client sent nothing, or began and did not go on.
///
/// The first byte may take as long as a connection may be idle, because clients open connections that they do not use at once (Go dials one
/// for each waiting request, and keeps those that come too late).
pub(super) async fn read_opening<S>(stream: S, timeouts: Timeouts) -> Option<(Opening, Rewound<S>)>
where
    S: AsyncRead + Unpin,
{
    let mut stream = Rewound {
        first: [0; PREFACE.len()],
        given: 0,
        read: 0,
        stream,
    };
    timeout(timeouts.idle, stream.read_more()).await.ok()??;
    let opening = async {
        loop {
            match stream.recognise() {
                Some(opening) => return Some(opening),
                None => stream.read_more().await?,
            }
        }
    };
    let opening = timeout(timeouts.head, opening).await.ok()??;
    Some((opening, stream))
}

/// A stream that returns the bytes that were already read first.
#[derive(Debug)]
pub(super) struct Rewound<S> {
    first: [u8; PREFACE.len()],
    /// Number of bytes of `first` that the next reader has received.
    given: usize,
    /// Number of bytes in `first`.
    read: usize,
    stream: S,
}

impl<S> Rewound<S> {
    fn recognise(&self) -> Option<Opening> {
        let start = self.first.get(..self.read).unwrap_or_default();
        match start.first() {
            Some(&TLS_HANDSHAKE) => Some(Opening::Tls),
            _ if !PREFACE.starts_with(start) => Some(Opening::Plain(Protocol::Http1)),
            _ if start.len() == PREFACE.len() => Some(Opening::Plain(Protocol::Http2)),
            _ => None,
        }
    }
}

impl<S: AsyncRead + Unpin> Rewound<S> {
    /// Reads more; `None` at the end of the stream.
    async fn read_more(&mut self) -> Option<()> {
        let room = self.first.get_mut(self.read..)?;
        let read = self.stream.read(room).await.ok().filter(|read| *read > 0)?;
        self.read += read;
        Some(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        match this.first.get(this.given..this.read) {
            Some(left) if !left.is_empty() => {
                let fits = left.len().min(buf.remaining());
                buf.put_slice(left.get(..fits).unwrap_or_default());
                this.given += fits;
                Poll::Ready(Ok(()))
            }
            _ => Pin::new(&mut this.stream).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
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
    use std::cell::Cell;
    use std::rc::Rc;
    use std::time::Duration;

    use tokio::io::{AsyncWriteExt as _, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(120),
    };

    /// A stream that counts how often it is read.
    struct Counting(DuplexStream, Rc<Cell<usize>>);

    impl AsyncRead for Counting {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.1.set(self.1.get() + 1);
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }

    #[tokio::test]
    async fn protocol_is_detected_from_fragments_without_losing_bytes() {
        for (text, expected) in [
            (PREFACE, Opening::Plain(Protocol::Http2)),
            (b"GET / HTTP/1.1\r\n\r\n", Opening::Plain(Protocol::Http1)),
            (b"PRI / HTTP/1.1\r\n\r\n", Opening::Plain(Protocol::Http1)),
            (b"\x16\x03\x01\x02\x00", Opening::Tls),
        ] {
            for piece in [1, 3, text.len()] {
                let (mut client, server) = tokio::io::duplex(piece);
                let sent = async {
                    client.write_all(text).await.unwrap();
                    drop(client);
                };
                let read = async {
                    let (opening, mut stream) = read_opening(server, TIMEOUTS).await.unwrap();
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).await.unwrap();
                    (opening, all)
                };
                let ((), (opening, all)) = tokio::join!(sent, read);
                assert_eq!((opening, &*all), (expected, text), "in pieces of {piece}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_opening_is_awaited_without_polling() {
        let (mut client, server) = tokio::io::duplex(64);
        let reads = Rc::new(Cell::new(0));
        client.write_all(b"P").await.unwrap();
        let start = Instant::now();
        assert!(
            read_opening(Counting(server, Rc::clone(&reads)), TIMEOUTS)
                .await
                .is_none()
        );
        assert_eq!(start.elapsed(), TIMEOUTS.head);
        assert!(reads.get() <= 3, "read {} times", reads.get());
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_is_not_used_yet_may_be_idle() {
        let (_client, server) = tokio::io::duplex(64);
        let start = Instant::now();
        assert!(read_opening(server, TIMEOUTS).await.is_none());
        assert_eq!(start.elapsed(), TIMEOUTS.idle);
    }
}
