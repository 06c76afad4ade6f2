//! Progress of compiling a new chain's plugins, for `/readyz` and `/status`. Until it is done there is no chain, and a pod with little
//! CPU waits for seconds.
//!
//! Leaves compiling to `build.rs` and the text to `ctrlmesh-contract`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::status::Compiling;
use tokio::time::Instant;

use crate::lock::lock_unpoisoned;

/// Shared by the thread that compiles and by the readers of `/readyz` and `/status`.
#[derive(Debug, Clone, Default)]
pub struct CompileProgress(Arc<Mutex<Option<Batch>>>);

#[derive(Debug)]
struct Batch {
    plugins: BTreeSet<Digest>,
    since: Instant,
}

/// Plugins that are compiled one after the other. Dropping it ends the batch, even if some were not compiled.
#[derive(Debug)]
#[must_use = "dropping it says that nothing is compiled any more"]
pub(super) struct CompileBatch<'a>(&'a CompileProgress);

impl CompileProgress {
    /// Starts a batch of these plugins.
    pub(super) fn begin_batch(&self, plugins: BTreeSet<Digest>) -> CompileBatch<'_> {
        let since = Instant::now();
        *self.lock_batch() = Some(Batch { plugins, since });
        CompileBatch(self)
    }

    /// The plugins that are being compiled; `None` if there are none.
    #[must_use]
    pub fn status(&self) -> Option<Compiling> {
        let batch = self.lock_batch();
        let Batch { plugins, since } = batch.as_ref()?;
        (!plugins.is_empty()).then(|| Compiling {
            plugins: plugins.len(),
            seconds: since.elapsed().as_secs(),
        })
    }

    fn lock_batch(&self) -> MutexGuard<'_, Option<Batch>> {
        lock_unpoisoned(&self.0)
    }
}

impl CompileBatch<'_> {
    /// Marks a plugin as compiled.
    pub(super) fn mark_compiled(&self, plugin: &Digest) {
        if let Some(batch) = self.0.lock_batch().as_mut() {
            batch.plugins.remove(plugin);
        }
    }
}

impl Drop for CompileBatch<'_> {
    fn drop(&mut self) {
        *self.0.lock_batch() = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn batch_counts_down_and_ends_when_it_is_dropped() {
        let progress = CompileProgress::default();
        assert_eq!(progress.status(), None);
        let [first, second] = [Digest::of(b"a"), Digest::of(b"b")];
        let batch = progress.begin_batch([first, second].into());
        tokio::time::advance(Duration::from_millis(3900)).await;
        let status = |plugins| Some(Compiling { plugins, seconds: 3 });
        assert_eq!(progress.status(), status(2));
        batch.mark_compiled(&first);
        assert_eq!(progress.status(), status(1));
        drop(batch);
        assert_eq!(progress.status(), None, "the second was refused");
        let cached = progress.begin_batch(BTreeSet::new());
        assert_eq!(progress.status(), None);
        drop(cached);
    }
}
