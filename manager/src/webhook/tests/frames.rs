//! Single HTTP/2 frames, for clients that no library would write.

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

use super::Client;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` and `:method: POST`, `:scheme: https` of HPACK's static table.
const OK: u8 = 0x88;
const POST_BY_HTTPS: [u8; 2] = [0x83, 0x87];

fn encode_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A connection, and the number of its next stream.
pub(super) struct Frames {
    stream: TlsStream<TcpStream>,
    next: u32,
}

impl Frames {
    /// Connects from this address of this host.
    pub(super) async fn connect(client: &Client, source: IpAddr, address: SocketAddr) -> std::io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(source, 0))?;
        let mut stream = client.connect_over(socket.connect(address).await?).await?;
        let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        opening.extend(encode_frame(SETTINGS, 0, 0, &[]));
        // A window for any number of responses.
        opening.extend(encode_frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
        stream.write_all(&opening).await?;
        Ok(Self { stream, next: 1 })
    }

    /// Sends the heads of `requests` requests. Returns their streams, on which bodies may follow.
    pub(super) async fn send_heads(&mut self, path: &str, requests: usize) -> std::io::Result<Vec<u32>> {
        let mut block = POST_BY_HTTPS.to_vec();
        // Without indexing: `:authority` and `:path`.
        for (name, value) in [(1, "a"), (4, path)] {
            block.extend([name, u8::try_from(value.len()).unwrap()]);
            block.extend(value.as_bytes());
        }
        let mut bytes = Vec::new();
        let mut streams = Vec::new();
        for _ in 0..requests {
            bytes.extend(encode_frame(HEADERS, END_HEADERS, self.next, &block));
            streams.push(self.next);
            self.next += 2;
        }
        self.stream.write_all(&bytes).await?;
        self.stream.flush().await?;
        Ok(streams)
    }

    pub(super) async fn send_body(&mut self, stream: u32, body: &[u8]) -> std::io::Result<()> {
        self.stream
            .write_all(&encode_frame(DATA, END_STREAM, stream, body))
            .await?;
        self.stream.flush().await
    }

    /// Sends a part of a body.
    pub(super) async fn send(&mut self, stream: u32, part: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(&encode_frame(DATA, 0, stream, part)).await?;
        self.stream.flush().await
    }

    /// Waits for the next response's head. Returns whether its status is 200.
    pub(super) async fn answer(&mut self) -> std::io::Result<bool> {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.stream.read_exact(&mut payload).await?;
            if head[3] == HEADERS {
                return Ok(payload.first() == Some(&OK));
            }
        }
    }
}
