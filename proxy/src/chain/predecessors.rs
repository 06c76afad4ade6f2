//! The record that a sidecar leaves for its successor in the same pod: that a sidecar was there, and under which chains clients have read
//! from it.
//!
//! Leaves the consequences to `handle.rs` (its writes may still be carried out) and to callers of [`Snapshot::is_first`] (clients may have
//! read under another view).

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use ctrlmesh_contract::Digest;

use super::snapshot::Snapshot;

/// File name of the record in the directory.
const RECORD_FILE: &str = "chain";
/// Temporary name under which the record is written first.
const TEMPORARY_FILE: &str = ".chain";
/// Content of the record after a second chain; before that, it is the only chain's digest.
const SEVERAL_CHAINS: &str = "several";
/// Upper bound for the record's size.
const MAX_RECORD_BYTES: u64 = 128;

/// The sidecars that ran in this pod before.
#[derive(Debug)]
pub struct PredecessorRecord {
    directory: Option<PathBuf>,
    chains: Chains,
    /// Requests are served only once a chain has this entry; until then there is nothing to record.
    awaited: Option<String>,
    has_served: AtomicBool,
}

/// The chains that the earlier sidecars had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chains {
    /// No sidecar ran before.
    None,
    /// All earlier sidecars had this one.
    One(Digest),
    /// There was more than one, or the number is unknown.
    Several,
}

impl PredecessorRecord {
    /// Without a record: each start counts as the pod's first.
    #[must_use]
    pub const fn without_record() -> Self {
        Self::with_chains(None, Chains::None)
    }

    const fn with_chains(directory: Option<PathBuf>, chains: Chains) -> Self {
        Self {
            directory,
            chains,
            awaited: None,
            has_served: AtomicBool::new(false),
        }
    }

    /// Adds that requests are served only once a chain has this entry.
    #[must_use]
    pub fn await_entry(self, entry: Option<String>) -> Self {
        Self { awaited: entry, ..self }
    }

    /// Reads the record in this directory, and creates the directory if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created or the record cannot be read.
    pub fn open(directory: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let chains = match read_record(&directory.join(RECORD_FILE))?.as_deref().map(str::parse) {
            None => Chains::None,
            Some(Ok(digest)) => Chains::One(digest),
            Some(Err(_)) => Chains::Several,
        };
        Ok(Self::with_chains(Some(directory.to_owned()), chains))
    }

    /// Whether a sidecar ran in this pod before this one.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.chains != Chains::None
    }

    /// Whether the earlier sidecars had no other chain than this one.
    pub(super) fn is_same(&self, snapshot: &Snapshot) -> bool {
        match self.chains {
            Chains::None => true,
            Chains::One(digest) => digest == digest_of(snapshot),
            Chains::Several => false,
        }
    }

    /// Records a chain that is about to come into force. This happens before it does, so that clients never read under a chain that is not
    /// recorded.
    pub(super) fn record(&self, snapshot: &Snapshot) {
        let Some(directory) = &self.directory else { return };
        if !self.is_served(snapshot) {
            return;
        }
        let record = if snapshot.is_first() {
            digest_of(snapshot).to_string()
        } else {
            SEVERAL_CHAINS.to_owned()
        };
        if let Err(error) = write_record(directory, &record) {
            tracing::warn!(
                directory = %directory.display(),
                %error,
                "failed to save the state of the chain: clients may miss a change of their shard if this sidecar is restarted"
            );
        }
    }

    /// Whether clients read under a chain. They do from the first chain with the awaited entry on, even if a later chain lacks it.
    fn is_served(&self, snapshot: &Snapshot) -> bool {
        let awaited = self.awaited.as_ref();
        let is_served = self.is_there() || awaited.is_none_or(|name| snapshot.has_entry_named(name));
        self.has_served.fetch_or(is_served, Ordering::AcqRel) || is_served
    }
}

/// Digest of the pod's entries, independent of the document's other content.
fn digest_of(snapshot: &Snapshot) -> Digest {
    let entries = snapshot.entries().iter().map(|entry| {
        let policy = entry.on_failure.name();
        format!(
            "{} {} {} {} {policy}\n",
            entry.name, entry.order, entry.digest, entry.settings_hash
        )
    });
    Digest::of(entries.collect::<String>().as_bytes())
}

fn read_record(record: &Path) -> io::Result<Option<String>> {
    let file = match File::open(record) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES).read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

fn write_record(directory: &Path, record: &str) -> io::Result<()> {
    let temporary = directory.join(TEMPORARY_FILE);
    let mut file = File::create(&temporary)?;
    file.write_all(record.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, directory.join(RECORD_FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(is_first: bool) -> Snapshot {
        let mut snapshot = Snapshot::new(7, Digest::of(b"document"), Vec::new());
        snapshot.is_first = is_first;
        snapshot
    }

    #[test]
    fn later_sidecar_knows_of_only_chain() {
        let directory = tempfile::tempdir().unwrap();
        let open = || PredecessorRecord::open(&directory.path().join("state")).unwrap();
        let first = open();
        assert!(!first.is_there() && first.is_same(&snapshot(true)));
        first.record(&snapshot(true));
        let second = open();
        assert!(second.is_there() && second.is_same(&snapshot(true)));
    }

    #[test]
    fn later_sidecar_knows_of_several_chains() {
        let directory = tempfile::tempdir().unwrap();
        let open = || PredecessorRecord::open(directory.path()).unwrap();
        open().record(&snapshot(true));
        open().record(&snapshot(false));
        let third = open();
        assert!(third.is_there() && !third.is_same(&snapshot(true)));
    }

    #[test]
    fn unreadable_record_counts_as_several_chains() {
        let directory = tempfile::tempdir().unwrap();
        for record in [&b""[..], b"sha256:12", b"\xff"] {
            fs::write(directory.path().join(RECORD_FILE), record).unwrap();
            let predecessors = PredecessorRecord::open(directory.path()).unwrap();
            assert!(
                predecessors.is_there() && !predecessors.is_same(&snapshot(true)),
                "{record:?}"
            );
        }
    }

    #[test]
    fn predecessor_record_without_directory_keeps_nothing() {
        let predecessors = PredecessorRecord::without_record();
        predecessors.record(&snapshot(true));
        assert!(!predecessors.is_there() && predecessors.is_same(&snapshot(true)));
    }
}
