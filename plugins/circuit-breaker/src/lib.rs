//! Stops calling services that fail: breakers for API requests and for calls to external services open on failures, let a few probes
//! through after a while, and close when those succeed; plus lists of the calls that a controller may make at all.
//!
//! | file | holds |
//! |---|---|
//! | `plugin` | the decision on a request, and its end |
//! | `intercept` | lists of calls that are allowed or denied |
//! | `breaker` | the state of one breaker in the host |
//! | `snapshot` | its report for `/status` |
//! | `recovery` | resets by a person |
//! | `rule` | a rule of breakers: when they open, and how they close |
//! | `keys` | keys of the host's state |
//! | `judgement` | what is a failure |
//! | `settings` | the settings as a person writes them |
//! | `cell` | the encoding of a breaker's state |
//! | `note` | what a request carries from start to end |

mod breaker;
mod cell;
mod intercept;
mod judgement;
mod keys;
mod note;
mod plugin;
mod recovery;
mod rule;
mod settings;
mod snapshot;
#[cfg(test)]
mod tests;

ctrlmesh_sdk::export_plugin!(plugin::CircuitBreaker);

/// Validates an entry's settings and returns warnings: for the manager, before it distributes a chain.
///
/// # Errors
///
/// Why a sidecar would refuse the chain: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::CircuitBreaker>(settings, about)
}
