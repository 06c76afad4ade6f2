//! The result of the demo: checks and counts as a table or as JSON.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{Cell, CellAlignment, Color, Table};
use serde::Serialize;

use super::checks::{Check, Checks};
use super::progress::Step;
use super::replica::PerReplica;
use super::scenario::FiredRule;
use crate::args::Output;
use crate::error::Error;
use crate::paint::Paint;
use crate::print;

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// Whether every check holds.
    pub(crate) holds: bool,
    /// No check fails, but some are inconclusive because the machine was too slow.
    pub(crate) is_inconclusive: bool,
    pub(crate) seconds: f64,
    #[serde(rename = "claims")]
    pub(crate) checks: Vec<Check>,
    pub(crate) steps: Vec<Step>,
    /// Reconciles of each replica.
    pub(crate) reconciles: PerReplica<u64>,
    /// Requests through each sidecar.
    pub(crate) requests: PerReplica<u64>,
    /// Changes by the user.
    pub(crate) updates: u64,
    /// The fault rules and their results.
    pub(crate) faults: Vec<FiredRule>,
}

impl Summary {
    /// The text at the end of the demo, below the table of checks. The verdict may have colours; all other text is escaped.
    pub(crate) fn result_text(&self, output: Output, paint: Paint, width: Option<u16>) -> Result<String, Error> {
        Ok(match output {
            Output::Json => print::escape_controls(&serde_json::to_string_pretty(self)?),
            Output::Text => {
                let faults = print::escape_controls(&self.fault_table(width));
                format!("{faults}\n{}", self.verdict_line(paint))
            }
        })
    }

    /// The fault rules as a table of at most `width` columns.
    fn fault_table(&self, width: Option<u16>) -> String {
        let mut table = Table::new();
        table
            .load_style(UTF8_BORDERS_ONLY)
            .set_header(["rule of fault file", "matched", "fired", "what came of it"]);
        for rule in &self.faults {
            table.add_row([
                Cell::new(rule.rule),
                number_cell(rule.matched.to_string()),
                number_cell(rule.fired.to_string()),
                Cell::new(&rule.effect),
            ]);
        }
        print::render_table(table, width)
    }

    fn verdict_line(&self, paint: Paint) -> String {
        let (all, seconds) = (self.checks.len(), self.seconds);
        let count = |is_it: fn(&Check) -> bool| self.checks.iter().filter(|check| is_it(check)).count();
        let failed = count(|check| !check.holds && !check.is_inconclusive);
        let verdict = match (failed, count(|check| check.is_inconclusive)) {
            (0, 0) => format!("All {all} checks hold"),
            (0, open) => format!("Inconclusive: machine too slow for {open} of {all} checks, the others hold"),
            (failed, _) => format!("{failed} of {all} checks FAIL"),
        };
        format!("{} ({seconds:.1} s).", paint.bold(&verdict))
    }
}

