//! Closed-loop load: a number of clients, each of which sends one request after the other.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::Client;
use crate::stats::Durations;
use crate::work::{HttpVersion, Work};

/// The result of a measurement.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) latencies: Durations,
    pub(crate) time: Duration,
}

impl Load {
    #[expect(clippy::cast_precision_loss, reason = "counts of requests, far below 2^52")]
    pub(crate) fn requests(&self) -> f64 {
        self.latencies.len() as f64
    }
}

/// Requests of each client before the clock starts.
const WARM_UP: usize = 50;

/// Clients that are connected and whose first requests are behind them.
pub(crate) struct WarmClients(Vec<Client>);

impl WarmClients {
    pub(crate) async fn open(
        address: SocketAddr,
        version: HttpVersion,
        work: &Work,
        count: usize,
    ) -> anyhow::Result<Self> {
        let mut warming = JoinSet::new();
        for mut client in Client::open(address, version, work, count).await? {
            warming.spawn_local(async move {
                for _ in 0..WARM_UP {
                    client.send_request().await?;
                }
                anyhow::Ok(client)
            });
        }
        let mut clients = Vec::with_capacity(count);
        while let Some(client) = warming.join_next().await {
            clients.push(client??);
        }
        Ok(Self(clients))
    }

    pub(crate) async fn run_closed_loop(self, time: Duration) -> anyhow::Result<Load> {
        let mut tasks = JoinSet::new();
        let start = Instant::now();
        for client in self.0 {
            tasks.spawn_local(request_until(client, start + time));
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
}

async fn request_until(mut client: Client, end: Instant) -> anyhow::Result<Vec<Duration>> {
    let mut latencies = Vec::with_capacity(1 << 16);
    loop {
        let start = Instant::now();
        if start >= end {
            return Ok(latencies);
        }
        client.send_request().await?;
        latencies.push(start.elapsed());
    }
}
