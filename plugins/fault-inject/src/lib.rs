//! Injects faults into a controller's API traffic, with the exact bytes of a Kubernetes API server: late and lost answers, refusals,
//! conflicts, broken watches, a restarting server. The controller stays unmodified; the API server is not affected.
//!
//! `settings` and `params` are what a person writes, `model` validates it, `catalogue` maps every name to an act of `fault`, `reply` has
//! the bytes, `window` and `calendar` decide when, `draw` makes random choices, `rule` combines that for one rule, `counters` counts in
//! the host's state, `note` carries a decision to the response, and `plugin` is the flow.

mod calendar;
mod catalogue;
mod counters;
mod draw;
mod fault;
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

/// Validates an entry's settings and returns warnings: for the manager, before it distributes a chain.
///
/// # Errors
///
/// Why a sidecar would refuse the chain: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::FaultInject>(settings, about)
}
