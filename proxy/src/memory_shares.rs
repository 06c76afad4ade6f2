//! Divides the memory limit of the process among its idle state, plugins and clients, so that all of them at their bounds fit the limit.
//!
//! Everything that bounds memory gets its number from here. The arithmetic: docs/adr/0046-memory-of-clients.md.

/// Memory of a sidecar without plugins, connections and requests: 21 MiB were measured.
const IDLE_SIDECAR: usize = 24 << 20;

/// Smallest share of clients: enough for a lock of the largest size, and for a hundred connections.
const MIN_CLIENTS: usize = 12 << 20;

/// Maximum memory for the idle process and clients. The rest of a high limit is for plugins.
const MAX_SIDECAR: usize = 96 << 20;

/// Memory of a connection without a request: buffers for reading, and for the frames of HTTP/2.
const IDLE_CONNECTION: usize = 16 << 10;

/// The limit below which plugins and clients do not get their minimum.
pub(crate) const SMALLEST_LIMIT: usize = 64 << 20;

/// Memory that all clients together may make the process hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientShares {
    /// Number of connections on all ports.
    pub(crate) connections: usize,
    /// Heads, bodies that are read whole or kept for a retry, and windows of uploads.
    pub(crate) requests: usize,
    /// Responses that have arrived over HTTP/2 and are not read.
    pub(crate) unread: usize,
    /// Responses that were given to clients' connections and are not written.
    pub(crate) unsent: usize,
}

impl ClientShares {
    /// Shares of a process with this limit.
    pub(crate) const fn within(limit: usize) -> Self {
        let all = sidecar_memory(limit) - IDLE_SIDECAR;
        Self {
            connections: all / 6 / IDLE_CONNECTION,
            requests: all / 3,
            unread: all / 6,
            unsent: all / 4,
        }
    }

    /// Shares of a process without a limit that has this number of worker threads.
    pub(crate) const fn unlimited(workers: usize) -> Self {
        Self {
            connections: usize::MAX,
            requests: 32 << 20,
            // 64 full windows of each thread.
            unread: (16 << 20) * workers,
            unsent: 64 << 20,
        }
    }

    /// The number of connections of each port.
    pub(crate) const fn connections_of_port(self, ports: usize) -> usize {
        self.connections / ports
    }

    /// The share of one worker thread in [`Self::unread`].
    pub(crate) const fn unread_of_thread(self, workers: usize) -> usize {
        self.unread / workers
    }
}

/// Memory that plugins may use in a process with this limit.
pub(crate) const fn plugin_memory(limit: usize) -> usize {
    let rest = limit.saturating_sub(sidecar_memory(limit));
    // Below the smallest limit nothing fits; a plugin that was compiled elsewhere may still run.
    if rest > limit / 4 { rest } else { limit / 4 }
}

/// Memory for the idle process and clients. A sidecar with a low limit has fewer clients, so it keeps three eighths of the limit.
const fn sidecar_memory(limit: usize) -> usize {
    let share = limit / 8 * 3;
    if share > MAX_SIDECAR {
        MAX_SIDECAR
    } else if share < IDLE_SIDECAR + MIN_CLIENTS {
        IDLE_SIDECAR + MIN_CLIENTS
    } else {
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn all_bounds_together_fit_limit() {
        for limit in (64..=4096).map(|limit| limit * MIB) {
            let clients = ClientShares::within(limit);
            let all = [
                IDLE_SIDECAR,
                plugin_memory(limit),
                clients.connections * IDLE_CONNECTION,
                clients.requests,
                clients.unread,
                clients.unsent,
            ];
            // A twelfth of the clients' share stays for what is copied while it is edited or sent.
            let spare = (sidecar_memory(limit) - IDLE_SIDECAR) / 12;
            assert!(all.iter().sum::<usize>() + spare <= limit, "{all:?} of {limit}");
            assert!(clients.connections >= 128 && clients.requests >= 4 * MIB, "{clients:?}");
        }
    }

    #[test]
    fn default_limit_is_divided_as_documented() {
        assert_eq!(plugin_memory(256 * MIB), 160 * MIB);
        let expected = ClientShares {
            connections: 768,
            requests: 24 * MIB,
            unread: 12 * MIB,
            unsent: 18 * MIB,
        };
        assert_eq!(ClientShares::within(256 * MIB), expected);
        assert_eq!(expected.unread_of_thread(2), 6 * MIB);
    }

    #[test]
    fn limit_that_is_too_low_leaves_some_memory_to_plugins() {
        assert_eq!(plugin_memory(SMALLEST_LIMIT), 28 * MIB);
        assert_eq!([48, 32, 16].map(|limit| plugin_memory(limit * MIB) / MIB), [12, 8, 4]);
        assert_eq!(ClientShares::within(16 * MIB), ClientShares::within(SMALLEST_LIMIT));
    }
}
