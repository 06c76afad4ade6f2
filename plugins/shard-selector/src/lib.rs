//! Gives a controller one shard's view of the Kubernetes API: its label selector is ANDed with what the controller asks
//! for, and its leader-election lock gets a name of its own. What that changes on the wire is the host's work.
//!
//! `settings` is what a person writes, `selector` checks label selectors and prints them, `view` decides which one applies,
//! `lock` does the leader election, `plugin` puts them together.

mod lock;
mod plugin;
mod selector;
mod settings;
#[cfg(test)]
mod tests;
mod view;

ctrlmesh_sdk::export_plugin!(plugin::ShardSelector);
