//! Closed-loop load: a number of keep-alive connections, one request after the other on each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::stats::Durations;

/// The result of a measurement.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) latencies: Durations,
    pub(crate) time: Duration,
}

/// Requests per connection before the clock starts.
const WARM_UP: usize = 50;

/// Maximum size of a response.
const BUFFER: usize = 16 << 10;

pub(crate) async fn run_load(
    address: SocketAddr,
    target: &str,
    connections: usize,
    time: Duration,
) -> anyhow::Result<Load> {
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for _ in 0..connections {
        let target = target.to_owned();
        tasks.spawn_local(async move { request_until(address, &target, start + time).await });
    }
    let mut all = Vec::new();
    while let Some(latencies) = tasks.join_next().await {
        all.extend(latencies??);
    }
    Ok(Load {
        time: start.elapsed(),
        latencies: Durations::new(all),
    })
}

async fn request_until(address: SocketAddr, target: &str, end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut client = Client::connect(address, target).await?;
    let mut latencies = Vec::with_capacity(1 << 16);
    for _ in 0..WARM_UP {
        client.send_request().await?;
    }
    while Instant::now() < end {
        let start = Instant::now();
        client.send_request().await?;
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

/// One connection that repeats the same request.
pub(crate) struct Client {
    stream: TcpStream,
    request: String,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr, target: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let request =
            format!("GET {target} HTTP/1.1\r\nhost: bench\r\naccept: application/json\r\nuser-agent: bench\r\n\r\n");
        Ok(Self {
            stream,
            request,
            buffer: vec![0; BUFFER],
        })
    }

    /// Sends the request and reads its response, which must fit the buffer and have a length.
    pub(crate) async fn send_request(&mut self) -> anyhow::Result<()> {
        self.stream.write_all(self.request.as_bytes()).await?;
        let mut filled = 0;
        loop {
            let Some(free) = self.buffer.get_mut(filled..).filter(|free| !free.is_empty()) else {
                bail!("response too large")
            };
            let read = self.stream.read(free).await?;
            if read == 0 {
                bail!("connection closed in a response");
            }
            filled += read;
            let seen = self.buffer.get(..filled).unwrap_or_default();
            if let Some(whole) = response_length(seen)?
                && filled >= whole
            {
                return Ok(());
            }
        }
    }
}

/// Length of head and body, once the head is complete.
fn response_length(seen: &[u8]) -> anyhow::Result<Option<usize>> {
    let Some(head) = seen.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(seen.get(..head).unwrap_or_default())?;
    if !text.starts_with("HTTP/1.1 200") {
        bail!("answered {:?}", text.lines().next());
    }
    let field = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim())
    });
    let body: usize = field.context("a response without a length")?.parse()?;
    Ok(Some(head + 4 + body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_complete_when_its_body_is() {
        assert_eq!(response_length(b"HTTP/1.1 200 OK\r\nContent-Le").unwrap(), None);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(response_length(head).unwrap(), Some(head.len() + 5));
    }

    #[test]
    fn response_fails_unless_it_is_a_complete_200() {
        assert!(response_length(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(response_length(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
