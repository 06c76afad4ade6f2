//! Closed-loop load: so many keep-alive connections, one request after the other on each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::stats::Durations;

/// What a measurement saw.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) latencies: Durations,
    pub(crate) time: Duration,
}

/// Requests before the clock starts, per connection.
const WARM_UP: usize = 50;

/// Longest response.
const BUFFER: usize = 16 << 10;

pub(crate) async fn run(address: SocketAddr, target: &str, connections: usize, time: Duration) -> anyhow::Result<Load> {
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for _ in 0..connections {
        let target = target.to_owned();
        tasks.spawn_local(async move { until(address, &target, start + time).await });
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

async fn until(address: SocketAddr, target: &str, end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut client = Client::connect(address, target).await?;
    let mut latencies = Vec::with_capacity(1 << 16);
    for _ in 0..WARM_UP {
        client.exchange().await?;
    }
    while Instant::now() < end {
        let start = Instant::now();
        client.exchange().await?;
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

/// One connection that asks for the same again and again.
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

    /// One request and its response, which fits the buffer and has a length.
    pub(crate) async fn exchange(&mut self) -> anyhow::Result<()> {
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
            if let Some(whole) = length(seen)?
                && filled >= whole
            {
                return Ok(());
            }
        }
    }
}

/// Length of head and body, once the head is whole.
fn length(seen: &[u8]) -> anyhow::Result<Option<usize>> {
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
    fn a_response_is_whole_when_its_body_is() {
        assert_eq!(length(b"HTTP/1.1 200 OK\r\nContent-Le").unwrap(), None);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(length(head).unwrap(), Some(head.len() + 5));
    }

    #[test]
    fn anything_but_a_whole_ok_is_a_failure() {
        assert!(length(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(length(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
