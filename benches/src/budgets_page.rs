//! Compares the budgets in docs/benchmarks.md with those of this program.

use crate::cost::CostBudget;
use crate::{filtered_watches, object_filter, reload, requests, start, tls_requests, watch_events, watches};

const PAGE: &str = include_str!("../../docs/benchmarks.md");

/// How a row of the page begins.
fn budget_cells(what: &str, at_most: f64, unit: &str) -> String {
    format!("| {what} | ≤ {at_most}{unit} |")
}

fn rate_cells(what: &str, at_least: f64) -> String {
    format!("| {what} | ≥ {at_least} MB/s |")
}

fn cost_cells(request: &str, budgets: &[CostBudget]) -> Vec<String> {
    let cells = |budget: &CostBudget| match *budget {
        CostBudget::Ratio { row, to, at_most } => budget_cells(&format!("CPU, {request}: {row} ÷ {to}"), at_most, ""),
        CostBudget::Difference { what, at_most, .. } => budget_cells(&format!("{what}, {request}"), at_most, " µs"),
    };
    budgets.iter().map(cells).collect()
}

/// The rows of the first table below the heading of the budgets.
fn rows_of_page() -> Vec<&'static str> {
    let (_, section) = PAGE.split_once("\n## Where the budgets stand\n").unwrap();
    let table = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    table.take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn page_lists_the_budgets() {
    let mut expected = cost_cells("`get`", &requests::GET_BUDGETS);
    expected.extend(cost_cells("list", &requests::LIST_BUDGETS));
    expected.extend(cost_cells("list over TLS, 1 connection", &tls_requests::ONE_CONNECTION));
    expected.extend(cost_cells(
        "list over TLS, 16 and 64 connections",
        &tls_requests::MANY_CONNECTIONS,
    ));
    expected.extend([
        rate_cells("filtered JSON list, a tenth kept", object_filter::JSON_RATE),
        rate_cells("filtered protobuf list, a tenth kept", object_filter::PROTOBUF_RATE),
        budget_cells(
            "filtered watch event: added time",
            object_filter::ADDED_PER_EVENT,
            " µs",
        ),
        budget_cells("watch event, shard-selector: added p50", watch_events::ADDED_P50, " µs"),
        budget_cells("watch event, shard-selector: added p99", watch_events::ADDED_P99, " µs"),
        budget_cells(
            "1,000 watches, HTTP/2 clients: added memory",
            watches::ADDED_HTTP2,
            " MiB",
        ),
        budget_cells(
            "1,000 watches, HTTP/1.1 clients: added memory",
            watches::ADDED_HTTP1,
            " MiB",
        ),
        budget_cells(
            "100 filtered watches, hash ranges of `uid`: added memory",
            filtered_watches::ADDED_BY_UID,
            " MiB",
        ),
        budget_cells("ready, all four precompiled, cold cache", start::READY, " ms"),
        budget_cells("idle, all four: anonymous memory", start::IDLE_ANONYMOUS, " MiB"),
        budget_cells("idle, all four: resident memory", start::IDLE_RESIDENT, " MiB"),
        budget_cells("hot reload: added p99.9", reload::ADDED_P999, " ms"),
        budget_cells("hot reload: failed requests", reload::FAILED_REQUESTS, ""),
    ]);
    let listed = rows_of_page();
    assert_eq!(listed.len(), expected.len(), "{listed:#?}");
    for (row, cells) in listed.iter().zip(&expected) {
        assert!(
            row.starts_with(cells.as_str()),
            "docs/benchmarks.md has {row}, the program {cells}"
        );
    }
}
