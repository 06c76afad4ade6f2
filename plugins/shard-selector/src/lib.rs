//! Gives a controller one shard's view of the Kubernetes API: ANDs the shard's label selector with the controller's own, keeps the objects
//! of its hash ranges, and renames its leader-election lock. The host carries out the changes on the wire.
//!
//! | file | holds |
//! |---|---|
//! | `plugin` | looks up view and lock for each request |
//! | `view` | the selector and the hash ranges of each resource |
//! | `selector` | validates and prints label selectors |
//! | `hash_ranges` | makes predicates of hash ranges |
//! | `settings` | the settings as a person writes them |
//! | `lock` | leader election |
//! | `freshness` | how old a response may be |

mod freshness;
mod hash_ranges;
mod lock;
mod plugin;
mod selector;
mod settings;
#[cfg(test)]
mod tests;
mod view;

ctrlmesh_sdk::export_plugin!(plugin::ShardSelector);

/// Validates an entry's settings and returns warnings: for the manager, before it distributes a chain.
///
/// # Errors
///
/// Why a sidecar would refuse the chain: the field, and what to write instead.
pub fn check(settings: &str, about: &ctrlmesh_sdk::InstanceInfo) -> Result<Vec<String>, String> {
    ctrlmesh_sdk::check::<plugin::ShardSelector>(settings, about)
}
