//! Clients whose caches show an earlier view: they were sent to list again, and have not begun a watch since.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::MAX_NOTES;

/// Who was sent to list again, and lives, has done so and watches before this has passed: client-go waits 30 s and as much again
/// by chance at most (`NewReflectorWithOptions` in tools/cache/reflector.go), and a list takes its time.
const RELIST: Duration = Duration::from_secs(120);

/// By the reader's key. Of more than [`MAX_NOTES`], those that were noted first count.
#[derive(Debug, Default)]
pub(super) struct Outdated(HashMap<u64, Sent>);

#[derive(Debug)]
struct Sent {
    clients: u16,
    /// The last of them.
    at: Instant,
}

impl Outdated {
    /// One is sent. `most`: watches that its reader ever had at once, if that is known. One that is sent twice is still one.
    pub(super) fn note(&mut self, key: u64, most: Option<u16>) {
        if self.0.len() >= MAX_NOTES {
            self.forget_late();
        }
        if self.0.len() >= MAX_NOTES && !self.0.contains_key(&key) {
            return;
        }
        let now = Instant::now();
        let sent = self.0.entry(key).or_insert(Sent { clients: 0, at: now });
        let most = most.map_or(u16::MAX, |most| most.max(1));
        sent.clients = sent.clients.saturating_add(1).min(most);
        sent.at = now;
    }

    /// One begins a watch: what it has cached is of the view that its watch shows.
    pub(super) fn renew(&mut self, key: u64) {
        if let Some(sent) = self.0.get_mut(&key) {
            sent.clients = sent.clients.saturating_sub(1);
            if sent.clients == 0 {
                self.0.remove(&key);
            }
        }
    }

    /// How many there are.
    pub(super) fn count(&mut self) -> u64 {
        self.forget_late();
        self.0.values().map(|sent| u64::from(sent.clients)).sum()
    }

    fn forget_late(&mut self) {
        self.0.retain(|_, sent| sent.at.elapsed() < RELIST);
    }
}
