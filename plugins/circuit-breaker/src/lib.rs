//! Stops calling what fails: breakers for API requests and for calls to other services, which open on failures, let a few
//! probes through after a while and close when those succeed; and lists of what a controller may call at all.
//!
//! `settings` is what a person writes, `breaker` one rule of it, `circuit` the state of one breaker in the host, `cell` how
//! that is kept, `recovery` what a person resets, `judgement` what counts as a failure, `intercept` the lists, `snapshot`
//! what is shown in `/status`, `note` what a request carries from its beginning to its end, `plugin` puts them together.

mod breaker;
mod cell;
mod circuit;
mod intercept;
mod judgement;
mod note;
mod plugin;
mod recovery;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;

ctrlmesh_sdk::export_plugin!(plugin::CircuitBreaker);

/// What this plugin thinks of an entry's settings, with its warnings: for who writes chains, before they are distributed.
///
/// # Errors
///
/// What a sidecar would refuse the chain with: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::CircuitBreaker>(settings, about)
}
