//! Reads the directory that kubelet mounts: one consistent version of it, every file bounded.
//!
//! Kubelet writes a new version into a directory of its own and then swaps the symlink `..data`
//! (`pkg/volume/util/atomic_writer.go`), so a version is read below the link's target, never through the link. A directory
//! without `..data` (a laptop) is read as it is. Leaves the meaning of files to `source.rs`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ctrlmesh_contract::Digest;
use ctrlmesh_contract::chain::MAX_DOCUMENT_BYTES;
use ctrlmesh_contract::names::files;
use ctrlmesh_contract::plugin_file::{self, Encoding, MAX_PLUGIN_BYTES};
use ctrlmesh_contract::signature::MAX_SIGNATURE_FILE_BYTES;

use super::error::Error;
use super::zstd;

/// Maximum number of files that are listed to detect changes. A mounted volume has some dozens.
const MAX_FILES: usize = 4096;

/// One version of a directory.
#[derive(Debug)]
pub(crate) struct Version {
    root: PathBuf,
    /// Target of `..data`; `None` in a directory without it.
    data: Option<PathBuf>,
}

/// Distinguishes two versions of a directory without reading all of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    data: Option<PathBuf>,
    files: Vec<(OsString, u64, Option<SystemTime>)>,
}

/// The document as read, before any check.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    pub(crate) signature: Option<Vec<u8>>,
}

impl Version {
    /// The version that `..data` points to now.
    pub(crate) fn current_version(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            data: fs::read_link(root.join(files::KUBELET_DATA)).ok(),
        }
    }

    /// Whether `..data` still points to this version.
    pub(crate) fn is_current(&self) -> bool {
        Self::current_version(&self.root).data == self.data
    }

    fn version_directory(&self) -> PathBuf {
        self.data
            .as_ref()
            .map_or_else(|| self.root.clone(), |data| self.root.join(data))
    }

    /// Names, sizes and modification times of the version's files.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        let mut files: Vec<_> = fs::read_dir(self.version_directory())
            .into_iter()
            .flatten()
            .flatten()
            .take(MAX_FILES)
            .filter_map(|file| {
                let metadata = fs::metadata(file.path()).ok()?;
                Some((file.file_name(), metadata.len(), metadata.modified().ok()))
            })
            .collect();
        files.sort_unstable();
        Fingerprint {
            data: self.data.clone(),
            files,
        }
    }

    /// The document and its signature.
    pub(crate) fn document(&self) -> Result<Document, Error> {
        let directory = self.version_directory();
        let bytes =
            read_bounded(&directory.join(files::CHAIN), MAX_DOCUMENT_BYTES)?.ok_or_else(|| Error::NoDocument {
                directory: self.root.clone(),
            })?;
        let signature = read_bounded(&directory.join(files::CHAIN_SIGNATURE), MAX_SIGNATURE_FILE_BYTES)?;
        Ok(Document { bytes, signature })
    }

    /// The bytes of a plugin, unpacked and checked against its digest.
    pub(crate) fn read_plugin(&self, entry: &str, digest: &Digest) -> Result<Vec<u8>, Error> {
        for encoding in [Encoding::Plain, Encoding::Zstd] {
            let path = self.version_directory().join(plugin_file::file_name(digest, encoding));
            let Some(bytes) = read_bounded(&path, MAX_PLUGIN_BYTES)? else {
                continue;
            };
            let bytes = match encoding {
                Encoding::Plain => bytes,
                Encoding::Zstd => zstd::unpack(&bytes, &path)?,
            };
            let found = Digest::of(&bytes);
            if found != *digest {
                return Err(Error::PluginDigest {
                    entry: entry.to_owned(),
                    path,
                    expected: *digest,
                    found,
                });
            }
            return Ok(bytes);
        }
        Err(Error::PluginMissing {
            entry: entry.to_owned(),
            digest: *digest,
        })
    }
}

/// Reads a regular file of at most `limit` bytes. Returns `None` if the file does not exist.
pub(crate) fn read_bounded(path: &Path, limit: usize) -> Result<Option<Vec<u8>>, Error> {
    let io = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let size = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
        // Opening a pipe would wait for its writer.
        Ok(metadata) if !metadata.is_file() => return Err(io(io::Error::other("it is not a regular file"))),
        Ok(metadata) => usize::try_from(metadata.len()).unwrap_or(limit).min(limit),
    };
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    // A buffer that grows leaves its smaller predecessors to the allocator.
    let mut bytes = Vec::with_capacity(size + 1);
    // One byte more than allowed distinguishes a file that is too large from one that just fits.
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() > limit {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            limit,
        });
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::tests::mount::Mount;

    #[test]
    fn replaced_version_is_detected_and_never_mixed_with_next() {
        let mut mount = Mount::new();
        mount.publish([(files::CHAIN, b"old".to_vec())]);
        let version = Version::current_version(mount.path());
        assert_eq!(version.document().unwrap().bytes, b"old");
        assert!(version.is_current());
        mount.publish([
            (files::CHAIN, b"new".to_vec()),
            (files::CHAIN_SIGNATURE, b"new".to_vec()),
        ]);
        assert!(!version.is_current());
        assert!(matches!(version.document(), Err(Error::NoDocument { .. })));
        assert_eq!(Version::current_version(mount.path()).document().unwrap().bytes, b"new");
    }

    #[test]
    fn plain_directory_is_read_as_it_is() {
        let directory = tempfile::TempDir::new().unwrap();
        let version = Version::current_version(directory.path());
        let before = version.fingerprint();
        fs::write(directory.path().join(files::CHAIN), "document").unwrap();
        assert_eq!(version.document().unwrap().bytes, b"document");
        assert_eq!(version.document().unwrap().signature, None);
        assert!(version.is_current());
        assert_ne!(version.fingerprint(), before);
    }

    #[test]
    fn file_that_just_fits_is_read() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap().unwrap(), b"12345");
        assert!(matches!(read_bounded(&path, 4), Err(Error::TooLarge { limit: 4, .. })));
        assert!(read_bounded(&directory.path().join("none"), 5).unwrap().is_none());
    }
}
