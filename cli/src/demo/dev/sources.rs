//! Finds changes of files in the checkout. The files are looked at again and again, which needs no tool, and works on every file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::Error;

/// Folders and files from which the sidecar and the manager are built.
const PROGRAMS: [&str; 9] = [
    "contract",
    "manager",
    "plugins",
    "proxy",
    "sdk",
    "wire",
    "wit",
    "Cargo.lock",
    "Cargo.toml",
];

/// Further folders from which `ctrlmesh` is built, with the API server and the controller.
const COMMAND: [&str; 2] = ["cli", "testkit"];

const EVERY: Duration = Duration::from_millis(500);

/// The programs to be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    /// The sidecar and the manager.
    Programs,
    /// The sidecar, the manager and `ctrlmesh` itself.
    Command,
}

/// The files as they were when they were built last.
#[derive(Debug)]
pub(super) struct Sources {
    root: PathBuf,
    built: Newest,
}

/// When the newest file of each part was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Newest {
    programs: SystemTime,
    command: SystemTime,
}

impl Sources {
    /// The checkout at `root`, as it is now.
    pub(super) fn in_folder(root: &Path) -> Result<Self, Error> {
        let root = root.to_owned();
        let built = newest_of_parts(&root)?;
        Ok(Self { root, built })
    }

    /// Waits until a file is newer than those that were built, and no other one was written meanwhile.
    pub(super) async fn changed(&mut self) -> Result<Changed, Error> {
        let mut tick = tokio::time::interval(EVERY);
        let mut last = self.built;
        loop {
            tick.tick().await;
            let now = newest_of_parts(&self.root)?;
            if now != self.built && now == last {
                let before = std::mem::replace(&mut self.built, now);
                return Ok(if now.command == before.command {
                    Changed::Programs
                } else {
                    Changed::Command
                });
            }
            last = now;
        }
    }
}

fn newest_of_parts(root: &Path) -> Result<Newest, Error> {
    let of = |parts: &[&str]| {
        let times = parts.iter().map(|part| newest_in(&root.join(part)));
        times
            .collect::<Result<Vec<_>, _>>()
            .map(|times| times.into_iter().max().unwrap_or(SystemTime::UNIX_EPOCH))
    };
    Ok(Newest {
        programs: of(&PROGRAMS)?,
        command: of(&COMMAND)?,
    })
}

/// When the newest file at or below `path` was written. Hidden files and those of editors do not count.
fn newest_in(path: &Path) -> Result<SystemTime, Error> {
    let found = match fs::metadata(path) {
        Ok(found) => found,
        // The folder was removed meanwhile, or a part is not there.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(SystemTime::UNIX_EPOCH),
        Err(error) => return Err(Error::file("read", path)(error)),
    };
    if !found.is_dir() {
        return found.modified().map_err(Error::file("read", path));
    }
    let mut newest = SystemTime::UNIX_EPOCH;
    for entry in fs::read_dir(path).map_err(Error::file("read", path))? {
        let entry = entry.map_err(Error::file("read", path))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(['.', '#']) && !name.ends_with('~') && name != "target" {
            newest = newest.max(newest_in(&entry.path())?);
        }
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, seconds: u64) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "x").unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn changed_file_decides_what_is_built() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proxy/src/main.rs", 1);
        write(root.path(), "cli/src/main.rs", 1);
        let mut sources = Sources::in_folder(root.path()).unwrap();
        for (seconds, file, expected) in [
            (2, "proxy/src/deep/er.rs", Changed::Programs),
            (3, "testkit/src/lib.rs", Changed::Command),
            (4, "Cargo.lock", Changed::Programs),
        ] {
            write(root.path(), file, seconds);
            assert_eq!(sources.changed().await.unwrap(), expected, "{file}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn files_of_editors_and_other_folders_are_no_change() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "proxy/src/main.rs", 1);
        let mut sources = Sources::in_folder(root.path()).unwrap();
        for file in [
            "proxy/src/.main.rs.swp",
            "proxy/src/main.rs~",
            "docs/install.md",
            "proxy/target/x",
        ] {
            write(root.path(), file, 2);
        }
        let waited = tokio::time::timeout(4 * EVERY, sources.changed()).await;
        assert!(waited.is_err(), "{waited:?}");
    }
}
