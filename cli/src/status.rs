//! `ctrlmesh status`: the status of a sidecar as a table, or as the sidecar's JSON.

use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use ctrlmesh_contract::names::readiness;
use ctrlmesh_contract::status::{
    ApiTraffic, ChainStatus, EntryState, InFlight, LeaderElection, Pod, Refused, ReuseStatus, StaleCache, Status,
    Touched,
};
use serde_json::Value;

use crate::admin::Admin;
use crate::args::{Output, StatusArgs};
use crate::error::Error;
use crate::print;

const PATH: &str = "/status";

/// Exits 1 if the sidecar is not ready, the newest chain was refused, or an entry does not work.
pub(crate) async fn run(args: StatusArgs) -> Result<ExitCode, Error> {
    let admin = Admin::new(args.address)?;
    let response = admin.get(PATH).await?;
    let status: Status = serde_json::from_str(&response)
        .map_err(|_| admin.request_error(PATH, "the response is not the status of a sidecar"))?;
    match args.output.format {
        Output::Json => print::line(response.trim()),
        Output::Text => print::line(&status_text(&status, print::terminal_width())),
    }
    let is_well = status.not_ready.is_empty()
        && status.refused.is_none()
        && status
            .chain
            .entries
            .iter()
            .all(|entry| entry.state == EntryState::Active);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn status_text(status: &Status, width: Option<u16>) -> String {
    let mut tables = vec![sidecar_table(status)];
    if !status.chain.entries.is_empty() {
        tables.push(entry_table(status));
        tables.extend(report_table(status));
    }
    let tables = tables.into_iter().map(|table| print::render_table(table, width));
    tables.collect::<Vec<_>>().join("\n\n")
}

fn sidecar_table(status: &Status) -> Table {
    let mut rows = new_table();
    rows.add_row(["pod", &pod_text(&status.pod)]);
    rows.add_row(["sidecar", &status.version]);
    if !status.not_ready.is_empty() {
        rows.add_row(["not ready", &missing_text(status)]);
    } else if let Some(compiling) = &status.compiling {
        rows.add_row(["next chain", &compiling.to_string()]);
    }
    rows.add_row(["chain", &chain_text(&status.chain)]);
    if status.chain.other_entries > 0 {
        rows.add_row(["entries", &selection_text(&status.chain)]);
    }
    if let Some(traffic) = &status.api_traffic {
        rows.add_row(["API traffic", &api_traffic(traffic)]);
    }
    if !status.chain.earlier.is_none() {
        rows.add_row(["earlier", &in_flight_text(&status.chain.earlier)]);
    }
    for cache in &status.chain.stale_caches {
        rows.add_row(["stale cache", &stale_cache(cache)]);
    }
    let counts = &status.counts;
    rows.add_row([
        "chains",
        &format!("{} applied, {} refused", counts.applied, counts.refused),
    ]);
    rows.add_row([
        "plugins",
        &format!("{} faults, {} quarantines", counts.faults, counts.quarantines),
    ]);
    if let Some(refused) = &status.refused {
        rows.add_row(["refused", &refused_text(refused)]);
    }
    for election in &status.leader_elections {
        rows.add_row(["leader", &leader_text(election)]);
    }
    for touched in &status.touched {
        rows.add_row(["touched", &touched_request(touched)]);
    }
    rows
}

/// A sidecar outside a pod may have neither a namespace nor a name.
fn pod_text(pod: &Pod) -> String {
    match (pod.namespace.as_str(), pod.name.as_str()) {
        ("", "") => "-".to_owned(),
        (text, "") | ("", text) => text.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    }
}

fn chain_text(chain: &ChainStatus) -> String {
    match chain.generation {
        _ if chain.disabled => "no chain: requests pass unchanged; there is no --chain-dir".to_owned(),
        0 => "none yet".to_owned(),
        generation => format!("generation {generation}, since {}", chain.since),
    }
}

/// How many entries of the chain run in this pod, if others select other pods.
fn selection_text(chain: &ChainStatus) -> String {
    let (here, elsewhere) = (chain.entries.len(), chain.other_entries);
    let unlabeled = if chain.without_labels {
        "; this pod has no labels, because there is no --labels-file"
    } else {
        ""
    };
    format!("{here} for this pod, {elsewhere} for other pods by their labels{unlabeled}")
}

fn refused_text(refused: &Refused) -> String {
    let Refused {
        generation,
        reason,
        message,
        when,
    } = refused;
    let generation = generation.map_or_else(String::new, |generation| format!("generation {generation}: "));
    format!("{generation}{message} ({reason}, {when})")
}

fn in_flight_text(earlier: &InFlight) -> String {
    let InFlight {
        writes,
        lists,
        watches,
        caches,
    } = earlier;
    format!("{writes} writes, {lists} lists, {watches} watches under way, {caches} caches")
}

/// Whether the controller sends requests through its sidecar.
fn api_traffic(traffic: &ApiTraffic) -> String {
    match (&traffic.last, &traffic.since) {
        (Some(_), _) if traffic.in_flight.is_some_and(|count| count > 0) => "requests are in flight".to_owned(),
        (Some(last), _) => format!("last request at {last}"),
        (None, Some(since)) => {
            format!("none since {since}; a controller that ignores KUBECONFIG bypasses the sidecar")
        }
        (None, None) => "not accepted yet".to_owned(),
    }
}

/// The conditions that an unready sidecar does not meet: the names of `/readyz`, each with its meaning.
fn missing_text(status: &Status) -> String {
    let reasons = status.not_ready.iter().map(|name| match &status.compiling {
        Some(compiling) if name == readiness::FIRST_CHAIN => compiling.to_string(),
        _ => readiness::meaning(name).map_or_else(|| name.clone(), |meaning| format!("{name}: {meaning}")),
    });
    reasons.collect::<Vec<_>>().join("; ")
}

fn leader_text(election: &LeaderElection) -> String {
    let LeaderElection { lock, holder, .. } = election;
    match (&election.since, holder.as_str()) {
        (Some(since), _) if election.leads => format!("{lock}: this pod, as {holder}, since {since}"),
        (_, "") => format!("{lock}: nobody"),
        _ => format!("{lock}: not this pod; last known holder is {holder}"),
    }
}

/// Reports of plugins, such as an open breaker or how often a fault fired, and how many of their verdicts were repeated.
fn report_table(status: &Status) -> Option<Table> {
    let mut reports = new_table();
    reports.set_header(["ENTRY", "REPORT", "SAYS"]);
    for entry in &status.chain.entries {
        for (key, report) in &entry.reports {
            reports.add_row([&entry.name, key, &report_text(report)]);
        }
        if let Some(reuse) = &entry.reuse {
            reports.add_row([&entry.name, "reusable verdicts", &reuse_text(reuse)]);
        }
    }
    (!reports.is_empty()).then_some(reports)
}

fn reuse_text(reuse: &ReuseStatus) -> String {
    let ReuseStatus {
        reused,
        audited,
        impure,
    } = reuse;
    match impure {
        None => format!("{reused} repeated without a call, {audited} checked"),
        Some(why) => format!("{reused} repeated, none any more: {why}"),
    }
}

/// The non-empty fields of an object, one after another. Anything else unchanged.
fn report_text(report: &Value) -> String {
    let Value::Object(fields) = report else {
        return report.to_string();
    };
    let said = fields.iter().filter_map(|(name, value)| match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(format!("{name} {text}")),
        other => Some(format!("{name} {other}")),
    });
    said.collect::<Vec<_>>().join(", ")
}

