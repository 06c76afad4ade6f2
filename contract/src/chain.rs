//! The chain document: which plugins a namespace's sidecars run, in which order, with which settings.
//!
//! One document per namespace, YAML or JSON, signed as a whole ([`crate::signature`]). There is one way in
//! ([`Chain::parse`]) and one way out ([`Chain::to_json`]), so that nothing unvalidated is ever held. Leaves what a
//! plugin thinks of its settings to the sidecar, and where documents come from to the manager.
//!
//! | file | holds |
//! |---|---|
//! | `syntax` | from bytes to a JSON value |
//! | `decode` | from a JSON value to a [`Chain`], or to every mistake in it |
//! | `validate` | bounds, names, and uniqueness |
//! | `canonical` | prints a JSON value in one way only |

mod canonical;
mod decode;
mod syntax;
#[cfg(test)]
mod tests;
mod validate;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::digest::Digest;
use crate::error::{Error, Mistakes};
use crate::names::CHAIN_API_VERSION;
use crate::selector::LabelSelector;

/// Largest document: what a ConfigMap holds (`MaxSecretSize` in kubernetes `pkg/apis/core/validation`).
pub const MAX_DOCUMENT_BYTES: usize = 1024 * 1024;

/// Entries in one document, over all pods of a namespace.
pub const MAX_ENTRIES: usize = 1024;

/// Entries that may select one pod: the sidecar keeps the set of matching entries in the bits of one word.
pub const MAX_ENTRIES_PER_POD: usize = 64;

/// Canonical JSON of one entry's settings. They are copied into each instance of the plugin.
pub const MAX_SETTINGS_BYTES: usize = 256 * 1024;

/// Deadline of one call, when an entry names none. Milliseconds.
pub const DEFAULT_TIMEOUT_MS: u32 = 10;

/// Longest deadline of one call. Calls are synchronous: a worker thread does nothing else meanwhile.
pub const MAX_TIMEOUT_MS: u32 = 1000;

/// Memory of one instance, when an entry names none. MiB.
pub const DEFAULT_MEMORY_MIB: u32 = 16;

/// Most memory of one instance. There is one instance per worker thread and entry.
pub const MAX_MEMORY_MIB: u32 = 256;

/// A chain document: the entries of a namespace, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Chain {
    /// The namespace that the chain is for. Signed with the rest, so that it is no chain of another namespace.
    pub namespace: String,
    /// The generation, from 1. It grows with each change, and a sidecar refuses one below that of its chain.
    pub generation: u64,
    /// The entries, in any order: `order` and `name` decide.
    pub entries: Vec<Entry>,
}

/// An element of a chain: a plugin, its settings, and the pods that run it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The name, such as `shard-selector/operator-demo-0`. It is unique and stable over changes: state, metrics and status
    /// are kept by it.
    pub name: String,
    /// Digest of the component's bytes.
    pub plugin: Digest,
    /// The pods of the namespace that run the entry.
    pub pod_selector: LabelSelector,
    /// The entry with the lowest order gets requests first and responses last. Entries of equal order are sorted by name.
    pub order: i32,
    /// How a request is handled when the plugin fails.
    pub on_failure: FailurePolicy,
    /// Deadline of one call, milliseconds.
    pub timeout_ms: u32,
    /// Memory of one instance, MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u32,
    /// The plugin's own settings, with their hash.
    #[serde(flatten)]
    pub settings: Settings,
    /// The object that the entry was made from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

/// How a request is handled when a plugin fails (trap, deadline, invalid verdict, quarantine).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum FailurePolicy {
    /// The request is rejected with a 500 `Status`. The default: a skipped shard rule would let two shards act.
    #[default]
    Closed,
    /// The entry is skipped.
    Open,
}

/// An entry's settings: the value, and what follows from it. Immutable, so that hash and value always agree.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    #[serde(rename = "settings")]
    value: Value,
    #[serde(rename = "settingsHash")]
    hash: String,
    #[serde(skip)]
    json: String,
}

/// The object that an entry was made from, for people and for status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// Kind of the object: `ShardingConfig`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object; empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Generation of the object; 0 if it has none.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: u64,
}

impl Chain {
    /// Reads and validates a document. One that starts with `{` is read as JSON, any other as YAML.
    /// Empty documents beside it are ignored in both: many tools end a file with `---`.
    ///
    /// # Errors
    /// The first reason why it can't be read at all, or else every mistake in it ([`Error::Mistakes`]).
    pub fn parse(document: &[u8]) -> Result<Self, Error> {
        decode::decode_chain(syntax::parse_document(document)?)
    }

    /// Finds every mistake in a chain that was put together in memory.
    ///
    /// # Errors
    /// [`Error::Mistakes`] with all of them.
    pub fn validate(&self) -> Result<(), Error> {
        let mut mistakes = Mistakes::default();
        validate::validate_head(&self.namespace, self.generation, &mut mistakes);
        validate::validate_entries(self.entries.iter().enumerate(), &mut mistakes);
        mistakes.into_result()
    }

    /// The document as canonical JSON: equal documents have equal bytes, on every host. [`Self::parse`] reads a valid one
    /// back to an equal value.
    #[must_use]
    pub fn to_json(&self) -> String {
        canonical::canonical_json(&json!({
            "apiVersion": CHAIN_API_VERSION,
            "namespace": self.namespace,
            "generation": self.generation,
            "entries": self.entries,
        }))
    }
}

impl Settings {
    /// Takes a plugin's settings.
    #[must_use]
    pub fn new(value: Value) -> Self {
        let json = canonical::canonical_json(&value);
        let hash = Digest::of(json.as_bytes()).hex();
        Self { value, hash, json }
    }

    /// The settings as written.
    #[must_use]
    pub const fn value(&self) -> &Value {
        &self.value
    }

    /// The settings as canonical JSON, which the plugin gets.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Hexadecimal SHA-256 of the canonical JSON: equal settings have equal hashes, however they were written.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(Value::Object(Map::new()))
    }
}

impl FailurePolicy {
    /// The name of the policy, as in the document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "Closed",
            Self::Open => "Open",
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}
