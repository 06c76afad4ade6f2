//! Plugins of registries for this manager: flags and environment become settings of `ctrlmesh-manager-oci`.

use ctrlmesh_manager_oci::{Plugins, Proxies, Settings, Times, Worker};
use tokio::sync::mpsc;

use crate::args::Args;
use crate::cluster::{Context, RbacRule, Scope};

/// Permissions of fetching at the API server: it reads the Secrets that `pullSecret` names one by one, and lists or watches nothing.
pub const RULES: &[RbacRule] = &[RbacRule {
    scope: Scope::Cluster,
    group: "",
    resources: &["secrets"],
    verbs: &["get"],
    names: &[],
}];

/// The plugins of all objects, and the worker that fetches them. The names of namespaces go to `changed` when their plugins have
/// another resolution than before.
#[must_use]
pub fn start_fetching(context: &Context, changed: mpsc::Sender<String>) -> (Plugins, Worker) {
    let settings = puller_settings(&context.args, |name| std::env::var(name).ok());
    Plugins::new(context.client.clone(), settings, changed, context.metrics.oci.clone())
}

/// Settings from flags, and from the environment variables that usually name proxies.
fn puller_settings(args: &Args, variable: impl Fn(&str) -> Option<String>) -> Settings {
    Settings {
        ca_file: args.registry_ca_file.clone(),
        insecure: args.insecure_registries.iter().cloned().collect(),
        auth_hosts: args.registry_auth_hosts.iter().cloned().collect(),
        proxies: Proxies::new(variable),
        times: Times::default(),
        cache_bytes: args.plugin_cache_mib.saturating_mul(1024 * 1024),
        hosts: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
