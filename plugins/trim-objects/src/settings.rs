//! The settings as a person writes them.

use ctrlmesh_plugin_rules::ResourceRule;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// The fields of all matching rules are left out. Default: none.
    pub(crate) rules: Option<Vec<Rule>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Rule {
    /// Resources that are listed or watched. One matching element is enough; an absent list in it matches everything.
    pub(crate) resources: Option<Vec<ResourceRule>>,
    /// Clients by their `User-Agent`; a `*` at either end matches any rest. Default: all clients.
    pub(crate) user_agents: Option<Vec<String>>,
    /// Paths of fields. Default: `metadata.managedFields`.
    pub(crate) fields: Option<Vec<String>>,
}
