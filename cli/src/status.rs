//! `ctrlmesh status`: the status of a sidecar as a table, or as the sidecar's JSON.

use std::process::ExitCode;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use ctrlmesh_contract::names::readiness;
use ctrlmesh_contract::status::{
    ApiTraffic, EntryState, InFlight, LeaderElection, Refused, StaleCache, Status, Touched,
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
    let answer = admin.get(PATH).await?;
    let status: Status = serde_json::from_str(&answer)
        .map_err(|_| admin.request_error(PATH, "the answer is not the status of a sidecar"))?;
    match args.output {
        Output::Json => print::line(answer.trim()),
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
    let mut facts = new_table();
    facts.add_row(["pod", &format!("{}/{}", status.pod.namespace, status.pod.name)]);
    facts.add_row(["sidecar", &status.version]);
    if !status.not_ready.is_empty() {
        facts.add_row(["not ready", &missing_text(status)]);
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
        facts.add_row(["earlier", &in_flight_text(&status.chain.earlier)]);
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
        facts.add_row(["refused", &refused_text(refused)]);
    }
    for election in &status.leader_elections {
        facts.add_row(["leader", &leader_text(election)]);
    }
    for touched in &status.touched {
        facts.add_row(["touched", &touched_request(touched)]);
    }
    facts
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

/// What an unready sidecar is missing: the names of `/readyz`, each with its meaning.
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

/// What plugins report: an open breaker, how often a fault fired.
fn report_table(status: &Status) -> Option<Table> {
    let mut reports = new_table();
    reports.set_header(["ENTRY", "REPORT", "SAYS"]);
    for entry in &status.chain.entries {
        for (key, report) in &entry.reports {
            reports.add_row([&entry.name, key, &report_text(report)]);
        }
    }
    (!reports.is_empty()).then_some(reports)
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
        0 => "no answer".to_owned(),
        status => status.to_string(),
    };
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
    format!("{resource} of {client}, not listed since {since}{refused}")
}

#[cfg(test)]
mod tests {
    use ctrlmesh_contract::status::Compiling;

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
    fn status_text_names_every_problem() {
        let text = status_text(&serde_json::from_str(STATUS).unwrap(), None);
        for part in [
            "shop/operator-0",
            "--await-entry: the chain has no shard entry for this pod's labels; else",
            "generation 7",
            "2 writes, 3 lists, 1 watches under way, 4 caches",
            "configmaps of manager/v1, not listed since 2026-01-01T00:00:04Z, 9 expired watches refused; no longer waited for",
            "generation 8: it is not signed (Signature",
            "e3b0c44298fc ",
            "quarantined until",
            "update pods a/b: refused by fault-inject/x (rule r), 409; 3 times, last 2026-01-01T00:00:05Z",
            "lock---a: this pod, as me, since 2026-01-01T00:00:03Z",
            "lock---b: not this pod; last known holder is other",
            "lock---c: nobody",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn tables_fit_terminal_and_lose_no_word() {
        let status: Status = serde_json::from_str(STATUS).unwrap();
        let letters = |text: &str| {
            let mut letters: Vec<char> = text.chars().filter(|letter| !letter.is_whitespace()).collect();
            letters.sort_unstable();
            letters
        };
        let whole = status_text(&status, None);
        for width in [60, 80] {
            let text = status_text(&status, Some(width));
            let is_narrow = |line: &str| line.chars().count() <= usize::from(width);
            assert!(text.lines().all(is_narrow), "{width}:\n{text}");
            assert_eq!(letters(&text), letters(&whole), "{width}:\n{text}");
        }
    }

    #[test]
    fn status_text_reports_compilation_instead_of_missing_chain() {
        let status = |not_ready: &str| {
            let json = format!(r#"{{"notReady":[{not_ready}],"compiling":{{"plugins":2,"seconds":3}}}}"#);
            status_text(&serde_json::from_str(&json).unwrap(), None)
        };
        let starting = status(r#""first chain","listener""#);
        assert!(
            starting.contains("compiling 2 plugins (3 s); listener: no traffic is served yet"),
            "{starting}"
        );
        assert!(!starting.contains("no chain loaded yet"), "{starting}");
        let reloading = status("");
        assert!(reloading.contains("compiling 2 plugins (3 s)"), "{reloading}");
        assert!(!reloading.contains("not ready"), "{reloading}");
    }

    /// The rows of the table below a heading and the line that begins with `header`: the text of each cell, without backquotes.
    fn table_rows(page: &str, heading: &str, header: &str) -> Vec<Vec<String>> {
        let (_, section) = page.split_once(&format!("\n{heading}\n")).unwrap();
        let rows = section.lines().skip_while(|line| !line.starts_with(header)).skip(2);
        let cells = |line: &str| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .collect()
        };
        rows.take_while(|line| line.starts_with('|')).map(cells).collect()
    }

    #[test]
    fn documented_readiness_texts_are_those_of_the_sidecar_and_of_status() {
        let page = include_str!("../../docs/operating.md");
        let documented = table_rows(page, "### Not ready", "| `/readyz` says | `ctrlmesh status` says |");
        let status = |not_ready: &str, compiling: Option<Compiling>| {
            missing_text(&Status {
                not_ready: vec![not_ready.to_owned()],
                compiling,
                ..Status::default()
            })
        };
        let mut said: Vec<[String; 2]> = readiness::MEANINGS
            .iter()
            .map(|(name, _)| [(*name).to_owned(), status(name, None)])
            .collect();
        let compiling = Compiling { plugins: 2, seconds: 3 };
        said.insert(
            1,
            [compiling.to_string(), status(readiness::FIRST_CHAIN, Some(compiling))],
        );
        let documented: Vec<&[String]> = documented.iter().filter_map(|row| row.get(..2)).collect();
        assert_eq!(documented, said);
    }

    #[test]
    fn status_text_says_that_chain_is_missing() {
        let text = status_text(&Status::default(), None);
        assert!(text.contains("none yet") && !text.contains("ENTRY"), "{text}");
        assert!(!text.contains("not ready"), "{text}");
    }
}
