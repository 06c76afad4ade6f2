//! File descriptors: raises the limit as far as possible and divides it, so that no port can use up another's share.
//!
//! Each proxied connection may need one more to a server. A reserve stays for the admin port, which must answer when all other descriptors
//! are taken, and for files, lookups and compiling.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::config::Settings;
use crate::observe::admin;
use crate::upstream::MAX_LOOKUPS;

/// Standard streams, event loops, listening sockets, watched directories, files being read, the compiler's pipes.
const RESERVED_DESCRIPTORS: usize = 64;

/// Event loop, wake-up and signal descriptors of one thread.
const DESCRIPTORS_PER_WORKER: usize = 8;

/// Limit that is assumed for a system without one; no sidecar needs a tenth of it.
const ASSUMED_LIMIT: u64 = 1 << 20;

/// Minimum number of connections of each port. If the limit is too low for these, some will fail.
const MIN_CONNECTIONS: usize = 16;

/// Number of descriptors that the system grants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptors(usize);

/// Share of each port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) connections: usize,
    /// Connections to servers, for all threads together.
    sockets: usize,
}

impl Share {
    /// A semaphore for the connections to servers of one port.
    pub(crate) fn socket_permits(self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(self.sockets))
    }
}

impl Descriptors {
    /// Raises the limit as far as this process may.
    pub(crate) fn raise_limit() -> Self {
        let limit = rlimit::increase_nofile_limit(ASSUMED_LIMIT).or_else(|error| {
            tracing::warn!(%error, "failed to raise the limit of file descriptors");
            rlimit::Resource::NOFILE.get_soft()
        });
        let limit = limit.unwrap_or(ASSUMED_LIMIT).min(ASSUMED_LIMIT);
        Self(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Divides the descriptors that nothing else needs.
    pub(crate) fn divide(self, settings: &Settings) -> Share {
        let is_external = settings.external.external_address.is_some();
        let lookups = if is_external { 2 * MAX_LOOKUPS } else { 0 };
        let others = RESERVED_DESCRIPTORS
            + DESCRIPTORS_PER_WORKER * usize::from(settings.workers)
            + admin::MAX_CONNECTIONS
            + lookups;
        let desired = usize::try_from(settings.max_connections).unwrap_or(usize::MAX);
        let share = self.divide_among(1 + usize::from(is_external), others, desired);
        if share.connections < desired {
            tracing::warn!(
                limit = self.0,
                max_connections = desired,
                connections = share.connections,
                "--max-connections (CTRLMESH_MAX_CONNECTIONS) is lowered to what the limit of file descriptors allows; raise RLIMIT_NOFILE if clients need more"
            );
        }
        share
    }

    fn divide_among(self, ports: usize, others: usize, desired: usize) -> Share {
        let of_port = self.0.saturating_sub(others) / ports;
        let connections = desired.min((of_port / 2).max(MIN_CONNECTIONS));
        Share {
            connections,
            sockets: of_port.saturating_sub(connections).max(MIN_CONNECTIONS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_clients_and_servers_fit_into_descriptors() {
        for (limit, ports, connections) in [(1024, 1, 412), (1024, 2, 206), (65_536, 2, 4096), (256, 1, 28)] {
            let (others, desired) = (200, 4096);
            let share = Descriptors(limit).divide_among(ports, others, desired);
            assert_eq!(share.connections, connections, "{limit} for {ports}");
            assert!(share.sockets >= share.connections);
            assert!(
                ports * (share.connections + share.sockets) + others <= limit,
                "{limit} for {ports}"
            );
        }
    }

    #[test]
    fn connections_have_minimum_and_never_exceed_setting() {
        assert_eq!(Descriptors(100).divide_among(1, 200, 4096).connections, MIN_CONNECTIONS);
        assert_eq!(Descriptors(65_536).divide_among(1, 200, 10).connections, 10);
    }
}
