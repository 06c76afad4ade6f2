//! Limits how fast a controller calls the API server and other services, by token buckets and by bounds on what is in
//! flight. Every rule that matches must grant; a refused request takes nothing from any of them.
//!
//! `settings` is what a person writes, `limiter` one rule of it, `plugin` asks all that match at once. The arithmetic, and
//! keeping levels over reloads and between threads, is the host's.

mod limiter;
mod plugin;
mod settings;
#[cfg(test)]
mod tests;

ctrlmesh_sdk::export_plugin!(plugin::RateLimit);

/// What this plugin thinks of an entry's settings, with its warnings: for who writes chains, before they are distributed.
///
/// # Errors
///
/// What a sidecar would refuse the chain with: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::RateLimit>(settings, about)
}
