//! A chain directory as kubelet mounts it: a new timestamped folder, with `..data` swapped to it in one rename.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ctrlmesh_contract::signature::SigningKey;
use ctrlmesh_contract::{Digest, names};
use serde_json::{Value, json};

/// An entry of a chain, with the bytes of its plugin.
#[derive(Debug, Clone)]
pub struct EntrySpec {
    document: Value,
    bytes: Vec<u8>,
    is_shipped: bool,
}

impl EntrySpec {
    /// An entry that fails closed, for every pod.
    #[must_use]
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        let document = json!({
            "name": name, "plugin": format!("sha256:{}", Digest::of(bytes).hex()), "podSelector": {}, "order": 100,
            "onFailure": "Closed", "settings": {},
        });
        Self {
            document,
            bytes: bytes.to_vec(),
            is_shipped: true,
        }
    }

    /// Sets a field of the entry.
    #[must_use]
    pub fn with_field(mut self, field: &str, value: Value) -> Self {
        if let Some(fields) = self.document.as_object_mut() {
            fields.insert(field.to_owned(), value);
        }
        self
    }

    /// Sets the plugin's settings.
    #[must_use]
    pub fn with_settings(self, settings: Value) -> Self {
        self.with_field("settings", settings)
    }

    /// Leaves the plugin's bytes out of the directory.
    #[must_use]
    pub fn without_bytes(mut self) -> Self {
        self.is_shipped = false;
        self
    }
}

pub struct ChainDir {
    path: PathBuf,
    generation: u64,
    version: u64,
    labels: Vec<(String, String)>,
    key: Option<SigningKey>,
}

impl ChainDir {
    ///
    /// # Errors
    /// If the directory can't be created.
    pub fn create(path: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&path)?;
        let mut directory = Self {
            path,
            generation: 0,
            version: 0,
            labels: Vec::new(),
            key: None,
        };
        directory.set_labels(&[("app", "operator")])?;
        Ok(directory)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The labels file of the downward API.
    #[must_use]
    pub fn labels_file(&self) -> PathBuf {
        self.path.with_file_name("labels")
    }

    /// Writes the pod's labels like kubelet.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn set_labels(&mut self, labels: &[(&str, &str)]) -> anyhow::Result<()> {
        self.labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let text: Vec<String> = self
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value:?}"))
            .collect();
        let target = self.labels_file();
        let fresh = target.with_extension("new");
        fs::write(&fresh, text.join("\n"))?;
        Ok(fs::rename(fresh, target)?)
    }

    /// Signs later generations with this key.
    pub fn sign_with(&mut self, key: SigningKey) {
        self.key = Some(key);
    }

    /// Publishes the next generation and returns its number.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn publish(&mut self, entries: Vec<EntrySpec>) -> anyhow::Result<u64> {
        self.generation += 1;
        let document = self.document(self.generation, &entries);
        let text = serde_json::to_vec_pretty(&document)?;
        self.publish_bytes(&text, entries)?;
        Ok(self.generation)
    }

    /// The chain document with these entries.
    #[must_use]
    pub fn document(&self, generation: u64, entries: &[EntrySpec]) -> Value {
        json!({
            "apiVersion": names::CHAIN_API_VERSION, "namespace": crate::NAMESPACE, "generation": generation,
            "entries": entries.iter().map(|entry| entry.document.clone()).collect::<Vec<_>>(),
        })
    }

    /// Publishes these bytes as the document, with the plugins of the entries.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn publish_bytes(&mut self, document: &[u8], entries: Vec<EntrySpec>) -> anyhow::Result<()> {
        let mut files = vec![(names::files::CHAIN.to_owned(), document.to_vec())];
        if let Some(key) = &self.key {
            files.push((
                names::files::CHAIN_SIGNATURE.to_owned(),
                key.sign(document).into_bytes(),
            ));
        }
        for entry in entries.into_iter().filter(|entry| entry.is_shipped) {
            files.push((format!("{}.wasm", Digest::of(&entry.bytes).hex()), entry.bytes));
        }
        self.publish_files(&files)
    }

    /// Publishes exactly these files.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn publish_files(&mut self, files: &[(String, Vec<u8>)]) -> anyhow::Result<()> {
        self.version += 1;
        let folder = format!("..version_{}", self.version);
        let full = self.path.join(&folder);
        fs::create_dir(&full)?;
        for (name, bytes) in files {
            fs::write(full.join(name), bytes)?;
            let link = self.path.join(name);
            if link.symlink_metadata().is_err() {
                symlink(Path::new(names::files::KUBELET_DATA).join(name), link)?;
            }
        }
        let fresh = self.path.join("..data_tmp");
        symlink(&folder, &fresh)?;
        fs::rename(&fresh, self.path.join(names::files::KUBELET_DATA)).context("swap")?;
        if self.version > 1 {
            fs::remove_dir_all(self.path.join(format!("..version_{}", self.version - 1)))?;
        }
        Ok(())
    }

    /// The generation published last.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Continues counting from this generation.
    pub fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }
}
