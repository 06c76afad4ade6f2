//! Precompiled artifacts: made by `ctrlmesh-proxy precompile` when an image is built, and mapped from it.
//!
//! Guarantees: an artifact that [`Precompiled::artifacts`] returns belongs to the plugin that was asked for, is complete, and can be changed
//! by root alone and not by this process. Everything else is a [`RefusedArtifact`]. Why such a file is trusted like the sidecar's program:
//! docs/adr/0051-precompiled-artifacts.md.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use aws_lc_rs::digest;
use rustix::fs::{Access, AtFlags, CWD, StatxFlags};

use super::artifact::{Artifact, MappedArtifact};
use super::cache::MAX_ARTIFACT_BYTES;
use super::component_bytes;
use super::engine::{self, Engine, Processor};
use super::error::Error;
use super::plugin::Plugin;
use super::sealed_file::{SealedFile, read_in_steps};
use crate::lock::lock_unpoisoned;

/// File name extension of artifacts.
const SUFFIX: &str = "cwasm";
/// Length of the checksum that follows the code. It stands at the end because code is mapped from the start of the file.
const CHECKSUM_BYTES: usize = 32;

/// Directories with precompiled artifacts.
pub(crate) struct Precompiled {
    directories: Vec<PathBuf>,
    check: Check,
    /// Artifacts that [`Precompiled::has_artifact`] has checked, by path and name, until they are loaded. If the chain is refused before that,
    /// a later chain loads them. Only root can change them meanwhile.
    checked: Mutex<BTreeMap<(PathBuf, String), MappedArtifact>>,
}

/// Checks that only those who could replace the sidecar's program can change a file.
type Check = fn(&Path) -> Result<(), String>;

/// A file with an artifact of the plugin that was asked for, which must not be used.
pub(crate) struct RefusedArtifact {
    pub(crate) path: PathBuf,
    pub(crate) reason: String,
}

impl Precompiled {
    pub(crate) fn new(directories: &[PathBuf]) -> Self {
        Self {
            directories: directories.to_vec(),
            check: check_unchangeable,
            checked: Mutex::default(),
        }
    }

    /// Accepts files that this process could change, for tests.
    #[cfg(test)]
    fn with_changeable_files(directories: &[&Path]) -> Self {
        Self {
            directories: directories.iter().map(|directory| directory.to_path_buf()).collect(),
            check: |_| Ok(()),
            checked: Mutex::default(),
        }
    }

    /// Whether there is an artifact of this plugin (SHA-256 in hex) that passes the checks. [`Precompiled::artifacts`] does not repeat them
    /// for that one.
    pub(crate) fn has_artifact(&self, engine: &wasmtime::Engine, plugin: &str) -> bool {
        let Some(artifact) = self.artifacts(engine, plugin).find_map(Result::ok) else {
            return false;
        };
        let key = (artifact.path().to_owned(), file_name(engine, plugin));
        lock_unpoisoned(&self.checked).insert(key, artifact);
        true
    }

    /// The artifacts of this plugin (SHA-256 in hex), in the order of the directories. Each is checked when it is its turn. If there is none
    /// for this engine, one of another engine is refused, so that somebody learns of it.
    pub(crate) fn artifacts(
        &self,
        engine: &wasmtime::Engine,
        plugin: &str,
    ) -> impl Iterator<Item = Result<MappedArtifact, RefusedArtifact>> {
        let name = file_name(engine, plugin);
        let paths = self.directories.iter().map(|directory| directory.join(&name));
        let paths: Vec<PathBuf> = paths.filter(|path| path.exists()).collect();
        let other = if paths.is_empty() {
            let mut directories = self.directories.iter();
            directories.find_map(|directory| other_engine(directory, plugin))
        } else {
            None
        };
        let other = other.map(|path| {
            let reason = "it was made by another version of ctrlmesh-proxy".to_owned();
            Err(RefusedArtifact { path, reason })
        });
        let opened = paths.into_iter().map(move |path| {
            self.open(&path, &name)
                .map_err(|reason| RefusedArtifact { path, reason })
        });
        opened.chain(other)
    }

    fn open(&self, path: &Path, name: &str) -> Result<MappedArtifact, String> {
        let path = path.canonicalize().map_err(|error| error.to_string())?;
        let checked = lock_unpoisoned(&self.checked).remove(&(path.clone(), name.to_owned()));
        if let Some(artifact) = checked {
            return Ok(artifact);
        }
        (self.check)(&path)?;
        let bytes = verify_checksum(&path, name).map_err(|error| error.to_string())?;
        Ok(MappedArtifact::unchangeable_file(path, bytes))
    }
}

