//! Injects faults into a controller's API traffic, with the exact bytes of a Kubernetes API server: late and lost responses, refusals,
//! conflicts, broken watches, a restarting server. The controller stays unmodified; the API server is not affected.
//!
//! | file | holds |
//! |---|---|
//! | `plugin` | the flow |
//! | `validate` | validates the settings |
//! | `settings` | the settings as a person writes them |
//! | `counters` | counts in the host's state |
//! | `rule` | one rule: whether it applies, and what it does |
//! | `catalogue` | every fault by its name |
//! | `fault` | acts on a request or response |
//! | `params` | parameters of a fault as a person writes them |
//! | `reply` | the bytes of responses |
//! | `effective_time` | when a rule is active |
//! | `calendar` | dates and times of day |
//! | `draw` | repeatable random choices |
//! | `note` | carries a decision to the response |

mod calendar;
mod catalogue;
mod counters;
mod draw;
mod effective_time;
mod fault;
mod note;
mod params;
mod plugin;
mod reply;
mod rule;
mod settings;
#[cfg(test)]
mod tests;
mod validate;

ctrlmesh_sdk::export_plugin!(plugin::FaultInject);

/// Validates an entry's settings and returns warnings: for the manager, before it distributes a chain.
///
/// # Errors
///
/// Why a sidecar would refuse the chain: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::FaultInject>(settings, about)
}
