//! Writes a directory the way kubelet changes a mounted volume (`pkg/volume/util/atomic_writer.go`): the files lie in a directory of
//! their own, `..data` points to it and is swapped by a rename, visible names are links through `..data`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ctrlmesh_contract::names::files::KUBELET_DATA;

use crate::error::Error;

/// File names and contents of a volume.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// A directory that a sidecar watches.
#[derive(Debug, Clone)]
pub(crate) struct Volume {
    directory: PathBuf,
    current: Option<PathBuf>,
    held: Files,
    swaps: u64,
}

impl Volume {
    /// Creates an empty volume at `directory`, which must not exist.
    pub(crate) fn create(directory: PathBuf) -> Result<Self, Error> {
        std::fs::create_dir(&directory).map_err(Error::file("create", &directory))?;
        Ok(Self {
            directory,
            current: None,
            held: Files::new(),
            swaps: 0,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Replaces the whole content, unless it is the same. A reader sees either all old or all new files.
    pub(crate) fn sync_files(&mut self, files: &Files) -> Result<(), Error> {
        if *files == self.held {
            return Ok(());
        }
        self.swap_data_directory(files)
            .map_err(Error::file("write", &self.directory))?;
        self.held.clone_from(files);
        Ok(())
    }

    fn swap_data_directory(&mut self, files: &Files) -> io::Result<()> {
        self.swaps += 1;
        // kubelet uses a time stamp here; it is enough that names differ and begin with two dots.
        let name = format!("..{:09}", self.swaps);
        let next = self.directory.join(&name);
        std::fs::create_dir(&next)?;
        for (file, content) in files {
            std::fs::write(next.join(file), content)?;
        }
        let link = self.directory.join("..data_tmp");
        symlink(&name, &link)?;
        std::fs::rename(&link, self.directory.join(KUBELET_DATA))?;
        self.link_files(files)?;
        match self.current.replace(next) {
            Some(previous) => std::fs::remove_dir_all(previous),
            None => Ok(()),
        }
    }

    fn link_files(&self, files: &Files) -> io::Result<()> {
        let mut linked = BTreeSet::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with("..") {
                continue;
            }
            if files.contains_key(&name) {
                linked.insert(name);
            } else {
                std::fs::remove_file(self.directory.join(name))?;
            }
        }
        for name in files.keys().filter(|name| !linked.contains(*name)) {
            symlink(Path::new(KUBELET_DATA).join(name), self.directory.join(name))?;
        }
        Ok(())
    }
}

/// Labels in the format in which the downward API writes them into a file.
pub(crate) fn downward_labels(labels: &[(&str, &str)]) -> Vec<u8> {
    let lines: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_files(of: &[(&str, &str)]) -> Files {
        of.iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    fn file_names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn content_is_swapped_atomically() {
        let root = tempfile::tempdir().unwrap();
        let mut volume = Volume::create(root.path().join("chain")).unwrap();
        volume.sync_files(&test_files(&[("a", "1"), ("b", "1")])).unwrap();
        for _ in 0..2 {
            volume.sync_files(&test_files(&[("b", "2"), ("c", "2")])).unwrap();
        }

        let directory = volume.directory();
        assert_eq!(file_names(directory), ["..000000002", "..data", "b", "c"]);
        assert_eq!(std::fs::read_to_string(directory.join("b")).unwrap(), "2");
        assert_eq!(std::fs::read_link(directory.join("b")).unwrap(), Path::new("..data/b"));
    }

    #[test]
    fn labels_are_quoted_lines() {
        assert_eq!(
            downward_labels(&[("app", "x"), ("shard", "0")]),
            b"app=\"x\"\nshard=\"0\""
        );
    }
}
