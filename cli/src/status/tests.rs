//! Tests of what the tables say, against the texts of the sidecar and of the documents.

use ctrlmesh_contract::status::Compiling;

use super::*;

const STATUS: &str = r#"{"pod":{"namespace":"shop","name":"operator-0"},"version":"0.1.0","notReady":["--await-entry","else"],"chain":{"generation":7,
        "since":"2026-01-01T00:00:00Z","entries":[{"name":"shard-selector/shop-0","plugin":
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","settingsHash":"00112233445566",
        "state":"Quarantined","faults":5,"error":"trap","until":"2026-01-01T00:00:01Z",
        "reuse":{"reused":7,"audited":2}}],"earlier":{"writes":2,"lists":3,"watches":1,"caches":4},
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
        "configmaps of manager/v1, no new watch since 2026-01-01T00:00:04Z, 9 expired watches refused; no longer waited for",
        "generation 8: it is not signed (Signature",
        "e3b0c44298fc ",
        "quarantined until",
        "update pods a/b: refused by fault-inject/x (rule r), 409; 3 times, last 2026-01-01T00:00:05Z",
        "lock---a: this pod, as me, since 2026-01-01T00:00:03Z",
        "lock---b: not this pod; last known holder is other",
        "lock---c: nobody",
        "7 repeated without a call, 2 checked",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
}

#[test]
fn status_text_names_impure_plugin() {
    let mut status: Status = serde_json::from_str(STATUS).unwrap();
    let reuse = status.chain.entries[0].reuse.as_mut().unwrap();
    reuse.impure = Some("it decided otherwise".into());
    let text = status_text(&status, None);
    assert!(
        text.contains("7 repeated, none any more: it decided otherwise"),
        "{text}"
    );
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
    let page = include_str!("../../../docs/operating.md");
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
fn status_text_counts_edited_requests_and_names_last() {
    let edited = |count: u64| {
        touched_request(&Touched {
            entry: "shard-selector/a".to_owned(),
            did: "edited".to_owned(),
            request: "list pods".to_owned(),
            status: 200,
            count,
            last: "2026-01-01T00:00:05Z".to_owned(),
            ..Touched::default()
        })
    };
    assert_eq!(
        edited(1),
        "list pods: edited by shard-selector/a, 200; once, last 2026-01-01T00:00:05Z"
    );
    assert_eq!(
        edited(12),
        "12 requests edited by shard-selector/a, the last 2026-01-01T00:00:05Z: list pods, 200"
    );
}

#[test]
fn status_text_of_sidecar_without_chain_dir_or_pod_says_so() {
    let text = |json: &str| status_text(&serde_json::from_str(json).unwrap(), None);
    let plain = text(r#"{"chain":{"disabled":true}}"#);
    assert!(plain.contains("no chain: requests pass unchanged"), "{plain}");
    assert!(!plain.contains('/') && !plain.contains("none yet"), "{plain}");
    let unnamed = text(r#"{"pod":{"namespace":"shop","name":""}}"#);
    assert!(unnamed.contains("shop") && !unnamed.contains("shop/"), "{unnamed}");
}

#[test]
fn status_text_counts_entries_that_select_other_pods() {
    let text = |fields: &str| {
        let json = format!(r#"{{"chain":{{"generation":7{fields}}}}}"#);
        status_text(&serde_json::from_str(&json).unwrap(), None)
    };
    let labeled = text(r#","otherEntries":2"#);
    assert!(labeled.contains("0 for this pod, 2 for other pods"), "{labeled}");
    assert!(!labeled.contains("--labels-file"), "{labeled}");
    let unlabeled = text(r#","otherEntries":2,"withoutLabels":true"#);
    assert!(unlabeled.contains("there is no --labels-file"), "{unlabeled}");
    assert!(!text("").contains("other pods"));
}

#[test]
fn status_text_says_that_chain_is_missing() {
    let text = status_text(&Status::default(), None);
    assert!(text.contains("none yet") && !text.contains("ENTRY"), "{text}");
    assert!(!text.contains("not ready"), "{text}");
}
