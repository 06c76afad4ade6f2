//! Instructions that the sidecar's worker needs for a request, counted by callgrind. Unlike times they are the same in each run, so that a
//! growth by a few percent is one of the code. Instructions of the kernel are not counted.
//!
//! | file | holds |
//! |---|---|
//! | `baselines` | the counts in the repository, and comparing with them |

mod baselines;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use self::baselines::{Baselines, Conditions, Counts, Growth, format_change};
use crate::bench_env::BenchEnv;
use crate::chain::{Chain, SidecarFolder};
use crate::client::Http1Client;
use crate::valgrind::{self, CountedSidecar};
use crate::work::{GET, LIST, Work};

/// Counted requests: a multiple of what the sidecar does once in 64 or 128 requests with verdicts that it can or can't repeat.
const REQUESTS: u64 = 512;
/// Requests before callgrind is on: more than the sidecar remembers verdicts of one plugin.
const WARM_UP: u64 = 640;
/// Number of the first counted request; callgrind is on for some before it.
const FIRST_COUNTED: u64 = WARM_UP + 32;

const TITLE: &str = "Instructions";

/// Compare with baselines, or write them.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BaselineFlags {
    /// Compare instructions with the baselines in this file, and fail if a case needs 5 % more
    #[arg(long, value_name = "FILE", conflicts_with = "update")]
    check: Option<PathBuf>,
    /// Write instructions to this file as baselines
    #[arg(long, value_name = "FILE")]
    update: Option<PathBuf>,
}

struct Case {
    /// The name of the case in the baselines.
    name: &'static str,
    chain: Chain,
    work: Work,
    repeats_verdicts: bool,
    /// Whether each request is for another object.
    changes_name: bool,
}

impl Case {
    const fn new(name: &'static str, chain: Chain, work: Work) -> Self {
        Self {
            name,
            chain,
            work,
            repeats_verdicts: true,
            changes_name: false,
        }
    }

    const fn without_reuse(self) -> Self {
        Self {
            repeats_verdicts: false,
            ..self
        }
    }

    const fn with_changing_name(self) -> Self {
        Self {
            changes_name: true,
            ..self
        }
    }

    /// Fails unless the verdict of each entry was repeated for each counted request, or none where verdicts are not reused or each request
    /// reads another name. `repeated` is the number of repeated verdicts.
    fn check_repetitions(&self, repeated: u64) -> anyhow::Result<()> {
        let expected = if self.repeats_verdicts && !self.changes_name {
            self.chain.entries() * REQUESTS
        } else {
            0
        };
        ensure!(
            repeated == expected,
            "{repeated} verdicts were repeated instead of {expected}, so that this is not what it should measure"
        );
        Ok(())
    }
}

const GET_ALONE: &str = "get, no entry";
/// The sidecar remembers no target of these.
const GET_NAMES: &str = "get, no entry, another name each time";
const LIST_ALONE: &str = "list, no entry";
const LIST_REUSE: &str = "list, shard-selector";
const LIST_CALL: &str = "list, shard-selector, without reuse";
const GET_MISS: &str = "get, fault-inject, another name each time";

const CASES: [Case; 8] = [
    Case::new(GET_ALONE, Chain::Empty, GET),
    Case::new(GET_NAMES, Chain::Empty, GET).with_changing_name(),
    Case::new(LIST_ALONE, Chain::Empty, LIST),
    Case::new(LIST_REUSE, Chain::Sharded, LIST),
    Case::new(LIST_CALL, Chain::Sharded, LIST).without_reuse(),
    Case::new("list, all four", Chain::Full, LIST),
    Case::new("list, all four, without reuse", Chain::Full, LIST).without_reuse(),
    Case::new(GET_MISS, Chain::FaultyByName, GET).with_changing_name(),
];

/// Costs that are the difference of two cases. These have baselines of their own: a repeated verdict could cost twice as much before the request
/// around it has grown by 5 %.
const DIFFERENCES: [(&str, &str, &str); 3] = [
    ("a call: shard-selector", LIST_CALL, LIST_ALONE),
    ("a repeated verdict: shard-selector", LIST_REUSE, LIST_ALONE),
    ("a miss: fault-inject", GET_MISS, GET_NAMES),
];

