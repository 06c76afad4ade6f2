//! The CA that signs the certificates of a namespace's sidecars, in each namespace with pods that need it (docs/adr/0022):
//! ConfigMap `ctrlmesh-ca` has the CAs of the cluster and of the namespace, Secret `ctrlmesh-serving-cert` a certificate for the
//! names of the API server. No namespace trusts another's CA.
//!
//! Nothing is created before a pod needs it. After that, both objects are kept up to date. Objects with these names that somebody
//! else created are not changed. [`crate::certificates::ca`] decides when to issue certificates.
//!
//! | file | holds |
//! |---|---|
//! | `namespaces` | the namespaces that need bundle and certificate, each with a CA and a task |
//! | `namespace` | one namespace's bundle and certificate |
//! | `object` | an object with a fixed name: its last seen state, and writes of the desired one |
//! | `last_seen` | the last seen objects of one kind |

mod last_seen;
mod namespace;
mod namespaces;
mod object;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use ctrlmesh_contract::names::{CA_CONFIG_MAP, SERVING_SECRET};
use k8s_openapi::api::core::v1::Service;

use crate::certificates::lifetimes::SIDECARS;
use crate::cluster::{Context, Error, RbacRule, Scope};
use namespaces::Namespaces;

/// Prefix of the names of Secrets with CAs. `ctrlmesh-mesh-ca-demo` in the manager's namespace has the CA of namespace demo.
const SECRET: &str = "ctrlmesh-mesh-ca";
/// Label of these Secrets with the namespace that they are for.
const OF_NAMESPACE: &str = "ctrlmesh.kusionstack.io/mesh-ca";
/// The ConfigMap with the cluster's CA, which every namespace has.
const CLUSTER_CA: &str = "kube-root-ca.crt";
const CA_FILE: &str = "ca.crt";
/// Namespace and name of the API server's Service.
pub(crate) const SERVICE: (&str, &str) = ("default", "kubernetes");

/// Permissions at the API server, in roles of their own, because `--mesh-ca=false` needs none of them. Webhooks list the Service,
/// too. `create` can't be limited to names, and names that contain a namespace can't be listed.
pub const RULES: &[RbacRule] = &[
    cluster_rule(
        Scope::Namespace,
        &["secrets"],
        &["create", "list", "update", "watch"],
        &[],
    ),
    cluster_rule(Scope::Namespace, &["configmaps"], &["list", "watch"], &[CLUSTER_CA]),
    cluster_rule(Scope::Cluster, &["services"], &["list", "watch"], &[SERVICE.1]),
    cluster_rule(Scope::Cluster, &["namespaces", "pods"], &["list", "watch"], &[]),
    cluster_rule(Scope::Cluster, &["configmaps"], &["create"], &[]),
    cluster_rule(
        Scope::Cluster,
        &["configmaps"],
        &["list", "update", "watch"],
        &[CA_CONFIG_MAP],
    ),
    cluster_rule(Scope::Cluster, &["secrets"], &["create"], &[]),
    cluster_rule(
        Scope::Cluster,
        &["secrets"],
        &["list", "update", "watch"],
        &[SERVING_SECRET],
    ),
];

const fn cluster_rule(
    scope: Scope,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    names: &'static [&'static str],
) -> RbacRule {
    RbacRule {
        scope,
        group: "",
        resources,
        verbs,
        names,
    }
}

/// Keeps CAs, bundles and certificates until the manager stops.
///
/// # Errors
/// A task panicked. Other failures are logged and retried.
pub async fn run(context: Context) -> Result<(), Error> {
    if !context.args.proxy.mesh_ca {
        context.stop.cancelled().await;
        return Ok(());
    }
    Namespaces::new(context, SIDECARS).run().await
}

/// Addresses of a Service, of each of its families.
pub(crate) fn service_addresses(service: &Service) -> Vec<IpAddr> {
    let spec = service.spec.iter();
    let all = spec.flat_map(|spec| spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip));
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in all.filter_map(|address| address.parse().ok()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}
