//! Why rules are not set, each with instructions for users.

use std::io;

use super::rules::Family;

/// Without rules the pod must not start, because its traffic would bypass the sidecar.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server's address is unknown.
    #[error(
        "the address of the API server is unknown: KUBERNETES_SERVICE_HOST is not set; run in a pod, or write --host=10.96.0.1"
    )]
    NoServer,
    /// `--host` is not an IP address.
    #[error(
        "--host (KUBERNETES_SERVICE_HOST): {host:?} is not the IP address of a server; write one, such as 10.96.0.1 or fd00::1. \
         If only a name is known, remove the label ctrlmesh.kusionstack.io/enable-iptables from the pod: a kubeconfig works with names"
    )]
    Host { host: String },
    /// There are more API servers than the rules are made for.
    #[error("--host (KUBERNETES_SERVICE_HOST) has {count} addresses, and at most {max} can be redirected; list fewer")]
    TooMany { count: usize, max: usize },
    /// The kernel denies this process the change.
    #[error(
        "the kernel refuses to change the rules of this network; the container needs runAsUser: 0 and capabilities.add: [NET_ADMIN] in its \
         securityContext, and the namespace a Pod Security level that allows it (privileged)"
    )]
    NotAllowed,
    #[error(
        "the kernel has no nf_tables with NAT for {family}: {source}; load the modules nft_chain_nat and nft_redir on the node (Linux 4.18 or \
         later; rules of the older iptables can stay beside them), or take the label ctrlmesh.kusionstack.io/enable-iptables off the pod: \
         by a kubeconfig it works without"
    )]
    Unsupported { family: &'static str, source: io::Error },
    #[error(
        "failed to set the rules for {family}: {source}; none of them was changed. Check whether the pod is out of memory, or a seccomp profile forbids netlink"
    )]
    Netlink { family: &'static str, source: io::Error },
}

/// Error numbers of Linux that point to a missing module: no such chain type or expression, no such subsystem, protocol or family.
const MISSING: [i32; 4] = [2, 95, 93, 97];
const EPERM: i32 = 1;

impl Error {
    pub(super) fn from_kernel(family: Family, source: io::Error) -> Self {
        let number = source.raw_os_error();
        let family = family.name();
        match number {
            Some(EPERM) => Self::NotAllowed,
            Some(number) if MISSING.contains(&number) => Self::Unsupported { family, source },
            _ => Self::Netlink { family, source },
        }
    }
}
