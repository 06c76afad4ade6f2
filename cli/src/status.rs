//! `ctrlmesh status`: what a sidecar says of its chain, for people or as the sidecar says it.

use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use ctrlmesh_contract::names::readiness;
use ctrlmesh_contract::status::{ApiTraffic, EntryState, InFlight, LeaderElection, StaleCache, Status, Touched};
use serde_json::Value;

use crate::admin::Admin;
use crate::args::{Output, StatusArgs};
use crate::error::Error;
use crate::print;

/// What is asked for.
const PATH: &str = "/status";

/// Runs the command. Fails if it is not ready, the newest chain was refused, or an entry does not work.
pub(crate) async fn run(args: StatusArgs) -> Result<ExitCode, Error> {
    let admin = Admin::new(args.address)?;
    let answer = admin.get(PATH).await?;
    let status: Status =
        serde_json::from_str(&answer).map_err(|_| admin.failed(PATH, "the answer is no status of a sidecar"))?;
    match args.output {
        Output::Json => print::line(answer.trim()),
        Output::Text => print::line(&text(&status, print::width())),
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

fn text(status: &Status, width: Option<u16>) -> String {
    let mut tables = vec![facts(status)];
    if !status.chain.entries.is_empty() {
        tables.push(entries(status));
        tables.extend(reports(status));
    }
    let tables = tables.into_iter().map(|table| print::table(table, width));
    tables.collect::<Vec<_>>().join("\n\n")
}

/// What holds for the whole sidecar.
fn facts(status: &Status) -> Table {
    let mut facts = table();
    facts.add_row(["pod", &format!("{}/{}", status.pod.namespace, status.pod.name)]);
    facts.add_row(["sidecar", &status.version]);
    if !status.not_ready.is_empty() {
        facts.add_row(["not ready", &missing(status)]);
    } else if let Some(compiling) = &status.compiling {
        facts.add_row(["next chain", &compiling.to_string()]);
    }
    let chain = match status.chain.generation {
        0 => "none yet".to_owned(),
        generation => format!("generation {generation}, since {}", status.chain.since),
    };
    facts.add_row(["chain", &chain]);
    if let Some(traffic) = &status.api_traffic {
        facts.add_row(["API traffic", &api_traffic(traffic)]);
    }
    if !status.chain.earlier.is_none() {
        facts.add_row(["earlier", &under_way(&status.chain.earlier)]);
    }
    for cache in &status.chain.stale_caches {
        facts.add_row(["stale cache", &stale_cache(cache)]);
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
    for touched in &status.touched {
        facts.add_row(["touched", &touched_request(touched)]);
    }
    facts
}

fn under_way(earlier: &InFlight) -> String {
    let InFlight {
        writes,
        lists,
        watches,
        caches,
    } = earlier;
    format!("{writes} writes, {lists} lists, {watches} watches under way, {caches} caches")
}

/// Whether the controller sends anything through its sidecar.
fn api_traffic(traffic: &ApiTraffic) -> String {
    match (&traffic.last, &traffic.since) {
        (Some(_), _) if traffic.in_flight.is_some_and(|count| count > 0) => "requests are in flight".to_owned(),
        (Some(last), _) => format!("last request at {last}"),
        (None, Some(since)) => {
            format!("none since {since}; a controller that ignores KUBECONFIG goes past the sidecar")
        }
        (None, None) => "not taken yet".to_owned(),
    }
}

/// What a sidecar lacks, by the names that it has for that.
fn missing(status: &Status) -> String {
    let compiling = status.compiling.as_ref().map(ToString::to_string);
    let told = status.not_ready.iter().map(|name| match name.as_str() {
        readiness::FIRST_CHAIN if compiling.is_some() => compiling.as_deref().unwrap_or_default(),
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
        0 => "no answer".to_owned(),
        status => status.to_string(),
    };
    format!("{request}: {did} by {entry}{rule}, {status}; {count} times, last {last}")
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
    format!("{resource} of {client}, not listed since {since}{refused}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"{"pod":{"namespace":"shop","name":"operator-0"},"version":"0.1.0","notReady":["--await-entry","else"],"chain":{"generation":7,
        "since":"2026-01-01T00:00:00Z","entries":[{"name":"shard-selector/shop-0","plugin":
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","settingsHash":"00112233445566",
        "state":"Quarantined","faults":5,"error":"trap","until":"2026-01-01T00:00:01Z"}],"earlier":{"writes":2,"lists":3,"watches":1,"caches":4},
        "staleCaches":[{"client":"manager/v1","resource":"configmaps","since":"2026-01-01T00:00:04Z","refusedWatches":9,"givenUp":true}]},
        "refused":{"generation":8,"reason":"Signature","message":"it is not signed","when":"2026-01-01T00:00:02Z"},
        "touched":[{"entry":"fault-inject/x","rule":"r","did":"refused","request":"update pods a/b","status":409,"count":3,"last":"2026-01-01T00:00:05Z"}],
        "leaderElections":[{"lock":"lock---a","holder":"me","leads":true,"since":"2026-01-01T00:00:03Z"},
        {"lock":"lock---b","holder":"other"},{"lock":"lock---c"}]}"#;

    #[test]
    fn what_is_wrong_is_said() {
        let text = text(&serde_json::from_str(STATUS).unwrap(), None);
        for part in [
            "shop/operator-0",
            "the chain has no shard for this pod's labels; else",
            "generation 7",
            "2 writes, 3 lists, 1 watches under way, 4 caches",
            "configmaps of manager/v1, not listed since 2026-01-01T00:00:04Z, 9 expired watches refused; no longer waited for",
            "it is not signed (Signature",
            "e3b0c44298fc ",
            "quarantined until",
            "update pods a/b: refused by fault-inject/x (rule r), 409; 3 times, last 2026-01-01T00:00:05Z",
            "lock---a: this pod, as me, since 2026-01-01T00:00:03Z",
            "lock---b: not this pod; other was the last",
            "lock---c: nobody",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn tables_are_not_wider_than_the_terminal_and_lose_no_word() {
        let status: Status = serde_json::from_str(STATUS).unwrap();
        let letters = |text: &str| {
            let mut letters: Vec<char> = text.chars().filter(|letter| !letter.is_whitespace()).collect();
            letters.sort_unstable();
            letters
        };
        let whole = text(&status, None);
        for width in [60, 80] {
            let told = text(&status, Some(width));
            let is_narrow = |line: &str| line.chars().count() <= usize::from(width);
            assert!(told.lines().all(is_narrow), "{width}:\n{told}");
            assert_eq!(letters(&told), letters(&whole), "{width}:\n{told}");
        }
    }

    #[test]
    fn sidecar_that_compiles_says_so_instead_of_that_it_has_no_chain() {
        let status = |not_ready: &str| {
            let json = format!(r#"{{"notReady":[{not_ready}],"compiling":{{"plugins":2,"seconds":3}}}}"#);
            text(&serde_json::from_str(&json).unwrap(), None)
        };
        let starting = status(r#""first chain","listener""#);
        assert!(
            starting.contains("compiling 2 plugins (3 s); nothing is served"),
            "{starting}"
        );
        assert!(!starting.contains("it has no chain yet"), "{starting}");
        let reloading = status("");
        assert!(reloading.contains("compiling 2 plugins (3 s)"), "{reloading}");
        assert!(!reloading.contains("not ready"), "{reloading}");
    }

    #[test]
    fn a_sidecar_without_a_chain_says_so() {
        let text = text(&Status::default(), None);
        assert!(text.contains("none yet") && !text.contains("ENTRY"), "{text}");
        assert!(!text.contains("not ready"), "{text}");
    }
}
