//! Checks whether the server on an HTTP/2 connection is still alive: sends pings and notes arriving bytes.
//!
//! Leaves closing the connection to its driver in `pool.rs`.

use std::{
    cell::Cell,
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, interval_at, timeout},
};

use super::unread::UnreadResponses;

/// Pings a server, and decides when silence means that it is dead.
pub(super) struct Keepalive {
    pub(super) pings: PingPong,
    /// Set by [`MonitoredStream`].
    pub(super) has_traffic: Rc<Cell<bool>>,
    pub(super) interval: Duration,
    pub(super) pong_timeout: Duration,
}

impl std::fmt::Debug for Keepalive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keepalive")
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

impl Keepalive {
    /// Returns when the server is found dead. On a connection that has ended, waits until the driver drops it.
    pub(super) async fn until_dead(mut self) {
        let mut ticks = interval_at(Instant::now() + self.interval, self.interval);
        loop {
            ticks.tick().await;
            let mut pong = pin!(self.pings.ping(Ping::opaque()));
            loop {
                self.has_traffic.set(false);
                match timeout(self.pong_timeout, pong.as_mut()).await {
                    Ok(Ok(_)) => break,
                    // The response to the ping may be queued behind a large response on a slow link; the server is not dead then.
                    Err(_) if self.has_traffic.get() => {}
                    Err(_) => return,
                    Ok(Err(_)) => std::future::pending().await,
                }
            }
        }
    }
}

/// A stream that notes that something was read, and how much.
#[derive(Debug)]
pub(super) struct MonitoredStream<T> {
    pub(super) io: T,
    pub(super) has_traffic: Rc<Cell<bool>>,
    pub(super) unread: Rc<UnreadResponses>,
}

impl<T: AsyncRead + Unpin> AsyncRead for MonitoredStream<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = Pin::new(&mut self.io).poll_read(cx, buf);
        let more = buf.filled().len().saturating_sub(before);
        if more > 0 {
            self.has_traffic.set(true);
            self.unread.arrived(more);
        }
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}
