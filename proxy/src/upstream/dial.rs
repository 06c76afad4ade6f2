//! Opens a TCP connection to a host name: DNS, the gate that decides which addresses may be used, then one address after the other.
//!
//! Guarantees: the connection goes to the address that the gate has checked. The name is not resolved again in between, so a DNS server
//! that changes its response gains nothing. A socket is closed when the gate is checked again and refuses its address.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{error::ConnectError, limits::Limits};
use crate::lock::lock_unpoisoned;

/// Idle time before TCP probes, and interval between them. They find dead peers where there is no HTTP/2 PING (HTTP/1.1 watches, exec,
/// port-forward, tunnels). 30 s, as Go's dialer for client-go.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// Minimum time for each of several addresses to answer.
const MIN_ADDRESS_TIMEOUT: Duration = Duration::from_millis(250);

/// Maximum number of concurrent lookups through one gate. The system's resolver holds a thread for each, up to its own timeout, even if the
/// caller has given up.
pub(crate) const MAX_LOOKUPS: usize = 32;

/// The check of a [`Gate`]: `Err` explains to users why an address may not be connected to.
type AddressCheck = Box<dyn Fn(&str, SocketAddr) -> Result<(), String> + Send + Sync>;

/// Decides where connections may go, by host name and address.
pub(crate) struct Gate {
    check_address: AddressCheck,
    lookups: Arc<Semaphore>,
    open: Arc<OpenSockets>,
}

/// Sockets that a gate admitted.
#[derive(Default)]
struct OpenSockets {
    next: AtomicU64,
    by_id: Mutex<HashMap<u64, OpenSocket>>,
}

struct OpenSocket {
    host: String,
    address: SocketAddr,
    closed: CancellationToken,
}

/// The socket's side of an [`OpenSocket`].
struct Admission {
    id: u64,
    open: Arc<OpenSockets>,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    is_closed: CancellationToken,
}

impl OpenSockets {
    fn by_id(&self) -> MutexGuard<'_, HashMap<u64, OpenSocket>> {
        lock_unpoisoned(&self.by_id)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.open.by_id().remove(&self.id);
    }
}

impl Gate {
    /// `check_address` is called for each address of a name; one refusal refuses the name.
    pub(crate) fn new(check_address: impl Fn(&str, SocketAddr) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self {
            check_address: Box::new(check_address),
            lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            open: Arc::default(),
        }
    }

    /// Closes open sockets whose addresses are refused by now.
    pub(crate) fn check_open_sockets(&self) {
        for socket in self.open.by_id().values() {
            if let Err(reason) = (self.check_address)(&socket.host, socket.address) {
                tracing::info!(reason, "closing connection: its address is no longer allowed");
                socket.closed.cancel();
            }
        }
    }

    /// Registers an open socket. The address is checked again, because the rules may have changed while the connection was opened.
    fn admit(&self, host: &str, address: SocketAddr) -> Result<Admission, ConnectError> {
        let closed = CancellationToken::new();
        let admission = Admission {
            id: self.open.next.fetch_add(1, Ordering::Relaxed),
            open: Arc::clone(&self.open),
            closed: Box::pin(closed.clone().cancelled_owned()),
            is_closed: closed.clone(),
        };
        let socket = OpenSocket {
            host: host.to_owned(),
            address,
            closed,
        };
        self.open.by_id().insert(admission.id, socket);
        self.check(host, &[address])?;
        Ok(admission)
    }