fn number_cell(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// The checks as a table of at most `width` columns.
pub(crate) fn check_table(checks: &Checks, paint: Paint, width: Option<u16>) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_header(["#", "counted", "must be", "is", ""]);
    for check in checks.as_slice() {
        let (sign, colour) = match (check.holds, check.is_inconclusive) {
            (true, _) => ("✔", Color::Green),
            (false, true) => ("?", Color::Yellow),
            (false, false) => ("✘", Color::Red),
        };
        let sign = if paint == Paint::Coloured {
            Cell::new(sign).fg(colour)
        } else {
            Cell::new(sign)
        };
        table.add_row([
            Cell::new(check.step),
            Cell::new(check.text),
            number_cell(check.expected.to_string()),
            number_cell(check.counted.to_string()),
            sign,
        ]);
    }
    print::render_table(table, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::checks::Expected;

    #[test]
    fn failed_check_is_marked_and_counted() {
        let mut checks = Checks::default();
        checks.record_count(2, "widgets handled by both replicas", Expected::Exactly(0), 3);
        checks.record_count(4, "reconciles meanwhile", Expected::AtLeast(100), 120);
        let text = check_table(&checks, Paint::Plain, None);
        assert!(
            text.contains("✘") && text.contains("✔") && !text.contains('\x1b'),
            "{text}"
        );
        let mut summary = Summary {
            holds: false,
            is_inconclusive: false,
            seconds: 12.34,
            checks: checks.as_slice().to_vec(),
            steps: Vec::new(),
            reconciles: PerReplica::default(),
            requests: PerReplica::default(),
            updates: 0,
            faults: Vec::new(),
        };
        assert_eq!(summary.verdict_line(Paint::Plain), "1 of 2 checks FAIL (12.3 s).");
        checks.record_count_at_speed(7, "waited", Expected::AtLeast(40), 3, true);
        summary.checks = checks.as_slice()[1..].to_vec();
        let expected = "Inconclusive: machine too slow for 1 of 2 checks, the others hold (12.3 s).";
        assert_eq!(summary.verdict_line(Paint::Plain), expected);
        assert!(super::check_table(&checks, Paint::Plain, None).contains('?'));
        summary.checks = checks.as_slice().to_vec();
        assert_eq!(summary.verdict_line(Paint::Plain), "1 of 3 checks FAIL (12.3 s).");
    }

    #[test]
    fn verdict_is_bold_on_a_terminal_and_other_text_is_escaped() {
        let fired = FiredRule {
            rule: "reset",
            matched: 1,
            fired: 1,
            effect: "answer \u{7}".to_owned(),
        };
        let summary = Summary {
            seconds: 12.34,
            faults: vec![fired],
            ..Summary::default()
        };
        let text = |output, paint| summary.result_text(output, paint, None).unwrap();
        let painted = text(Output::Text, Paint::Coloured);
        assert!(
            painted.ends_with("\n\u{1b}[1mAll 0 checks hold\u{1b}[0m (12.3 s)."),
            "{painted:?}"
        );
        assert!(
            painted.contains("answer \\u0007") && !painted.contains("\\u001b"),
            "{painted:?}"
        );
        assert!(text(Output::Text, Paint::Plain).ends_with("\nAll 0 checks hold (12.3 s)."));
        assert!(text(Output::Json, Paint::Plain).starts_with('{'));
    }

    #[test]
    fn tables_fit_terminal_and_lose_no_word() {
        let mut checks = Checks::default();
        let longest = "responses lost without a hint: writes that were done again";
        checks.record_count(2, longest, Expected::AtLeast(100_000), 123_456);
        checks.record_count(
            10,
            "failures that controllers met, all from the file",
            Expected::Exactly(0),
            3,
        );
        let fired = FiredRule {
            rule: "lose-responses-without-hint",
            matched: 1234,
            fired: 567,
            effect: "12 of 34 writes were done again, and each of them was seen by the API server".to_owned(),
        };
        let summary = Summary {
            faults: vec![fired],
            ..Summary::default()
        };
        for paint in [Paint::Plain, Paint::Coloured] {
            for width in [40, 60, 80, 100] {
                for (text, whole) in [
                    (
                        check_table(&checks, paint, Some(width)),
                        check_table(&checks, paint, None),
                    ),
                    (summary.fault_table(Some(width)), summary.fault_table(None)),
                ] {
                    let widest = text.lines().map(visible_width).max();
                    assert!(widest <= Some(usize::from(width)), "{width}:\n{text}");
                    assert_eq!(sorted_letters(&text), sorted_letters(&whole), "{width}:\n{text}");
                }
            }
        }
    }

    /// Columns of a line on a terminal.
    fn visible_width(line: &str) -> usize {
        let parts = line.split('\x1b').enumerate();
        let parts = parts.map(|(at, part)| match at {
            0 => part,
            _ => part.split_once('m').map_or("", |(_, rest)| rest),
        });
        parts.map(|part| part.chars().count()).sum()
    }

    fn sorted_letters(text: &str) -> Vec<char> {
        let mut letters: Vec<char> = text.chars().filter(|letter| letter.is_alphanumeric()).collect();
        letters.sort_unstable();
        letters
    }
}