fn entry_table(status: &Status) -> Table {
    let mut entries = new_table();
    entries.set_header(["ENTRY", "PLUGIN", "SETTINGS", "STATE", "FAULTS", "LAST FAULT"]);
    for entry in &status.chain.entries {
        let state = match (entry.state, &entry.until) {
            (EntryState::Active, _) => "active".to_owned(),
            (EntryState::Failed, _) => "failing".to_owned(),
            (EntryState::Quarantined, Some(until)) => format!("quarantined until {until}"),
            (EntryState::Quarantined, None) => "quarantined".to_owned(),
        };
        entries.add_row([
            entry.name.clone(),
            short_hash(&entry.plugin.hex()),
            short_hash(&entry.settings_hash),
            state,
            entry.faults.to_string(),
            entry.error.clone().unwrap_or_default(),
        ]);
    }
    entries
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

/// Enough of a hash to compare it by eye.
fn short_hash(hash: &str) -> String {
    hash.chars().take(12).collect()
}

fn touched_request(touched: &Touched) -> String {
    let Touched {
        entry,
        did,
        request,
        count,
        last,
        ..
    } = touched;
    let rule = match &*touched.rule {
        "" => String::new(),
        rule => format!(" (rule {rule})"),
    };
    let status = match touched.status {
        0 => "no response".to_owned(),
        status => status.to_string(),
    };
    // The entry's edits of all requests are one row, and what it says of a request is of the last one.
    if did == "edited" && *count > 1 {
        return format!("{count} requests edited by {entry}{rule}, the last {last}: {request}, {status}");
    }
    let times = match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    };
    format!("{request}: {did} by {entry}{rule}, {status}; {times}, last {last}")
}

fn stale_cache(cache: &StaleCache) -> String {
    let StaleCache {
        client,
        resource,
        since,
        ..
    } = cache;
    let refused = match (cache.refused_watches, cache.given_up) {
        (0, _) => String::new(),
        (count, false) => format!(", {count} expired watches refused"),
        (count, true) => format!(", {count} expired watches refused; no longer waited for"),
    };
    format!("{resource} of {client}, no new watch since {since}{refused}")
}

#[cfg(test)]
mod tests;
