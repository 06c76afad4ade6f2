//! The compile cache: sealed artifacts on disk, named by the plugin's digest and the engine's compatibility hash.
//!
//! Guarantees: an artifact that [`Cache::read`] returns was written, unchanged, by a process that could read our key file. A file that was
//! damaged, forged, renamed or sealed with another key is reported as [`Lookup::Refused`] and never used. Leaves compiling to `compile.rs`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aws_lc_rs::{constant_time, hmac, rand};

use super::artifact::Artifact;
use super::error::Error;
use super::sealed_file::{MemoryFile, SealedFile, read_in_steps};

/// Name of the key file inside the cache.
const KEY_FILE: &str = "seal.key";
/// Length of the key in bytes: the output size of SHA-256.
const KEY_BYTES: usize = 32;
/// Length of a seal in bytes.
const SEAL_BYTES: usize = 32;
/// File name extension of artifacts.
const SUFFIX: &str = "cwasm";
/// Maximum number of artifacts; the longest unused are removed first. Two generations of a chain with many plugins fit.
const MAX_ARTIFACTS: usize = 32;
/// Maximum size of an artifact that is read back. An artifact is about four times as large as its source.
pub(crate) const MAX_ARTIFACT_BYTES: u64 = 128 * 1024 * 1024;

pub(crate) struct Cache {
    directory: PathBuf,
    key: hmac::Key,
}

/// Result of a lookup.
pub(crate) enum Lookup {
    Hit(Artifact),
    /// The artifact is not in the cache, or was made for another engine.
    Miss,
    /// There is a file, but its seal is not ours.
    Refused(String),
}

impl Cache {
    /// Opens the cache. Creates it (mode 0700, with a fresh key) if it does not exist.
    ///
    /// # Errors
    /// Other users may write to the directory or read its key, or a file operation fails.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|source| io_error(directory, source))?;
        check_private(directory, 0o022, "others may write to it")?;
        let key = read_or_make_key(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            key: hmac::Key::new(hmac::HMAC_SHA256, &key),
        })
    }

    /// Whether [`Cache::read`] would return an artifact. Never has it in memory as a whole.
    pub(crate) fn has_artifact(&self, name: &str) -> bool {
        self.is_sealed(name).unwrap_or(false)
    }

    fn is_sealed(&self, name: &str) -> io::Result<bool> {
        let mut file = File::open(self.path(name))?;
        if file.metadata()?.len() > MAX_ARTIFACT_BYTES + SEAL_BYTES as u64 {
            return Ok(false);
        }
        let mut seal = [0; SEAL_BYTES];
        file.read_exact(&mut seal)?;
        let mut expected = self.begin_seal(name);
        read_in_steps(file, |step| {
            expected.update(step);
            Ok(())
        })?;
        Ok(constant_time::verify_slices_are_equal(expected.sign().as_ref(), &seal).is_ok())
    }

    /// Size of the file in bytes; 0 if there is none.
    pub(crate) fn size(&self, name: &str) -> usize {
        let file = fs::metadata(self.path(name));
        file.map_or(0, |file| usize::try_from(file.len()).unwrap_or(usize::MAX))
    }

    /// Looks an artifact up and checks its seal.
    pub(crate) fn read(&self, name: &str) -> Lookup {
        let path = self.path(name);
        let artifact = match self.read_verified(name, &path) {
            Ok(artifact) => artifact,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Lookup::Miss,
            Err(error) => return Lookup::Refused(error.to_string()),
        };
        // The modification time marks the artifact as used for `prune`; an artifact that cannot be marked still works.
        let _ = File::options()
            .append(true)
            .open(&path)
            .and_then(|file| file.set_modified(SystemTime::now()));
        Lookup::Hit(artifact)
    }

    fn read_verified(&self, name: &str, path: &Path) -> io::Result<Artifact> {
        let mut file = File::open(path)?;
        let limit = MAX_ARTIFACT_BYTES + SEAL_BYTES as u64;
        if file.metadata()?.len() > limit {
            return Err(io::Error::other(format!("it is larger than {limit} bytes")));
        }
        let mut seal = [0; SEAL_BYTES];
        file.read_exact(&mut seal).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("it is truncated"),
            _ => error,
        })?;
        let mut code = MemoryFile::create();
        code.write_from(file.take(MAX_ARTIFACT_BYTES))?;
        // The contents of the sealed file are checked, and not what was read: until then another process of this user can change them.
        let code = code.seal()?;
        if constant_time::verify_slices_are_equal(self.seal_of(name, &code)?.as_ref(), &seal).is_err() {
            return Err(io::Error::other(
                "its seal does not fit: it was damaged, or made by somebody else",
            ));
        }
        Ok(Artifact::seal_verified(code))
    }

    /// Stores an artifact. It is written under another name and then renamed, so that a reader sees all of it or nothing.
    ///
    /// # Errors
    /// A file operation fails.
    pub(crate) fn write(&self, name: &str, artifact: &Artifact) -> Result<(), Error> {
        let path = self.path(name);
        let temporary = self.directory.join(format!(".{name}.{}", random_hex()?));
        let code = artifact.code();
        let seal = self.seal_of(name, code).map_err(|source| io_error(&path, source))?;
        let written = create_private(&temporary)
            .and_then(|mut file| {
                file.write_all(seal.as_ref())?;
                code.visit(|step| file.write_all(step))
            })
            .and_then(|()| fs::rename(&temporary, &path));
        if let Err(source) = written {
            let _ = fs::remove_file(&temporary);
            return Err(io_error(&path, source));
        }
        self.remove_oldest();
        Ok(())
    }

    /// Removes an artifact that is unusable.
    pub(crate) fn remove(&self, name: &str) {
        // An artifact that cannot be removed is refused again next time, which is safe.
        let _ = fs::remove_file(self.path(name));
    }

    /// The seal covers the name (digest of the source, engine) and the code, so that no artifact can pass for another.
    fn seal_of(&self, name: &str, code: &SealedFile) -> io::Result<hmac::Tag> {
        let mut seal = self.begin_seal(name);
        code.visit(|step| {
            seal.update(step);
            Ok(())
        })?;
        Ok(seal.sign())
    }

    fn begin_seal(&self, name: &str) -> hmac::Context {
        let mut seal = hmac::Context::with_key(&self.key);
        seal.update(name.as_bytes());
        seal.update(&[0]);
        seal
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.{SUFFIX}"))
    }

    /// Removes the longest unused artifacts above [`MAX_ARTIFACTS`]. Best effort: a cache that is too large still works.
    fn remove_oldest(&self) {
        let Ok(files) = fs::read_dir(&self.directory) else {
            return;
        };
        let mut artifacts: Vec<(SystemTime, PathBuf)> = files
            .flatten()
            .map(|file| file.path())
            .filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX))
            .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
            .collect();
        artifacts.sort_unstable_by(|a, b| b.cmp(a));
        for (_, path) in artifacts.into_iter().skip(MAX_ARTIFACTS) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Reads the key, or creates one if there is none. Two processes that start at once end up with the same key: it is written under another
