//! A volume as kubelet writes it (`pkg/volume/util/atomic_writer.go`): each version has its own directory, `..data` is swapped by a rename,
//! each file is a symlink through it, and the old version is removed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ctrlmesh_contract::names::files::KUBELET_DATA;
use tempfile::TempDir;

pub(crate) struct Mount {
    root: TempDir,
    version: usize,
    names: BTreeSet<String>,
}

impl Mount {
    pub(crate) fn new() -> Self {
        Self {
            root: TempDir::new().unwrap(),
            version: 0,
            names: BTreeSet::new(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// Publishes these files as the next version, and no others.
    pub(crate) fn publish<N: Into<String>>(&mut self, files: impl IntoIterator<Item = (N, Vec<u8>)>) {
        let old = self.version_name();
        self.version += 1;
        let new = self.version_name();
        let directory = self.root.path().join(&new);
        fs::create_dir(&directory).unwrap();
        let mut names = BTreeSet::new();
        for (name, content) in files {
            let name = name.into();
            fs::write(directory.join(&name), content).unwrap();
            names.insert(name);
        }
        let temporary = self.root.path().join("..data_tmp");
        symlink(&new, &temporary).unwrap();
        fs::rename(temporary, self.root.path().join(KUBELET_DATA)).unwrap();
        for added in names.difference(&self.names) {
            symlink(PathBuf::from(KUBELET_DATA).join(added), self.root.path().join(added)).unwrap();
        }
        for removed in self.names.difference(&names) {
            fs::remove_file(self.root.path().join(removed)).unwrap();
        }
        if self.version > 1 {
            fs::remove_dir_all(self.root.path().join(old)).unwrap();
        }
        self.names = names;
    }

    fn version_name(&self) -> String {
        format!("..2026_01_01_00_00_00.{}", self.version)
    }
}
