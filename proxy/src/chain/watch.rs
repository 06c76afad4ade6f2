//! When to look at the directory again: after a change in it, and now and then.
//!
//! The *directory* is watched, not the document: kubelet swaps a symlink, and a watch on a file behind it only hears that the
//! file is gone. Leaves what is found there to `source.rs`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::error::Error;
use super::handle::ChainHandle;
use super::snapshot::Snapshot;
use super::source::{Labels, Look, Seen, Source};

/// Looks at the directory without being told to: a file system may not tell (some network and overlay ones don't), and a
/// watch is lost when somebody replaces the directory itself.
pub const POLL: Duration = Duration::from_secs(30);

/// Looks again so soon after a failure that may pass by itself.
const RETRY: Duration = Duration::from_secs(2);

/// A writer is done when nothing has changed for so long …
const QUIET: Duration = Duration::from_millis(20);
/// … but it is not waited for longer than this.
const MAX_SETTLE: Duration = Duration::from_millis(500);

/// Worker threads take a chain over (make and configure their instances) within this time. They do it between requests.
const PREPARE: Duration = Duration::from_secs(10);

/// Called with each new chain before it comes into force, so that worker threads can make their instances of its plugins.
/// An error refuses the chain.
pub type Prepare = Arc<dyn Fn(Arc<Snapshot>) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Keeps the chain up to date until cancelled: looks at once, after each change, and every `poll` ([`POLL`] but in tests).
///
/// Never fails: what is wrong is noted in the handle, and the last good chain goes on.
pub async fn run(
    source: Source,
    handle: Arc<ChainHandle>,
    prepare: Prepare,
    poll: Duration,
    cancel: CancellationToken,
) {
    let mut changes = Changes::watch(directories(&source));
    let mut updater = Updater {
        source: Arc::new(source),
        handle,
        prepare,
        refused: None,
    };
    loop {
        let transient = tokio::select! {
            () = cancel.cancelled() => return,
            transient = updater.update() => transient,
        };
        let wait = if transient { RETRY.min(poll) } else { poll };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = changes.settled() => {}
            () = sleep(wait) => changes.renew(),
        }
    }
}

/// The directories whose changes matter.
fn directories(source: &Source) -> BTreeSet<PathBuf> {
    let place = source.place();
    let labels = match &place.labels {
        Labels::File(path) => path.parent().map(Path::to_owned),
        Labels::Fixed(_) => None,
    };
    [place.directory.clone()].into_iter().chain(labels).collect()
}

struct Updater {
    source: Arc<Source>,
    handle: Arc<ChainHandle>,
    prepare: Prepare,
    /// What was refused last, for good: it is not tried (and complained about) again until something changes.
    refused: Option<Seen>,
}

impl Updater {
    /// Looks once, and puts into force what is good. Whether it failed in a way that may pass by itself.
    async fn update(&mut self) -> bool {
        let previous = self.handle.current();
        let (source, before) = (Arc::clone(&self.source), self.refused.take());
        let task = tokio::task::spawn_blocking(move || {
            let look = source.look(&previous, before.as_ref());
            (look, before)
        });
        let look = match task.await {
            Ok((Some(look), _)) => look,
            Ok((None, before)) => {
                self.refused = before;
                return false;
            }
            Err(error) => {
                self.handle.refuse(None, &Error::Task(error.to_string()));
                return true;
            }
        };
        self.take(look).await
    }

    async fn take(&mut self, look: Look) -> bool {
        let result = match look.result {
            Ok(Some(snapshot)) => self.put_into_force(snapshot).await,
            Ok(None) => {
                self.handle.confirm();
                Ok(())
            }
            Err(error) => Err(error),
        };
        let transient = match result {
            Ok(()) => false,
            Err(error) => {
                self.handle.refuse(look.generation, &error);
                if !error.is_transient() {
                    self.refused = Some(look.seen);
                }
                error.is_transient()
            }
        };
        // State of entries that are gone, or that were tried in vain.
        let current = self.handle.current();
        self.source.host().states.retain(|name| current.entry(name).is_some());
        transient
    }

    async fn put_into_force(&self, snapshot: Arc<Snapshot>) -> Result<(), Error> {
        match timeout(PREPARE, (self.prepare)(Arc::clone(&snapshot))).await {
            Ok(Ok(())) => {
                self.handle.apply(snapshot);
                Ok(())
            }
            Ok(Err(problem)) => Err(Error::Prepare(problem)),
            Err(_) => Err(Error::Prepare(format!("they took longer than {} s", PREPARE.as_secs()))),
        }
    }
}

/// Tells when something changed in some directories.
struct Changes {
    directories: BTreeSet<PathBuf>,
    /// `None` if the system gives no watch; then only the poll is left.
    watcher: Option<RecommendedWatcher>,
    receiver: mpsc::Receiver<()>,
    /// Kept so that the channel stays open without a watcher.
    _sender: mpsc::Sender<()>,
}

impl Changes {
    fn watch(directories: BTreeSet<PathBuf>) -> Self {
        // One place is enough: a change that nobody has looked at yet stands for those after it.
        let (sender, receiver) = mpsc::channel(1);
        let changed = sender.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| is_change(event.kind)) {
                let _ = changed.try_send(());
            }
        });
        let watcher = watcher.inspect_err(|error| {
            warn!(%error, seconds = POLL.as_secs(), "no file watch: changes of the chain are only seen by polling");
        });
        let mut changes = Self {
            directories,
            watcher: watcher.ok(),
            receiver,
            _sender: sender,
        };
        changes.renew();
        changes
    }

    /// Watches (again): a directory may have come, or have been replaced. Watching twice does no harm.
    fn renew(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        for directory in &self.directories {
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                debug!(directory = %directory.display(), %error, "a directory can't be watched yet");
            }
        }
    }

    /// Waits for a change, and then until the writer seems to be done. Safe to cancel: at worst, a change is looked at early.
    async fn settled(&mut self) {
        if self.receiver.recv().await.is_none() {
            return std::future::pending().await;
        }
        let quiet = async { while let Ok(Some(())) = timeout(QUIET, self.receiver.recv()).await {} };
        // Both ways are an end: it is quiet, or it was waited for long enough.
        let _ = timeout(MAX_SETTLE, quiet).await;
    }
}

/// Reading a file is an event too, and ours must not make us read again.
const fn is_change(kind: EventKind) -> bool {
    !matches!(
        kind,
        EventKind::Access(
            AccessKind::Any
                | AccessKind::Read
                | AccessKind::Open(_)
                | AccessKind::Other
                | AccessKind::Close(AccessMode::Any | AccessMode::Read | AccessMode::Execute | AccessMode::Other)
        )
    )
}
