//! An interval in which a port is closed because of a plugin: the kernel refuses new connections, and open ones end.
//!
//! `listen::accept` closes the port and `listen::serve` ends connections; both subscribe here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Starts outages. Shared by all threads.
#[derive(Debug, Clone)]
pub(crate) struct Outage(Arc<watch::Sender<Instant>>);

/// Receives outages that begin after the subscription.
#[derive(Debug)]
pub(crate) struct Outages(watch::Receiver<Instant>);

impl Outage {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Instant::now())))
    }

    /// Closes the port for this time from now on, or longer if an earlier call asked for more.
    pub(crate) fn begin(&self, length: Duration) {
        let end = Instant::now() + length;
        self.0.send_modify(|known| *known = end.max(*known));
    }

    pub(crate) fn subscribe(&self) -> Outages {
        Outages(self.0.subscribe())
    }
}

impl Outages {
    /// Waits until an outage begins or is prolonged.
    pub(crate) async fn next_start(&mut self) {
        if self.0.changed().await.is_err() {
            // The process is ending, so no more outages begin.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the port may be open again.
    pub(crate) async fn wait_until_over(&mut self) {
        loop {
            let end = *self.0.borrow_and_update();
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn longest_outage_counts() {
        let outage = Outage::new();
        let mut outages = outage.subscribe();
        let start = Instant::now();
        outage.begin(Duration::from_secs(3));
        outage.begin(Duration::from_secs(1));
        outages.next_start().await;
        outages.wait_until_over().await;
        assert_eq!(start.elapsed(), Duration::from_secs(3));
        let again = tokio::time::timeout(Duration::from_secs(60), outages.next_start()).await;
        assert!(again.is_err(), "an outage is reported once");
    }
}
