//! Tells when something in a directory has changed, the way kubelet changes it.
//!
//! The *directory* is watched, not the files: kubelet swaps a symlink, and a watch on a file behind it only hears that the file
//! is gone. Leaves what is found there to its users.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

/// After so long without a change it is time to look anyway: a file system may not tell (some network and overlay ones
/// don't), and a watch is lost when somebody replaces the directory itself.
pub(super) const POLL: Duration = Duration::from_secs(30);

/// A writer is done when nothing has changed for so long …
const QUIET: Duration = Duration::from_millis(20);
/// … but it is not waited for longer than this.
const MAX_SETTLE: Duration = Duration::from_millis(500);

/// Watches directories. Ends with its drop.
pub struct DirectoryWatch {
    directories: BTreeSet<PathBuf>,
    /// `None` if the system gives no watch; then only the poll is left.
    watcher: Option<RecommendedWatcher>,
    receiver: mpsc::Receiver<()>,
    /// Keeps the channel open without a watcher.
    _sender: mpsc::Sender<()>,
}

impl DirectoryWatch {
    /// Watches these directories, from now on. One that is not there yet is watched when it has come.
    pub fn new<P: AsRef<Path>>(directories: impl IntoIterator<Item = P>) -> Self {
        // One place is enough: a change that nobody has looked at yet stands for those after it.
        let (sender, receiver) = mpsc::channel(1);
        let changed = sender.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| is_change(event.kind)) {
                let _ = changed.try_send(());
            }
        });
        let watcher = watcher.inspect_err(|error| {
            warn!(%error, seconds = POLL.as_secs(), "failed to watch files; polling for changes instead");
        });
        let directories = directories
            .into_iter()
            .map(|directory| directory.as_ref().to_owned())
            .collect();
        let mut watch = Self {
            directories,
            watcher: watcher.ok(),
            receiver,
            _sender: sender,
        };
        watch.renew();
        watch
    }

    /// Waits for a change, or for half a minute: look again, whichever it was. Safe to cancel.
    pub async fn changed(&mut self) {
        self.changed_within(POLL).await;
    }

    /// Like [`Self::changed`], with another longest wait.
    pub(super) async fn changed_within(&mut self, longest: Duration) {
        if timeout(longest, self.settled()).await.is_err() {
            self.renew();
        }
    }

    /// Waits for a change, and then until the writer seems to be done.
    async fn settled(&mut self) {
        if self.receiver.recv().await.is_none() {
            return std::future::pending().await;
        }
        let quiet = async { while let Ok(Some(())) = timeout(QUIET, self.receiver.recv()).await {} };
        // Both ways are an end: it is quiet, or it was waited for long enough.
        let _ = timeout(MAX_SETTLE, quiet).await;
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

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, ModifyKind, RemoveKind, RenameMode};

    use super::*;
    use crate::chain::tests::mount::Mount;

    /// Far above what a busy machine needs; a test that waits so long has failed.
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn swapped_symlink_is_change() {
        let mut mount = Mount::new();
        mount.publish([("chain.yaml", b"1".to_vec())]);
        let mut watch = DirectoryWatch::new([mount.path()]);
        for content in ["2", "3"] {
            mount.publish([("chain.yaml", content.as_bytes().to_vec())]);
            timeout(PATIENCE, watch.changed_within(PATIENCE * 2))
                .await
                .expect("the swap was not noticed");
        }
    }

    #[tokio::test]
    async fn directory_that_comes_later_is_watched_then() {
        let mount = Mount::new();
        let late = mount.path().join("late");
        let mut watch = DirectoryWatch::new([&late]);
        std::fs::create_dir(&late).unwrap();
        watch.changed_within(Duration::ZERO).await;
        std::fs::write(late.join("file"), "content").unwrap();
        timeout(PATIENCE, watch.changed_within(PATIENCE * 2))
            .await
            .expect("the file was not noticed");
    }

    #[test]
    fn reading_is_no_change_and_writing_is() {
        for kind in [AccessKind::Any, AccessKind::Read, AccessKind::Open(AccessMode::Any)] {
            assert!(!is_change(EventKind::Access(kind)), "{kind:?}");
        }
        assert!(!is_change(EventKind::Access(AccessKind::Close(AccessMode::Read))));
        for kind in [
            EventKind::Access(AccessKind::Close(AccessMode::Write)),
            EventKind::Create(CreateKind::Any),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)),
            EventKind::Remove(RemoveKind::Folder),
            EventKind::Other,
            EventKind::Any,
        ] {
            assert!(is_change(kind), "{kind:?}");
        }
    }
}