    fn check(&self, host: &str, addresses: &[SocketAddr]) -> Result<(), ConnectError> {
        for address in addresses {
            (self.check_address)(host, *address).map_err(|why| ConnectError::Refused {
                host: host.to_owned(),
                why,
            })?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

/// A connected socket with its permit, one of those of all sockets.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    /// `None` if there was no gate.
    admission: Option<Admission>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn out_of_reach() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "its address is no longer allowed")
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(admission) = &mut self.admission
            && admission.closed.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(out_of_reach()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_closed() {
            return Poll::Ready(Err(out_of_reach()));
        }
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
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_closed() {
            return Poll::Ready(Err(out_of_reach()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }
}

impl Socket {
    fn is_closed(&self) -> bool {
        let admission = self.admission.as_ref();
        admission.is_some_and(|admission| admission.is_closed.is_cancelled())
    }
}

/// Resolves the name each time (servers move) and tries the addresses in the resolver's order.
///
/// # Errors
/// The name has no address, the gate refuses one, none answers in time, or there are no sockets left.
pub(crate) async fn dial(host: &str, port: u16, gate: Option<&Gate>, limits: &Limits) -> Result<Socket, ConnectError> {
    let permit = limits.socket_permit()?;
    let deadline = Instant::now() + limits.connect_timeout;
    let addresses = timeout_at(deadline, resolve_host(host, port, gate))
        .await
        .unwrap_or_else(|_| Err(resolve_error(host, io::ErrorKind::TimedOut.into())))?;
    if let Some(gate) = gate {
        gate.check(host, &addresses)?;
    }
    let stream = connect_to_any(host, &addresses, deadline).await?;
    let admission = match (gate, stream.peer_addr()) {
        (Some(gate), Ok(address)) => Some(gate.admit(host, address)?),
        // The socket is already broken; its user will get the error.
        (Some(_), Err(_)) | (None, _) => None,
    };
    Ok(Socket {
        stream,
        admission,
        _permit: permit,
    })
}

async fn resolve_host(host: &str, port: u16, gate: Option<&Gate>) -> Result<Vec<SocketAddr>, ConnectError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let Some(gate) = gate else {
        let found = tokio::net::lookup_host((host, port)).await;
        return Ok(found.map_err(|source| resolve_error(host, source))?.collect());
    };
    let turn = Arc::clone(&gate.lookups).acquire_owned().await;
    let name = host.to_owned();
    let lookup = tokio::task::spawn_blocking(move || {
        // Released when the resolver's thread is free again, not when the caller gives up.
        let _turn = turn;
        (name.as_str(), port).to_socket_addrs().map(Iterator::collect)
    });
    let found = lookup.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    found.map_err(|source| resolve_error(host, source))
}

fn resolve_error(host: &str, source: io::Error) -> ConnectError {
    ConnectError::Resolve {
        host: host.to_owned(),
        source,
    }
}

async fn connect_to_any(host: &str, addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, ConnectError> {
    let mut failure = resolve_error(host, io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for (index, &address) in addresses.iter().enumerate() {
        // An address that drops packets must leave time for the others.
        let left = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = (deadline.saturating_duration_since(Instant::now()) / left).max(MIN_ADDRESS_TIMEOUT);
        let source = match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                set_socket_options(&stream).map_err(|source| ConnectError::Connect { address, source })?;
                return Ok(stream);
            }
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no response within {:.1} s", share.as_secs_f64()),
            ),
        };
        failure = ConnectError::Connect { address, source };
    }
    Err(failure)
}

fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    // Requests are written as a whole, so waiting for more data only delays them.
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_INTERVAL)
        .with_interval(KEEPALIVE_INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate_against(refused: &'static str) -> Gate {
        Gate::new(move |_, address| match address.ip().to_string() == refused {
            true => Err(format!("{refused} is not for you")),
            false => Ok(()),
        })
    }

    #[test]
    fn one_refused_address_refuses_name() {
        let addresses = ["192.0.2.1:80", "127.0.0.1:80"].map(|text| text.parse().unwrap());
        let error = gate_against("127.0.0.1")
            .check("rebinds.example", &addresses)
            .unwrap_err();
        assert_eq!(error.to_string(), "rebinds.example: 127.0.0.1 is not for you");
        gate_against("127.0.0.2").check("fine.example", &addresses).unwrap();
    }

    #[tokio::test]
    async fn refused_address_is_never_connected_to() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let limits = Limits::default();
        let gate = gate_against("127.0.0.1");
        let refused = dial("127.0.0.1", port, Some(&gate), &limits).await;
        assert!(matches!(refused, Err(ConnectError::Refused { .. })), "{refused:?}");
        let stream = dial("127.0.0.1", port, Some(&gate_against("127.0.0.2")), &limits)
            .await
            .unwrap();
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(
            peer,
            stream.stream.local_addr().unwrap(),
            "the first to arrive is the one that was let through"
        );
    }

    #[tokio::test]
    async fn open_sockets_never_exceed_permits() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let limits = Limits {
            sockets: Some(Arc::new(Semaphore::new(1))),
            ..Limits::default()
        };
        let first = dial("127.0.0.1", port, None, &limits).await.unwrap();
        let second = dial("127.0.0.1", port, None, &limits).await;
        assert!(matches!(second, Err(ConnectError::NoSocketLeft)), "{second:?}");
        drop(first);
        dial("127.0.0.1", port, None, &limits).await.unwrap();
    }
}
