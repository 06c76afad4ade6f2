//! Small lists through a TLS upstream, as sidecars have it in a cluster, on one connection (an ordinary operator) and on many.

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::envoy::ENVOY_WASM;
use crate::contestants::{NGINX, NO_ENTRY};
use crate::cost::{CostBudget, CostTable};
use crate::work::{HttpVersion, LIST};

const ALL_FOUR: &str = "ctrlmesh, all four";

pub(crate) const ONE_CONNECTION: [CostBudget; 2] = [
    CostBudget::Ratio {
        row: NO_ENTRY,
        to: NGINX,
        at_most: 1.05,
    },
    CostBudget::Ratio {
        row: ALL_FOUR,
        to: ENVOY_WASM,
        at_most: 0.5,
    },
];

pub(crate) const MANY_CONNECTIONS: [CostBudget; 3] = [
    CostBudget::Ratio {
        row: ALL_FOUR,
        to: NO_ENTRY,
        at_most: 1.15,
    },
    CostBudget::Ratio {
        row: ALL_FOUR,
        to: NGINX,
        at_most: 1.1,
    },
    CostBudget::Ratio {
        row: ALL_FOUR,
        to: ENVOY_WASM,
        at_most: 0.5,
    },
];

/// With `--all` also over HTTP/2.
pub(crate) async fn measure_tls_requests(env: &BenchEnv) -> anyhow::Result<()> {
    let mut contestants = env.start_others(&env.tls)?;
    for (name, chain) in [(NO_ENTRY, Chain::Empty), (ALL_FOUR, Chain::Full)] {
        let sidecar = env.start_sidecar(&env.tls, chain).await?;
        contestants.push(sidecar.into_contestant(name));
    }
    let versions: &[HttpVersion] = if env.scale.all {
        &[HttpVersion::Http1, HttpVersion::Http2]
    } else {
        &[HttpVersion::Http1]
    };
    for &version in versions {
        for clients in [1, 16, 64] {
            let budgets: &[CostBudget] = match (version, clients) {
                (HttpVersion::Http2, _) => &[],
                (HttpVersion::Http1, 1) => &ONE_CONNECTION,
                (HttpVersion::Http1, _) => &MANY_CONNECTIONS,
            };
            let unit = match version {
                HttpVersion::Http1 => "connections",
                HttpVersion::Http2 => "streams",
            };
            let table = CostTable {
                title: format!(
                    "Requests: {}, {}, {unit}: {clients}, {}",
                    LIST.name,
                    version.name(),
                    env.tls.describe()
                ),
                work: LIST,
                version,
                clients,
                contestants: &contestants,
                budgets,
            };
            table.measure(env).await?;
        }
    }
    Ok(())
}