/// name and linked into place, which only one of them can do.
fn read_or_make_key(directory: &Path) -> Result<[u8; KEY_BYTES], Error> {
    let path = directory.join(KEY_FILE);
    if !path.exists() {
        let mut key = [0; KEY_BYTES];
        rand::fill(&mut key).map_err(|_| Error::Engine("no random numbers".into()))?;
        let temporary = directory.join(format!(".{KEY_FILE}.{}", random_hex()?));
        let linked = create_private(&temporary)
            .and_then(|mut file| file.write_all(&key))
            .and_then(|()| fs::hard_link(&temporary, &path));
        let _ = fs::remove_file(&temporary);
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io_error(&path, error)),
            Ok(()) | Err(_) => {}
        }
    }
    check_private(&path, 0o077, "others may read the key")?;
    let bytes = read_bounded(&path, KEY_BYTES as u64).map_err(|source| io_error(&path, source))?;
    <[u8; KEY_BYTES]>::try_from(bytes).map_err(|bytes| Error::CacheDirectory {
        path,
        reason: format!(
            "the key has {} bytes, not {KEY_BYTES}: remove the directory, it will be made anew",
            bytes.len()
        ),
    })
}

/// Refuses a file that belongs to another user, or whose mode has one of the bits in `forbidden`.
fn check_private(path: &Path, forbidden: u32, reason: &str) -> Result<(), Error> {
    let file = fs::symlink_metadata(path).map_err(|source| io_error(path, source))?;
    // The owner of this process's entry in /proc is the effective user; std has no geteuid.
    let own = fs::metadata("/proc/self").map_err(|source| io_error(Path::new("/proc/self"), source))?;
    let refuse = |reason: String| Error::CacheDirectory {
        path: path.to_owned(),
        reason,
    };
    if file.file_type().is_symlink() {
        return Err(refuse("it is a symbolic link: name the directory itself".into()));
    }
    if file.uid() != own.uid() && file.uid() != 0 {
        return Err(refuse(format!(
            "it belongs to user {}, not to us ({})",
            file.uid(),
            own.uid()
        )));
    }
    if file.mode() & forbidden != 0 {
        let mode = file.mode() & 0o7777;
        return Err(refuse(format!(
            "{reason} (mode {mode:04o}): name a directory of our own, it is made with mode 0700"
        )));
    }
    Ok(())
}

fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it is larger than {limit} bytes")));
    }
    Ok(bytes)
}

fn random_hex() -> Result<String, Error> {
    let mut bytes = [0; 8];
    rand::fill(&mut bytes).map_err(|_| Error::Engine("no random numbers".into()))?;
    Ok(hex::encode(bytes))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
