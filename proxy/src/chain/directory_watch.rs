//! Reports changes in a directory, the way kubelet makes them.
//!
//! The *directory* is watched, not the files: kubelet swaps a symlink, and a watch on a file behind it only reports that the file is gone.
//! Leaves reading the files to its users.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

/// The directory is read again after this time even without an event: some network and overlay file systems report none, and a watch is
/// lost when the directory itself is replaced.
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The writer counts as done when nothing has changed for this long …
const SETTLE_PAUSE: Duration = Duration::from_millis(20);
/// … but a change is reported after this time at the latest.
const MAX_SETTLE: Duration = Duration::from_millis(500);

/// Watches directories until it is dropped.
pub struct DirectoryWatch {
    directories: BTreeSet<PathBuf>,
    /// `None` if the system provides no watch; then only the poll is left.
    watcher: Option<RecommendedWatcher>,
    receiver: mpsc::Receiver<()>,
    /// Keeps the channel open without a watcher.
    _sender: mpsc::Sender<()>,
}

impl DirectoryWatch {
    /// Watches these directories from now on. A directory that does not exist yet is watched once it is created.
    pub fn new<P: AsRef<Path>>(directories: impl IntoIterator<Item = P>) -> Self {
        // Capacity 1 is enough: a pending notification also stands for the changes after it.
        let (sender, receiver) = mpsc::channel(1);
        let changed = sender.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| is_change(event.kind)) {
                let _ = changed.try_send(());
            }
        });
        let watcher = watcher.inspect_err(|error| {
            warn!(%error, seconds = POLL_INTERVAL.as_secs(), "failed to watch files; polling for changes instead");
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
        watch.renew_watches();
        watch
    }

    /// Waits for a change, or for half a minute. The caller reads the directory again in both cases. Cancel-safe.
    pub async fn wait_for_change(&mut self) {
        self.changed_within(POLL_INTERVAL).await;
    }

    /// Like [`Self::wait_for_change`], but waits for at most `longest`.
    pub(super) async fn changed_within(&mut self, longest: Duration) {
        if timeout(longest, self.wait_until_settled()).await.is_err() {
            self.renew_watches();
        }
    }

    /// Waits for a change, and then until the writer seems to be done.
    async fn wait_until_settled(&mut self) {
        if self.receiver.recv().await.is_none() {
            return std::future::pending().await;
        }
        let settled = async { while let Ok(Some(())) = timeout(SETTLE_PAUSE, self.receiver.recv()).await {} };
        // Both outcomes end the wait: the directory has settled, or the maximum time has passed.
        let _ = timeout(MAX_SETTLE, settled).await;
    }

    /// Watches the directories (again), because one may have been created or replaced. Watching a directory twice does no harm.
    fn renew_watches(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        for directory in &self.directories {
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                debug!(directory = %directory.display(), %error, "failed to watch directory; retrying with the next poll");
            }
        }
    }
}

/// Whether the event is a change. Reading is an event too, and our own reads must not trigger another read.
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

    /// Far above what a busy machine needs; a test that waits this long has failed.
    const TEST_TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn swapped_symlink_is_change() {
        let mut mount = Mount::new();
        mount.publish([("chain.yaml", b"1".to_vec())]);
        let mut watch = DirectoryWatch::new([mount.path()]);
        for content in ["2", "3"] {
            mount.publish([("chain.yaml", content.as_bytes().to_vec())]);
            timeout(TEST_TIMEOUT, watch.changed_within(TEST_TIMEOUT * 2))
                .await
                .expect("the swap was not noticed");
        }
    }

    #[tokio::test]
    async fn directory_is_watched_once_it_is_created() {
        let mount = Mount::new();
        let late = mount.path().join("late");
        let mut watch = DirectoryWatch::new([&late]);
        std::fs::create_dir(&late).unwrap();
        watch.changed_within(Duration::ZERO).await;
        std::fs::write(late.join("file"), "content").unwrap();
        timeout(TEST_TIMEOUT, watch.changed_within(TEST_TIMEOUT * 2))
            .await
            .expect("the file was not noticed");
    }

    #[test]
    fn write_is_reported_as_change_and_read_is_not() {
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
