//! Keeps the chain up to date: decides when to read the directory, and applies or refuses the result.
//!
//! Leaves the directory's content to `source.rs`, and noticing changes to `directory_watch.rs`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::directory_watch::{DirectoryWatch, POLL_INTERVAL};
use super::error::Error;
use super::handle::ChainHandle;
use super::snapshot::Snapshot;
use super::source::{Labels, LoadAttempt, SeenFiles, Source};

/// Called with each new chain before it comes into force, so that worker threads can start instances of its plugins. An error refuses the
/// chain.
pub type Prepare = Arc<dyn Fn(Arc<Snapshot>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Intervals and time limits.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// The directory is read again after this time without a change.
    pub poll: Duration,
    /// The directory is read again after this time if a failure may be transient.
    pub retry: Duration,
    /// Worker threads must take over a chain within this time. They do it between requests.
    pub prepare: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            poll: POLL_INTERVAL,
            retry: Duration::from_secs(2),
            prepare: Duration::from_secs(10),
        }
    }
}

/// Keeps the chain up to date until cancelled: reads the directory at once, after each change, and periodically.
///
/// Never fails: errors are recorded in the handle, and the last good chain stays in force.
pub async fn run(
    source: Source,
    handle: Arc<ChainHandle>,
    prepare: Prepare,
    timing: Timing,
    cancel: CancellationToken,
) {
    // Created before the first read, so that no change in between is missed.
    let mut watch = DirectoryWatch::new(watched_directories(&source));
    let mut updater = Updater::new(source, handle, prepare, timing);
    let keep_up = async {
        loop {
            let wait = match updater.update().await {
                Outcome::Settled => timing.poll,
                Outcome::Transient => timing.retry.min(timing.poll),
            };
            watch.changed_within(wait).await;
        }
    };
    tokio::select! {
        () = cancel.cancelled() => {}
        () = keep_up => {}
    }
}

/// The directories whose changes matter.
fn watched_directories(source: &Source) -> Vec<&Path> {
    let location = source.location();
    let labels = match &location.labels {
        Labels::File(path) => path.parent(),
        Labels::Fixed(_) => None,
    };
    [location.directory.as_path()].into_iter().chain(labels).collect()
}

/// Whether another attempt is useful before something changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Settled,
    Transient,
}

struct Updater {
    source: Arc<Source>,
    handle: Arc<ChainHandle>,
    prepare: Prepare,
    timing: Timing,
    /// The input that was refused last, permanently: it is not tried (and logged) again until something changes.
    refused: Option<SeenFiles>,
}

impl Updater {
    fn new(source: Source, handle: Arc<ChainHandle>, prepare: Prepare, timing: Timing) -> Self {
        Self {
            source: Arc::new(source),
            handle,
            prepare,
            timing,
            refused: None,
        }
    }

    /// Reads the directory once, and puts a valid new chain into force.
    async fn update(&mut self) -> Outcome {
        let previous = self.handle.current();
        let (source, before) = (Arc::clone(&self.source), self.refused.take());
        let task = tokio::task::spawn_blocking(move || {
            let attempt = source.load_if_changed(&previous, before.as_ref());
            (attempt, before)
        });
        match task.await {
            Ok((Some(attempt), _)) => self.finish_attempt(attempt).await,
            Ok((None, before)) => {
                self.refused = before;
                Outcome::Settled
            }
            Err(error) => {
                self.handle.refuse(None, &Error::Task(error.to_string()));
                Outcome::Transient
            }
        }
    }

    async fn finish_attempt(&mut self, attempt: LoadAttempt) -> Outcome {
        let result = match attempt.result {
            Ok(Some(snapshot)) => self.put_into_force(snapshot).await,
            Ok(None) => {
                self.handle.clear_refusal();
                Ok(())
            }
            Err(error) => Err(error),
        };
        // Drops the state and the metrics of entries that are gone, or that were tried in vain.
        let current = self.handle.current();
        self.handle.metrics().keep_series_of(&current);
        self.source.host().states.retain(|name| current.entry(name).is_some());
        let Err(error) = result else { return Outcome::Settled };
        self.handle.refuse(attempt.generation, &error);
        if error.is_transient() {
            return Outcome::Transient;
        }
        self.refused = Some(attempt.seen);
        Outcome::Settled
    }

    async fn put_into_force(&self, snapshot: Arc<Snapshot>) -> Result<(), Error> {
        match timeout(self.timing.prepare, (self.prepare)(Arc::clone(&snapshot))).await {
            Ok(Ok(())) => {
                self.handle.apply(snapshot);
                Ok(())
            }
            Ok(Err(problem)) => Err(Error::Prepare(problem)),
            Err(_) => Err(Error::Prepare(format!(
                "they took longer than {} s",
                self.timing.prepare.as_secs_f64()
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
