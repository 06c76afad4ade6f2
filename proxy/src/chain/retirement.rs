//! Notifies worker threads when the last chain or request drops an entry, so that they end its live instances.

use tokio::sync::watch;

/// Notifies of entries that are gone. Shared by the code that makes entries and the owners of their instances.
#[derive(Debug, Clone, Default)]
pub struct Retirements(watch::Sender<()>);

/// Part of an entry, dropped with it.
#[derive(Debug, Clone)]
pub(super) struct RetirementGuard(watch::Sender<()>);

impl Retirements {
    /// Changes whenever an entry is gone. Subscribers find out which one through a `Weak` reference to it.
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
        // When an entry's fields are dropped, its `Arc` has no holders any more.
        self.0.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn retirement_is_notified_after_last_holder_is_gone() {
        let retirements = Retirements::default();
        let mut changes = retirements.subscribe();
        let entry = Arc::new(retirements.guard());
        let (request, known) = (Arc::clone(&entry), Arc::downgrade(&entry));
        drop(entry);
        assert!(!changes.has_changed().unwrap());
        drop(request);
        changes.changed().await.unwrap();
        assert_eq!(known.strong_count(), 0);
    }
}
