//! Faults for a controller, from a file, with the true bytes of a Kubernetes API server: late and lost answers, refusals,
//! conflicts, broken watches, a server that restarts. The controller stays unmodified; the API server sees nothing of it.
//!
//! `settings` and `params` are what a person writes, `model` checks it, `catalogue` names every fault and makes an act of
//! `fault` from it, `reply` has the bytes, `window` and `calendar` say when, `draw` chooses, `rule` puts that together for one
//! rule, `ledger` counts in the host's state, `note` carries a decision to the response, `plugin` is the flow.

mod calendar;
mod catalogue;
mod draw;
mod fault;
mod ledger;
mod model;
mod note;
mod params;
mod plugin;
mod reply;
mod rule;
mod settings;
#[cfg(test)]
mod tests;
mod window;

ctrlmesh_sdk::export_plugin!(plugin::FaultInject);

/// What this plugin thinks of an entry's settings, with its warnings: for who writes chains, before they are distributed.
///
/// # Errors
///
/// What a sidecar would refuse the chain with: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::FaultInject>(settings, about)
}