/// # Errors
/// A case needs more than its baseline, or has none, or could not be measured.
pub(crate) async fn measure_instructions(env: &BenchEnv, flags: &BaselineFlags) -> anyhow::Result<()> {
    let version = valgrind::installed_version().context(
        "there is no `valgrind` on the PATH; install it (Debian and Ubuntu: apt-get install valgrind; Fedora: dnf install \
         valgrind)",
    )?;
    let conditions = Conditions::current(version);
    let before = flags.check.as_deref().map(Baselines::read).transpose()?;
    if let Some(before) = before.as_ref().filter(|it| !it.conditions.is_comparable(&conditions)) {
        env.report
            .print_note(&note_without_comparison(&before.conditions, &conditions));
        return Ok(());
    }
    let folder = env.create_folder(&env.plain, Chain::Full)?;
    let filled = valgrind::fill_compile_cache(&env.program, &folder).await;
    filled.context("starting a sidecar in valgrind")?;
    let mut run = Baselines {
        conditions,
        cases: BTreeMap::new(),
    };
    let mut rows = Vec::new();
    for (generation, case) in (2..).zip(&CASES) {
        folder.write_chain(generation, case.chain, ctrlmesh_plugins_builtin::SHARD_SELECTOR)?;
        let measured = Box::pin(count_case(env, &folder, case)).await;
        let (counts, repeated) = measured.with_context(|| case.name)?;
        rows.push((case.name, Some(repeated_cell(repeated, case.chain))));
        run.cases.insert(case.name.to_owned(), counts);
    }
    for (name, with, without) in DIFFERENCES {
        let case = |name| run.cases.get(name).context("a difference of nothing");
        let difference = case(with)?.minus(case(without)?);
        run.cases.insert(name.to_owned(), difference);
        rows.push((name, None));
    }
    print_counts(env, &rows, &run, before.as_ref());
    if let Some(file) = &flags.update {
        run.clone().write(file)?;
        env.report.print_note(&format!("Written to {}.", file.display()));
    }
    before.map_or(Ok(()), |before| report_findings(env, &before, &run))
}

/// Baselines of another processor, architecture or profile are no failure, but neither are they a comparison.
fn note_without_comparison(baselines: &Conditions, current: &Conditions) -> String {
    format!(
        "Nothing was counted and nothing was compared, so that a growth of instructions would not be noticed here: the \
         baselines are for {baselines}, and this would be {current}."
    )
}

/// Instructions per request, and the number of verdicts that were repeated while they were counted.
async fn count_case(env: &BenchEnv, folder: &SidecarFolder, case: &Case) -> anyhow::Result<(Counts, u64)> {
    let reuse = if case.repeats_verdicts { "on" } else { "off" };
    // No repetition is audited: which ones are is random, and an audit is a call.
    let never = u64::MAX.to_string();
    let flags = ["--plugin-reuse", reuse, "--plugin-audit", &never];
    let counted = CountedSidecar::start(&env.program, folder, env.new_folder("callgrind"), &flags).await?;
    let mut client = Http1Client::connect(counted.sidecar.api, &case.work).await?;
    send_requests(&mut client, case, 0..WARM_UP).await?;
    counted.start_counting()?;
    send_requests(&mut client, case, WARM_UP..FIRST_COUNTED).await?;
    let repeated_before = counted.sidecar.repeated_verdicts().await?;
    counted.reset_counts()?;
    send_requests(&mut client, case, FIRST_COUNTED..FIRST_COUNTED + REQUESTS).await?;
    let profile = counted.busiest_thread()?;
    let repeated = counted.sidecar.repeated_verdicts().await? - repeated_before;
    case.check_repetitions(repeated)?;
    Ok((Counts::per_request(profile, REQUESTS), repeated))
}

async fn send_requests(client: &mut Http1Client, case: &Case, numbers: Range<u64>) -> anyhow::Result<()> {
    for number in numbers {
        if case.changes_name {
            // All of one length.
            client.set_target(&case.work, &format!("{}{number:06}", case.work.target));
        }
        client.send_request().await?;
    }
    Ok(())
}

/// Repeated verdicts, of as many as the counted requests had: one of each entry.
fn repeated_cell(repeated: u64, chain: Chain) -> String {
    format!("{repeated} of {}", chain.entries() * REQUESTS)
}

