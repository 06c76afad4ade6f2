//! Closed-loop load: so many keep-alive connections, one request after the other on each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// What a measurement saw.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) time: Duration,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// Requests before the clock starts, per connection.
const WARM_UP: usize = 50;

pub(crate) async fn run(address: SocketAddr, target: &str, connections: usize, time: Duration) -> anyhow::Result<Load> {
    let request =
        format!("GET {target} HTTP/1.1\r\nhost: bench\r\naccept: application/json\r\nuser-agent: bench\r\n\r\n");
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for _ in 0..connections {
        let request = request.clone();
        tasks.spawn_local(async move { connection(address, request.as_bytes(), start + time).await });
    }
    let mut all = Vec::new();
    while let Some(latencies) = tasks.join_next().await {
        all.extend(latencies??);
    }
    let time = start.elapsed();
    all.sort_unstable();
    let at = |share: usize| {
        all.get(all.len() * share / 100)
            .copied()
            .context("no request was answered")
    };
    Ok(Load {
        requests: all.len() as u64,
        time,
        p50: at(50)?,
        p99: at(99)?,
    })
}

async fn connection(address: SocketAddr, request: &[u8], end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 << 10];
    let mut latencies = Vec::with_capacity(1 << 16);
    for _ in 0..WARM_UP {
        exchange(&mut stream, request, &mut buffer).await?;
    }
    while Instant::now() < end {
        let start = Instant::now();
        exchange(&mut stream, request, &mut buffer).await?;
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

/// One request and its response, which fits the buffer and has a length.
async fn exchange(stream: &mut TcpStream, request: &[u8], buffer: &mut [u8]) -> anyhow::Result<()> {
    stream.write_all(request).await?;
    let mut filled = 0;
    loop {
        let Some(free) = buffer.get_mut(filled..).filter(|free| !free.is_empty()) else {
            bail!("response too large")
        };
        let read = stream.read(free).await?;
        if read == 0 {
            bail!("connection closed in a response");
        }
        filled += read;
        let seen = buffer.get(..filled).unwrap_or_default();
        if let Some(whole) = length(seen)?
            && filled >= whole
        {
            return Ok(());
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
