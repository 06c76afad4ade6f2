//! Opens a byte stream with an agreed protocol to a host name: TLS with ALPN over the connection that `dial.rs` opens.
//!
//! Leaves the protocols themselves to `http2.rs`, `http1.rs` and `upgrade.rs`.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{
    dial::{Socket, dial},
    error::ConnectError,
    limits::Limits,
    target::Target,
};

/// Protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    /// HTTP/1.1, one request at a time.
    Http1,
    Http2,
}

/// An open connection on which nothing has been sent yet.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) stream: Transport,
    pub(super) protocol: Protocol,
    /// Generation of the TLS settings in use.
    pub(super) generation: u64,
}

/// Opens a connection for requests. The caller sets the time limit.
pub(super) async fn open_connection(target: &Target, limits: &Limits) -> Result<Opened, ConnectError> {
    let tcp = dial(target.host(), target.port(), target.gate(), limits).await?;
    let Some(identity) = target.identity() else {
        let protocol = if limits.http2_prior_knowledge {
            Protocol::Http2
        } else {
            Protocol::Http1
        };
        return Ok(Opened {
            stream: Transport::Plain(tcp),
            protocol,
            generation: 0,
        });
    };
    let stream = connect_tls(target, Arc::clone(&identity.negotiated), tcp).await?;
    let chosen = stream.get_ref().1.alpn_protocol();
    let protocol = if chosen == Some(b"h2") {
        Protocol::Http2
    } else {
        Protocol::Http1
    };
    Ok(Opened {
        stream: Transport::Tls(Box::new(stream)),
        protocol,
        generation: identity.generation,
    })
}

/// Opens a connection that uses HTTP/1.1. The caller sets the time limit.
pub(super) async fn open_http1(target: &Target, limits: &Limits) -> Result<Transport, ConnectError> {
    let tcp = dial(target.host(), target.port(), target.gate(), limits).await?;
    match target.identity() {
        None => Ok(Transport::Plain(tcp)),
        Some(identity) => Ok(Transport::Tls(Box::new(
            connect_tls(target, Arc::clone(&identity.http1), tcp).await?,
        ))),
    }
}

async fn connect_tls(
    target: &Target,
    settings: Arc<rustls::ClientConfig>,
    tcp: Socket,
) -> Result<TlsStream<Socket>, ConnectError> {
    let failed = |source| ConnectError::Tls {
        authority: target.authority().to_string(),
        source,
    };
    let name = target
        .server_name()
        .cloned()
        .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    TlsConnector::from(settings).connect(name, tcp).await.map_err(failed)
}

/// The byte stream under a connection.
#[derive(Debug)]
pub(super) enum Transport {
    /// `http://`
    Plain(Socket),
    /// `https://`; boxed, as rustls' state is a kilobyte and more.
    Tls(Box<TlsStream<Socket>>),
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }
}
