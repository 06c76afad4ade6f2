//! Leaves fields, by default `metadata.managedFields`, out of the objects that clients list and watch, by resource and user agent. Without a
//! rule nothing is left out. The host carries out the change on the wire.
//!
//! | file | holds |
//! |---|---|
//! | `plugin` | finds the rules for each request |
//! | `rule` | one rule |
//! | `settings` | the settings as a person writes them |

mod plugin;
mod rule;
mod settings;
#[cfg(test)]
mod tests;

ctrlmesh_sdk::export_plugin!(plugin::TrimObjects);

/// Validates an entry's settings and returns warnings: for the manager, before it distributes a chain.
///
/// # Errors
///
/// Why a sidecar would refuse the chain: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::TrimObjects>(settings, about)
}
