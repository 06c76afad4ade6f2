//! When the last chain or request that holds an entry lets go of it, its live instances are of no use: worker threads, which have
//! them, are told.

use tokio::sync::watch;

/// Tells of entries that are gone. Shared by who makes entries and who has instances of them.
#[derive(Debug, Clone, Default)]
pub struct Retirements(watch::Sender<()>);

/// Part of an entry: dropped with it.
#[derive(Debug, Clone)]
pub(super) struct RetirementGuard(watch::Sender<()>);

impl Retirements {
    /// Changes whenever an entry has gone. Which one, a `Weak` to it tells.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.0.subscribe()
    }

    pub(super) fn guard(&self) -> RetirementGuard {
        RetirementGuard(self.0.clone())
    }
}

impl Drop for RetirementGuard {
    fn drop(&mut self) {
        // Its `Arc` counts no holder any more when the fields of an entry are dropped.
        self.0.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn entry_has_no_holder_when_its_end_is_told() {
        let retirements = Retirements::default();
        let mut told = retirements.subscribe();
        let entry = Arc::new(retirements.guard());
        let (request, known) = (Arc::clone(&entry), Arc::downgrade(&entry));
        drop(entry);
        assert!(!told.has_changed().unwrap());
        drop(request);
        told.changed().await.unwrap();
        assert_eq!(known.strong_count(), 0);
    }
}
