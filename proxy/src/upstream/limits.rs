//! Limits on memory, connections and waiting times of one worker thread's upstream side; each default with its reason.
//!
//! `pool.rs`, `http2.rs` and `http1.rs` enforce them.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ConnectError;
use super::unread::UnreadResponses;

/// Limits of one [`Upstream`](super::Upstream), which belongs to one worker thread.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum time from the first DNS query to a connection that accepts requests (TCP, TLS, HTTP/2 SETTINGS). Also the time that a
    /// request waits for room when no connection may be opened any more.
    ///
    /// 5 s: a reachable API server answers in milliseconds, and a quick 503 is better for a controller than waiting.
    pub connect_timeout: Duration,
    /// Maximum time from sending a request to its response head; `None` waits forever. A request overrides it with
    /// [`HeadTimeout`](super::HeadTimeout).
    ///
    /// 120 s: twice kube-apiserver's default `--request-timeout`, so the server's own 504 always comes first. Requests that the API server
    /// exempts from that timeout as long-running (watch, `log`, `proxy`, `exec`, `attach`, `portforward`) should carry `HeadTimeout(None)`:
    /// a followed log's head arrives with its first line.
    pub head_timeout: Option<Duration>,
    /// Maximum number of connections, open or being opened, of any protocol.
    ///
    /// 1024: a thousand watches over HTTP/1.1 take a connection each; file descriptors are the next limit.
    pub max_connections: usize,
    /// Maximum number of streams on one HTTP/2 connection, even if the server allows more or announces no number.
    ///
    /// 250: as Go's servers announce (kube-apiserver: 100). Beyond it, one TCP connection is the bottleneck.
    pub max_streams_per_connection: usize,
    /// An unused connection is closed after this time; the last HTTP/2 connection stays.
    ///
    /// 90 s: client-go's and kube-apiserver's idle timeout.
    pub idle_timeout: Duration,
    /// Interval between PINGs on each HTTP/2 connection.
    ///
    /// 30 s: as client-go.
    pub ping_interval: Duration,
    /// A connection is dead if nothing at all arrives on it for this time after a PING.
    ///
    /// 15 s: as client-go.
    pub ping_timeout: Duration,
    /// Maximum number of bytes of one response that may be in transit or unread (HTTP/2 stream window).
    ///
    /// 256 KiB, as the API server's own: a large list at 1 ms round trip still streams at 250 MB/s.
    pub stream_window: u32,
    /// Maximum number of bytes of all responses of a connection together that may be in transit or unread.
    ///
    /// 64 MiB: even if every stream of a connection has a full window because its client has stopped reading, the others have room. Go's
    /// client takes 1 GiB. `unread` bounds the memory that is really held.
    pub connection_window: u32,
    /// Maximum number of bytes of a request body that are kept, so that a request that the server refused unprocessed can be sent again.
    ///
    /// 256 KiB: enough for all but the largest objects of a controller; the controller itself must retry bigger uploads.
    pub replay_buffer: usize,
    /// Use HTTP/2 on an `http://` server without negotiation (prior knowledge). For benchmarks and tests: a plain `kubectl proxy` or test
    /// server uses HTTP/1.1.
    pub http2_prior_knowledge: bool,
    /// Bounds the unread bytes of all responses together. Share it between all upstreams of one worker thread.
    pub unread: Rc<UnreadResponses>,
    /// One permit for each open socket, shared by all threads; `None` allows as many as there are connections.
    pub sockets: Option<Arc<Semaphore>>,
}

impl Limits {
    /// Takes a permit for one more socket.
    ///
    /// # Errors
    /// No permit is left.
    pub(super) fn socket_permit(&self) -> Result<Option<OwnedSemaphorePermit>, ConnectError> {
        let permit = self
            .sockets
            .as_ref()
            .map(|sockets| Arc::clone(sockets).try_acquire_owned());
        permit.transpose().map_err(|_| ConnectError::NoSocketLeft)
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
    fn clients_that_stop_reading_can_not_use_connection_up() {
        let limits = Limits::default();
        let all = limits.max_streams_per_connection * limits.stream_window as usize;
        assert!(all <= limits.connection_window as usize);
    }
}
