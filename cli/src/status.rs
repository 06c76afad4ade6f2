//! `ctrlmesh status`: what a sidecar says of its chain, for people or as the sidecar says it.

use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use ctrlmesh_contract::names::readiness;
use ctrlmesh_contract::status::{EntryState, InFlight, LeaderElection, Status};
use serde_json::Value;

use crate::admin::Admin;
use crate::args::{Output, StatusArgs};
use crate::error::Error;
use crate::print;

/// Runs the command. Fails if it is not ready, the newest chain was refused, or an entry does not work.
pub(crate) async fn run(args: StatusArgs) -> Result<ExitCode, Error> {
    let answer = Admin::new(args.address)?.get("/status").await?;
    let status: Status = serde_json::from_str(&answer)?;
    match args.output {
        Output::Json => print::line(answer.trim()),
        Output::Text => print::line(&text(&status)),
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

fn text(status: &Status) -> String {
    let mut facts = table();
    facts.add_row(["pod", &format!("{}/{}", status.pod.namespace, status.pod.name)]);
    facts.add_row(["sidecar", &status.version]);
    if !status.not_ready.is_empty() {
        facts.add_row(["not ready", &missing(&status.not_ready)]);
    }
    let chain = match status.chain.generation {
        0 => "none yet".to_owned(),
        generation => format!("generation {generation}, since {}", status.chain.since),
    };
    facts.add_row(["chain", &chain]);
    let InFlight {
        writes,
        lists,
        watches,
        caches,
    } = status.chain.earlier;
    if !status.chain.earlier.is_none() {
        let under_way = format!("{writes} writes, {lists} lists, {watches} watches under way, {caches} caches");
        facts.add_row(["earlier", &under_way]);
    }
    let counts = &status.counts;
    facts.add_row([
        "chains",
        &format!("{} applied, {} refused", counts.applied, counts.refused),
    ]);
    facts.add_row([
        "plugins",
        &format!("{} faults, {} quarantines", counts.faults, counts.quarantines),
    ]);
    if let Some(refused) = &status.refused {
        facts.add_row([
            "refused",
            &format!("{} ({}, {})", refused.message, refused.reason, refused.when),
        ]);
    }
    for election in &status.leader_elections {
        facts.add_row(["leader", &leader(election)]);
    }
    if status.chain.entries.is_empty() {
        return facts.trim_fmt();
    }
    let mut parts = vec![facts.trim_fmt(), entries(status).trim_fmt()];
    parts.extend(reports(status).map(|reports| reports.trim_fmt()));
    parts.join("\n\n")
}

/// What a sidecar lacks, by the names that it has for that.
fn missing(names: &[String]) -> String {
    let told = names.iter().map(|name| match name.as_str() {
        readiness::FIRST_CHAIN => "it has no chain yet (ConfigMap ctrlmesh-chain)",
        readiness::AWAIT_ENTRY => "the chain has no shard for this pod's labels",
        readiness::LISTENER => "nothing is served before that",
        readiness::DRAINING => "it was told to end",
        other => other,
    });
    told.collect::<Vec<_>>().join("; ")
}

/// Who holds a lock.
fn leader(election: &LeaderElection) -> String {
    let LeaderElection { lock, holder, .. } = election;
    match (&election.since, holder.as_str()) {
        (Some(since), _) if election.leads => format!("{lock}: this pod, as {holder}, since {since}"),
        (_, "") => format!("{lock}: nobody"),
        _ => format!("{lock}: not this pod; {holder} was the last that was heard of"),
    }
}

/// What plugins have to say: an open breaker, how often a fault fired.
fn reports(status: &Status) -> Option<Table> {
    let mut reports = table();
    reports.set_header(["ENTRY", "REPORT", "SAYS"]);
    for entry in &status.chain.entries {
        for (key, report) in &entry.reports {
            reports.add_row([&entry.name, key, &said(report)]);
        }
    }
    (!reports.is_empty()).then_some(reports)
}

/// An object's fields, one after another; those with nothing in them are left out. Anything else as it is.
fn said(report: &Value) -> String {
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

fn entries(status: &Status) -> Table {
    let mut entries = table();
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
            short(&entry.plugin.hex()),
            short(&entry.settings_hash),
            state,
            entry.faults.to_string(),
            entry.error.clone().unwrap_or_default(),
        ]);
    }
    entries
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

/// Enough of a hash to compare with another by eye.
fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"{"pod":{"namespace":"shop","name":"operator-0"},"version":"0.1.0","notReady":["--await-entry","else"],"chain":{"generation":7,
        "since":"2026-01-01T00:00:00Z","entries":[{"name":"shard-selector/shop-0","plugin":
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","settingsHash":"00112233445566",
        "state":"Quarantined","faults":5,"error":"trap","until":"2026-01-01T00:00:01Z"}],"earlier":{"writes":2,"lists":3,"watches":1,"caches":4}},
        "refused":{"generation":8,"reason":"Signature","message":"it is not signed","when":"2026-01-01T00:00:02Z"},
        "leaderElections":[{"lock":"lock---a","holder":"me","leads":true,"since":"2026-01-01T00:00:03Z"},
        {"lock":"lock---b","holder":"other"},{"lock":"lock---c"}]}"#;

    #[test]
    fn what_is_wrong_is_said() {
        let text = text(&serde_json::from_str(STATUS).unwrap());
        for part in [
            "shop/operator-0",
            "the chain has no shard for this pod's labels; else",
            "generation 7",
            "2 writes, 3 lists, 1 watches under way, 4 caches",
            "it is not signed (Signature",
            "e3b0c44298fc ",
            "quarantined until",
            "lock---a: this pod, as me, since 2026-01-01T00:00:03Z",
            "lock---b: not this pod; other was the last",
            "lock---c: nobody",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn a_sidecar_without_a_chain_says_so() {
        let text = text(&Status::default());
        assert!(text.contains("none yet") && !text.contains("ENTRY"), "{text}");
        assert!(!text.contains("not ready"), "{text}");
    }
}
