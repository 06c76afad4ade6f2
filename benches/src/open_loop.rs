//! Open-loop load: requests at a fixed rate, whether or not earlier ones were answered. A latency counts from the time at which the request
//! was due, so a pause makes all requests late that fall into it (no coordinated omission).

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::stats::Durations;
use crate::work::{HttpVersion, Work};

/// Due requests that wait for a free client; when the queue is full, the pacer waits too, but the times at which requests are due stay.
const QUEUE: usize = 1 << 16;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) work: Work,
    /// Requests per second.
    pub(crate) rate: u32,
    /// Requests that may be in flight together, each on a connection of its own.
    pub(crate) clients: usize,
}

#[derive(Debug, Default)]
pub(crate) struct PacedLoad {
    /// Latencies of the answered requests.
    pub(crate) latencies: Durations,
    pub(crate) failed: u32,
}

type DueTimes = Rc<Mutex<mpsc::Receiver<Instant>>>;

pub(crate) async fn run_open_loop(address: SocketAddr, pace: Pace, time: Duration) -> anyhow::Result<PacedLoad> {
    ensure!(pace.rate > 0 && pace.clients > 0, "a pace without requests");
    let clients = Client::open(address, HttpVersion::Http1, &pace.work, pace.clients).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let due_times = Rc::new(Mutex::new(receiver));
    let mut tasks = JoinSet::new();
    for client in clients {
        tasks.spawn_local(request_when_due(client, address, pace.work, Rc::clone(&due_times)));
    }
    // A thread wakes to some 50 microseconds; timers of the runtime have a resolution of a millisecond.
    let pacer = tokio::task::spawn_blocking(move || send_due_times(pace.rate, time, &sender));
    let (mut all, mut failed) = (Vec::new(), 0);
    while let Some(one) = tasks.join_next().await {
        let (latencies, failures) = one??;
        all.extend(latencies);
        failed += failures;
    }
    pacer.await?;
    Ok(PacedLoad {
        latencies: Durations::new(all),
        failed,
    })
}

fn send_due_times(rate: u32, time: Duration, queue: &mpsc::Sender<Instant>) {
    let start = Instant::now();
    let interval = Duration::from_secs(1) / rate;
    for number in 0.. {
        let due = start + interval * number;
        if due >= start + time {
            return;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        // The clients have gone because one failed.
        if queue.blocking_send(due).is_err() {
            return;
        }
    }
}

/// Sends requests until no more will be due. Returns the latencies of the answered ones, and the number of failed ones.
async fn request_when_due(
    mut client: Client,
    address: SocketAddr,
    work: Work,
    due_times: DueTimes,
) -> anyhow::Result<(Vec<Duration>, u32)> {
    let (mut latencies, mut failed) = (Vec::new(), 0);
    loop {
        let due = due_times.lock().await.recv().await;
        let Some(due) = due else { return Ok((latencies, failed)) };
        if client.send_request().await.is_ok() {
            latencies.push(due.elapsed());
        } else {
            failed += 1;
            let fresh = Client::open(address, HttpVersion::Http1, &work, 1).await?;
            client = fresh.into_iter().next().unwrap_or(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_times_are_evenly_spaced_even_if_nobody_is_in_time() {
        let (sender, mut receiver) = mpsc::channel(100);
        send_due_times(1000, Duration::from_millis(20), &sender);
        drop(sender);
        let mut due = Vec::new();
        while let Ok(time) = receiver.try_recv() {
            due.push(time);
        }
        assert_eq!(due.len(), 20);
        assert!(due.windows(2).all(|pair| pair[1] - pair[0] == Duration::from_millis(1)));
    }
}
