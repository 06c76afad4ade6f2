//! Gives a controller one shard's view of the Kubernetes API: its label selector is ANDed with what the controller asks
//! for, and its leader-election lock gets a name of its own. What that changes on the wire is the host's work.
//!
//! `settings` is what a person writes, `selector` checks label selectors and prints them, `view` decides which one applies,
//! `freshness` how old an answer may be,
//! `lock` does the leader election, `plugin` puts them together.

mod freshness;
mod lock;
mod plugin;
mod selector;
mod settings;
#[cfg(test)]
mod tests;
mod view;

ctrlmesh_sdk::export_plugin!(plugin::ShardSelector);

/// What this plugin thinks of an entry's settings, with its warnings: for who writes chains, before they are distributed.
///
/// # Errors
///
/// What a sidecar would refuse the chain with: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::ShardSelector>(settings, about)
}
