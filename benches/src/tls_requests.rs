//! Small lists through a TLS upstream, as sidecars have it in a cluster, on one connection (an ordinary operator) and on many.

use crate::bench_env::BenchEnv;
use crate::chain::Chain;
use crate::contestants::envoy::ENVOY_WASM;
use crate::contestants::{NGINX, NO_ENTRY};
use crate::cost::{CostBudget, CostTable};
use crate::work::{HttpVersion, LIST, LIST_WITH_TOKEN, Work};

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

/// With `--all` also over HTTP/2, and with the token of a service account.
pub(crate) async fn measure_tls_requests(env: &BenchEnv) -> anyhow::Result<()> {
    let mut contestants = env.start_others(&env.tls)?;
    for (name, chain) in [(NO_ENTRY, Chain::Empty), (ALL_FOUR, Chain::Full)] {
        let sidecar = env.start_sidecar(&env.tls, chain).await?;
        contestants.push(sidecar.into_contestant(name));
    }
    let budgeted = [(LIST, HttpVersion::Http1)];
    let all = [
        (LIST, HttpVersion::Http1),
        (LIST, HttpVersion::Http2),
        (LIST_WITH_TOKEN, HttpVersion::Http1),
    ];
    let requests: &[(Work, HttpVersion)] = if env.scale.all { &all } else { &budgeted };
    for &(work, version) in requests {
        for clients in [1, 16, 64] {
            let unit = match version {
                HttpVersion::Http1 => "connections",
                HttpVersion::Http2 => "streams",
            };
            let table = CostTable {
                title: format!(
                    "Requests: {}, {}, {unit}: {clients}, {}",
                    work.name,
                    version.name(),
                    env.tls.describe()
                ),
                work,
                version,
                clients,
                contestants: &contestants,
                budgets: budgets_of(&work, version, clients),
            };
            table.measure(env).await?;
        }
    }
    Ok(())
}

const fn budgets_of(work: &Work, version: HttpVersion, clients: usize) -> &'static [CostBudget] {
    match (version, work.token_length, clients) {
        (HttpVersion::Http1, None, 1) => &ONE_CONNECTION,
        (HttpVersion::Http1, None, _) => &MANY_CONNECTIONS,
        _ => &[],
    }
}
