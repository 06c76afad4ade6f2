//! The capabilities of a sidecar, as reported in `/status`: the chain documents that it reads, and the versions of the plugin
//! interface that it supports. The manager writes nothing that a sidecar of the namespace can't run.
//!
//! The fields are lists of words, since a manager meets sidecars of other releases: it ignores unknown words. A change that extends the
//! document or the interface adds its word here.

use serde::{Deserialize, Serialize};

use crate::names::CHAIN_API_VERSION;
use crate::world::{Interface, SUPPORTED};

/// The capabilities of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Support {
    /// `apiVersion` of the chain documents that it reads.
    pub documents: Vec<String>,
    /// Versions of the plugin interface, the newest of each that are compatible: `0.1.0`.
    pub plugins: Vec<String>,
}

impl Support {
    /// The capabilities of this release.
    #[must_use]
    pub fn current() -> Self {
        Self {
            documents: vec![CHAIN_API_VERSION.to_owned()],
            plugins: SUPPORTED.iter().map(ToString::to_string).collect(),
        }
    }

    /// The capabilities of sidecars from before `/status` had the field. Never changes.
    #[must_use]
    pub fn baseline() -> Self {
        Self {
            documents: vec!["chain.ctrlmesh.kusionstack.io/v1".to_owned()],
            plugins: vec!["0.1.0".to_owned()],
        }
    }

    /// Whether it reads the documents that this release writes.
    #[must_use]
    pub fn reads_documents(&self) -> bool {
        self.documents.iter().any(|version| version == CHAIN_API_VERSION)
    }

    /// Whether it runs plugins that were built against this version of the interface.
    #[must_use]
    pub fn supports_interface(&self, needed: Interface) -> bool {
        let mut supported = self
            .plugins
            .iter()
            .filter_map(|version| version.parse::<Interface>().ok());
        supported.any(|supported| supported.includes(needed))
    }
}

impl Default for Support {
    fn default() -> Self {
        Self::baseline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugins(versions: &[&str]) -> Support {
        Support {
            plugins: versions.iter().map(|version| (*version).to_owned()).collect(),
            ..Support::baseline()
        }
    }

    #[test]
    fn plugin_runs_when_a_compatible_version_is_no_older() {
        let interface = |text: &str| text.parse::<Interface>().unwrap();
        for (supported, needed, expected) in [
            (&["0.1.0"][..], "0.1.0", true),
            (&["0.1.2"], "0.1.1", true),
            (&["0.1.1"], "0.1.2", false),
            (&["0.2.0"], "0.1.0", false),
            (&["0.2.0", "0.1.3"], "0.1.3", true),
            (&["0.2.0", "a word of a later release"], "0.2.0", true),
            (&["1.4.0"], "1.2.9", true),
            (&["2.0.0"], "1.2.9", false),
            (&[], "0.1.0", false),
        ] {
            let runs = plugins(supported).supports_interface(interface(needed));
            assert_eq!(runs, expected, "{needed} on {supported:?}");
        }
    }

    #[test]
    fn current_release_runs_what_the_baseline_runs() {
        let (current, baseline) = (Support::current(), Support::baseline());
        for version in &baseline.plugins {
            assert!(current.supports_interface(version.parse().unwrap()), "{version}");
        }
        assert!(current.reads_documents() && baseline.reads_documents());
    }

    #[test]
    fn unknown_and_missing_fields_are_accepted() {
        let read = |text: &str| serde_json::from_str::<Support>(text).unwrap();
        assert_eq!(read("{}"), Support::baseline());
        assert_eq!(read(r#"{"plugins":["0.9.0"],"more":1}"#), plugins(&["0.9.0"]));
    }
}
