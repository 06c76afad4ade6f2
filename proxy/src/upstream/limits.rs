//! How much the upstream side of one worker thread may hold, and how long it waits; each default with its reason.
//!
//! Leaves the enforcing to `pool.rs`, `http2.rs` and `http1.rs`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ConnectError;
use super::unread::UnreadAnswers;

/// Bounds of one [`Upstream`](super::Upstream), that is: of one worker thread.
#[derive(Debug, Clone)]
pub struct Limits {
    /// From the first DNS question to a connection that takes requests (TCP, TLS, HTTP/2 SETTINGS), and how long a
    /// request waits for room when no connection may be opened any more.
    ///
    /// 5 s: an API server in reach answers in milliseconds; a controller is better off with a quick 503 than waiting.
    pub connect_timeout: Duration,
    /// From sending a request to its response head; `None` waits for ever. One request overrides it with
    /// [`HeadTimeout`](super::HeadTimeout).
    ///
    /// 120 s: twice kube-apiserver's default `--request-timeout`, so the server's own 504 always comes first. What the
    /// API server exempts from that timeout as long-running (watch, `log`, `proxy`, `exec`, `attach`, `portforward`)
    /// should carry `HeadTimeout(None)`: a followed log's head comes with its first line.
    pub head_timeout: Option<Duration>,
    /// Connections, open or being opened, of any protocol.
    ///
    /// 1024: a thousand watches over HTTP/1.1 take a connection each; file descriptors are the next bound.
    pub max_connections: usize,
    /// Streams on one HTTP/2 connection at most, also where the server allows more or names no number.
    ///
    /// 250: what Go's servers announce (kube-apiserver: 100). Beyond it, one TCP connection is the bottleneck.
    pub max_streams_per_connection: usize,
    /// An unused connection is closed after so long; the last HTTP/2 connection stays.
    ///
    /// 90 s: client-go's and kube-apiserver's idle timeout.
    pub idle_timeout: Duration,
    /// A PING goes out so often on each HTTP/2 connection.
    ///
    /// 30 s: as client-go.
    pub ping_interval: Duration,
    /// A connection on which nothing at all arrives for so long after a PING is dead.
    ///
    /// 15 s: as client-go.
    pub ping_timeout: Duration,
    /// Bytes of one response that may be under way or unread (HTTP/2 stream window).
    ///
    /// 256 KiB, as the API server's own: a large list at 1 ms round trip still streams at 250 MB/s.
    pub stream_window: u32,
    /// The same for all responses of a connection together.
    ///
    /// 64 MiB: as many streams as a connection carries, each with its window full because its client has stopped
    /// reading, leave the others room. Go's client takes 1 GiB. What is really held is bounded by `unread`.
    pub connection_window: u32,
    /// Bytes of a request body kept so that a request which the server refused unseen can be sent again.
    ///
    /// 256 KiB: all but the largest objects of a controller; bigger uploads fail over to the controller's own retry.
    pub replay_buffer: usize,
    /// Speak HTTP/2 to an `http://` server without asking (prior knowledge). For benchmarks and tests: a plain
    /// `kubectl proxy` or test server speaks HTTP/1.1.
    pub http2_prior_knowledge: bool,
    /// Bounds what all responses together hold that nobody reads. Share it between all that one worker thread connects to.
    pub unread: Rc<UnreadAnswers>,
    /// One for each socket that may be open, shared by all threads; `None`: as many as there are connections.
    pub sockets: Option<Arc<Semaphore>>,
}

impl Limits {
    /// A place for one more socket.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn socket(&self) -> Result<Option<OwnedSemaphorePermit>, ConnectError> {
        let place = self
            .sockets
            .as_ref()
            .map(|sockets| Arc::clone(sockets).try_acquire_owned());
        place.transpose().map_err(|_| ConnectError::NoSocketLeft)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            head_timeout: Some(Duration::from_secs(120)),
            max_connections: 1024,
            max_streams_per_connection: 250,
            idle_timeout: Duration::from_secs(90),
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
            stream_window: 256 << 10,
            connection_window: 64 << 20,
            replay_buffer: 256 << 10,
            http2_prior_knowledge: false,
            unread: Rc::default(),
            sockets: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_stop_reading_can_not_use_a_connection_up() {
        let limits = Limits::default();
        let all = limits.max_streams_per_connection * limits.stream_window as usize;
        assert!(all <= limits.connection_window as usize);
    }
}