/// Rows have the text of [`repeated_cell`], except differences.
fn print_counts(env: &BenchEnv, rows: &[(&str, Option<String>)], run: &Baselines, before: Option<&Baselines>) {
    let instructions = |of: &Baselines, name: &str| of.cases.get(name).map(|counts| counts.instructions);
    let cells = rows.iter().map(|(name, repeated_verdicts)| {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(number_cells(
            instructions(run, name),
            before.and_then(|before| instructions(before, name)),
        ));
        cells.push(repeated_verdicts.clone().unwrap_or_else(|| "-".to_owned()));
        cells
    });
    let header = ["", "instructions/request", "baseline", "change", "verdicts repeated"];
    env.report.print_table(TITLE, &header, cells);
    let raw = rows.iter().map(|(name, _)| (*name, instructions(run, name)));
    env.report.add_raw(TITLE, raw.collect());
    let text = |(name, with, without)| format!("*{name}* is *{with}* minus *{without}*.");
    env.report.print_note(&DIFFERENCES.map(text).join("\n"));
}

fn number_cells(now: Option<u64>, before: Option<u64>) -> [String; 3] {
    let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let change = now.zip(before).map(|(now, before)| format_change(before, now));
    [number(now), number(before), change.unwrap_or_else(|| "-".to_owned())]
}

fn report_findings(env: &BenchEnv, before: &Baselines, run: &Baselines) -> anyhow::Result<()> {
    let findings = before.compare(run);
    for (case, growths) in &findings.grown {
        let rows = growths.iter().map(Growth::table_cells);
        env.report.print_table(&format!("Grown: {case}"), &Growth::HEADER, rows);
    }
    for note in &findings.notes {
        env.report.print_note(note);
    }
    if findings.errors.is_empty() {
        return Ok(());
    }
    bail!("{}", findings.errors.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_of_cases() {
        for (_, with, without) in DIFFERENCES {
            for name in [with, without] {
                assert!(CASES.iter().any(|case| case.name == name), "{name}");
            }
        }
    }

    fn case(name: &str) -> Case {
        CASES.into_iter().find(|case| case.name == name).unwrap()
    }

    #[test]
    fn case_with_reuse_fails_unless_all_verdicts_are_repeated() {
        for (name, all) in [("list, all four", 2048), (LIST_REUSE, 512), (GET_ALONE, 0)] {
            assert!(case(name).check_repetitions(all).is_ok(), "{name}");
            assert!(case(name).check_repetitions(all + 1).is_err(), "{name}");
        }
        // One call of one plugin, and none of the plugins repeated.
        for repeated in [2047, 0] {
            let error = case("list, all four").check_repetitions(repeated).unwrap_err();
            let text = format!("{repeated} verdicts were repeated instead of 2048");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }

    #[test]
    fn case_without_reuse_fails_if_a_verdict_is_repeated() {
        for name in [LIST_CALL, "list, all four, without reuse", GET_MISS] {
            assert!(case(name).check_repetitions(0).is_ok(), "{name}");
            assert!(case(name).check_repetitions(1).is_err(), "{name}");
        }
    }

    #[test]
    fn baselines_of_another_processor_are_said_to_be_compared_with_nothing() {
        let baselines = Conditions::current("valgrind-3".to_owned());
        let current = Conditions {
            processor: "of another kind".to_owned(),
            ..baselines.clone()
        };
        assert!(!baselines.is_comparable(&current));
        let note = note_without_comparison(&baselines, &current);
        assert!(note.contains("nothing was compared"), "{note}");
        assert!(
            note.contains(&format!("for {baselines}, and this would be {current}.")),
            "{note}"
        );
    }

    #[test]
    fn repeated_verdicts_are_of_all_entries() {
        assert_eq!(repeated_cell(2048, Chain::Full), "2048 of 2048");
        assert_eq!(repeated_cell(500, Chain::Sharded), "500 of 512");
        assert_eq!(repeated_cell(0, Chain::Empty), "0 of 0");
    }

    #[test]
    fn numbers_without_baseline_are_dashes() {
        assert_eq!(number_cells(Some(106), Some(100)), ["106", "100", "6.0 % more"]);
        assert_eq!(number_cells(Some(106), None), ["106", "-", "-"]);
    }
}