/// Compiles a component for any processor of this architecture, checks that it is a plugin, and writes the artifact into a directory. Returns
/// the path of the artifact.
///
/// # Errors
/// [`Error`] says what is wrong with the bytes, or which file operation failed.
pub fn precompile(wasm: &[u8], directory: &Path) -> Result<PathBuf, Error> {
    let digest = component_bytes::check_component(wasm)?;
    let refused = |error: wasmtime::Error| Error::Compile {
        digest: digest.clone(),
        detail: format!("{error:#}"),
    };
    let bytes = engine::compiling_engine(Processor::Baseline)?
        .precompile_component(wasm)
        .map_err(refused)?;
    let code = SealedFile::copy_of(&bytes).map_err(|error| refused(error.into()))?;
    let artifact = Artifact::just_compiled(code);
    let engine = Engine::new()?;
    let component = artifact.load(engine.wasmtime()).map_err(refused)?;
    Plugin::new(engine.wasmtime(), &component, engine.memory().account(), digest.clone())?;
    let name = file_name(engine.wasmtime(), digest.trim_start_matches("sha256:"));
    let path = directory.join(&name);
    write_artifact(&path, &name, &bytes).map_err(|source| Error::Io {
        path: path.clone(),
        source,
    })?;
    Ok(path)
}

fn write_artifact(path: &Path, name: &str, artifact: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o444)
        .open(&temporary)?;
    let mut checksum = checksum_of(name);
    checksum.update(artifact);
    file.write_all(artifact)?;
    file.write_all(checksum.finish().as_ref())?;
    fs::rename(&temporary, path)
}

fn file_name(engine: &wasmtime::Engine, plugin: &str) -> String {
    format!("{}.{SUFFIX}", component_bytes::artifact_name(engine, plugin))
}

/// The artifact of this plugin for another engine, if there is one.
fn other_engine(directory: &Path, plugin: &str) -> Option<PathBuf> {
    let files = fs::read_dir(directory).ok()?;
    files.flatten().map(|file| file.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(plugin) && name.ends_with(SUFFIX))
    })
}

/// The checksum covers the file's name (digest of the plugin, engine) and the code, so that a renamed file is noticed.
fn checksum_of(name: &str) -> digest::Context {
    let mut checksum = digest::Context::new(&digest::SHA256);
    checksum.update(name.as_bytes());
    checksum.update(&[0]);
    checksum
}

/// Compares the file with its checksum, and returns its size.
fn verify_checksum(path: &Path, name: &str) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let Some(code) = bytes.checked_sub(CHECKSUM_BYTES as u64).filter(|code| *code > 0) else {
        return Err(io::Error::other("it is truncated"));
    };
    if code > MAX_ARTIFACT_BYTES {
        return Err(io::Error::other(format!(
            "it is larger than {MAX_ARTIFACT_BYTES} bytes"
        )));
    }
    let mut expected = [0; CHECKSUM_BYTES];
    file.seek(SeekFrom::Start(code))?;
    file.read_exact(&mut expected)?;
    file.seek(SeekFrom::Start(0))?;
    let mut checksum = checksum_of(name);
    read_in_steps(file.take(code), |step| {
        checksum.update(step);
        Ok(())
    })?;
    if checksum.finish().as_ref() != expected {
        return Err(io::Error::other(
            "its checksum does not fit: it was damaged, truncated or renamed",
        ));
    }
    usize::try_from(bytes).map_err(io::Error::other)
}

/// Refuses a file that is not of the image, or that somebody else than root could change or replace, or that this process could. `path` has
/// no symbolic links.
fn check_unchangeable(path: &Path) -> Result<(), String> {
    check_mount(path, Path::new("/proc/self/exe"))?;
    check_owners(path)
}

/// Refuses a file of another mount than the program: a volume of the pod, which somebody else may fill, even if its files belong to root in
/// this container. A single file can be mounted as well, so its own mount counts.
fn check_mount(path: &Path, program: &Path) -> Result<(), String> {
    let mount_of = |path: &Path| {
        let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if found.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return Err("the kernel does not tell mounts apart; it needs Linux 5.8".to_owned());
        }
        Ok(found.stx_mnt_id)
    };
    if mount_of(path)? == mount_of(program)? {
        return Ok(());
    }
    Err(format!(
        "{} is on a volume: only artifacts in the image of the sidecar are used",
        path.display()
    ))
}

fn check_owners(path: &Path) -> Result<(), String> {
    for part in path.ancestors() {
        let file = fs::symlink_metadata(part).map_err(|error| format!("{}: {error}", part.display()))?;
        check_owner(part, file.uid(), file.mode())?;
    }
    for part in path.ancestors().take(2) {
        // Root may write to every file, unless its file system is read-only.
        if rustix::fs::access(part, Access::WRITE_OK).is_ok() {
            return Err(format!(
                "the sidecar itself can write to {}: run it as another user than root, or with a read-only root file system",
                part.display()
            ));
        }
    }
    Ok(())
}

fn check_owner(path: &Path, owner: u32, mode: u32) -> Result<(), String> {
    if owner != 0 {
        return Err(format!("{} belongs to user {owner}, not to root", path.display()));
    }
    if mode & 0o022 != 0 {
        let mode = mode & 0o7777;
        return Err(format!(
            "group or others can write to {} (mode {mode:04o})",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
