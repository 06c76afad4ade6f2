//! Readiness as guards: each part that must start holds a named guard and drops it when it is ready.
//!
//! `/readyz` answers 200 once no guard is left, and names the missing parts until then. Draining makes the sidecar permanently unready.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ctrlmesh_contract::names::readiness::DRAINING;

use crate::lock::lock_unpoisoned;

/// The parts that are not ready yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readiness(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    missing: Mutex<BTreeSet<&'static str>>,
    draining: AtomicBool,
}

/// A part that is not ready yet. Dropping the guard marks it ready.
#[derive(Debug)]
#[must_use = "dropping the guard says that the part is ready"]
pub(crate) struct Guard {
    name: &'static str,
    inner: Arc<Inner>,
}

impl Readiness {
    /// Readiness without guards: take them before anything starts.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A guard for a part that must start. Names are unique.
    pub(crate) fn guard(&self, name: &'static str) -> Guard {
        lock_unpoisoned(&self.0.missing).insert(name);
        Guard {
            name,
            inner: Arc::clone(&self.0),
        }
    }

    /// Makes the sidecar permanently unready.
    pub(crate) fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
    }

    /// The names of missing parts; empty when ready.
    #[must_use]
    pub(crate) fn missing_parts(&self) -> Vec<&'static str> {
        let mut missing: Vec<_> = lock_unpoisoned(&self.0.missing).iter().copied().collect();
        if self.0.draining.load(Ordering::Acquire) {
            missing.push(DRAINING);
        }
        missing
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        lock_unpoisoned(&self.inner.missing).remove(self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecar_is_ready_when_last_guard_is_dropped_and_never_again_after_draining() {
        let readiness = Readiness::new();
        let listener = readiness.guard("listener");
        let chain = readiness.guard("first chain");
        assert_eq!(readiness.missing_parts(), ["first chain", "listener"]);
        drop(listener);
        assert_eq!(readiness.missing_parts(), ["first chain"]);
        drop(chain);
        assert!(readiness.missing_parts().is_empty());
        readiness.drain();
        assert_eq!(readiness.missing_parts(), ["draining"]);
    }
}
