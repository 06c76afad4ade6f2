//! Limits how fast a controller calls the API server and external services, by token buckets and bounds on requests in flight. Every
//! matching rule must grant; a refused request takes nothing from any of them.
//!
//! | file | holds |
//! |---|---|
//! | `plugin` | asks all matching rules at once |
//! | `limiter` | one rule |
//! | `settings` | the settings as a person writes them |
//!
//! The host does the arithmetic, and keeps levels across reloads and threads.

mod limiter;
mod plugin;
mod settings;
#[cfg(test)]
mod tests;

ctrlmesh_sdk::export_plugin!(plugin::RateLimit);

/// Validates an entry's settings and returns warnings: for the manager, before it distributes a chain.
///
/// # Errors
///
/// Why a sidecar would refuse the chain: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::RateLimit>(settings, about)
}
