//! The end of the demo: what was claimed and what was counted, as a table or as JSON.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{Cell, CellAlignment, Color, Table};
use serde::Serialize;

use super::acts::Fired;
use super::claims::{Claim, Claims};
use super::replica::PerReplica;
use super::stage::Step;
use crate::error::Error;
use crate::paint::Paint;
use crate::print;

/// The result of a run.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    /// Whether every claim holds.
    pub(crate) holds: bool,
    /// None fails, but some say nothing, for the machine was too slow.
    pub(crate) is_inconclusive: bool,
    /// How long it took.
    pub(crate) seconds: f64,
    /// What was claimed and counted.
    pub(crate) claims: Vec<Claim>,
    /// What happened.
    pub(crate) steps: Vec<Step>,
    /// Reconciles of each replica.
    pub(crate) reconciles: PerReplica<u64>,
    /// Requests that each sidecar carried.
    pub(crate) requests: PerReplica<u64>,
    /// Changes that the user made.
    pub(crate) updates: u64,
    /// The rules for faults, and what came of them.
    pub(crate) faults: Vec<Fired>,
}

impl Summary {
    /// As one JSON document.
    pub(crate) fn json(&self) -> Result<String, Error> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// The rules for faults as a table of at most so many columns.
    pub(crate) fn faults(&self, width: Option<u16>) -> String {
        let mut table = Table::new();
        table
            .load_style(UTF8_BORDERS_ONLY)
            .set_header(["rule of fault file", "matched", "fired", "what came of it"]);
        for rule in &self.faults {
            table.add_row([
                Cell::new(rule.rule),
                number(rule.matched.to_string()),
                number(rule.fired.to_string()),
                Cell::new(&rule.effect),
            ]);
        }
        print::table(table, width)
    }

    /// As one sentence.
    pub(crate) fn verdict(&self, paint: Paint) -> String {
        let (all, seconds) = (self.claims.len(), self.seconds);
        let count = |is_it: fn(&Claim) -> bool| self.claims.iter().filter(|claim| is_it(claim)).count();
        let failed = count(|claim| !claim.holds && !claim.is_inconclusive);
        let verdict = match (failed, count(|claim| claim.is_inconclusive)) {
            (0, 0) => format!("All {all} claims hold"),
            (0, open) => format!("Inconclusive: machine too slow for {open} of {all} claims, the others hold"),
            (failed, _) => format!("{failed} of {all} claims FAIL"),
        };
        format!("{} ({seconds:.1} s).", paint.bold(&verdict))
    }
}

fn number(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// The claims as a table of at most so many columns.
pub(crate) fn text(claims: &Claims, paint: Paint, width: Option<u16>) -> String {
    let mut table = Table::new();
    table
        .load_style(UTF8_BORDERS_ONLY)
        .set_header(["#", "counted", "must be", "is", ""]);
    for claim in claims.all() {
        let (sign, colour) = match (claim.holds, claim.is_inconclusive) {
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
            Cell::new(claim.step),
            Cell::new(claim.claim),
            number(claim.expected.to_string()),
            number(claim.counted.to_string()),
            sign,
        ]);
    }
    print::table(table, width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::claims::Expected;

    #[test]
    fn a_failed_claim_is_marked_and_counted() {
        let mut claims = Claims::default();
        claims.count(2, "widgets handled by both replicas", Expected::Exactly(0), 3);
        claims.count(4, "reconciles meanwhile", Expected::AtLeast(100), 120);
        let text = text(&claims, Paint::Plain, None);
        assert!(
            text.contains("✘") && text.contains("✔") && !text.contains('\x1b'),
            "{text}"
        );
        let mut summary = Summary {
            holds: false,
            is_inconclusive: false,
            seconds: 12.34,
            claims: claims.all().to_vec(),
            steps: Vec::new(),
            reconciles: PerReplica::default(),
            requests: PerReplica::default(),
            updates: 0,
            faults: Vec::new(),
        };
        assert_eq!(summary.verdict(Paint::Plain), "1 of 2 claims FAIL (12.3 s).");
        claims.count_at_speed(7, "waited", Expected::AtLeast(40), 3, true);
        summary.claims = claims.all()[1..].to_vec();
        let expected = "Inconclusive: machine too slow for 1 of 2 claims, the others hold (12.3 s).";
        assert_eq!(summary.verdict(Paint::Plain), expected);
        assert!(super::text(&claims, Paint::Plain, None).contains('?'));
        summary.claims = claims.all().to_vec();
        assert_eq!(summary.verdict(Paint::Plain), "1 of 3 claims FAIL (12.3 s).");
    }

    #[test]
    fn tables_are_not_wider_than_the_terminal_and_lose_no_word() {
        let mut claims = Claims::default();
        let longest = "answers lost without a hint: writes that were done again";
        claims.count(2, longest, Expected::AtLeast(100_000), 123_456);
        claims.count(
            10,
            "failures that controllers met, all from the file",
            Expected::Exactly(0),
            3,
        );
        let fired = Fired {
            rule: "lose-answers-without-a-hint",
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
                for (told, whole) in [
                    (text(&claims, paint, Some(width)), text(&claims, paint, None)),
                    (summary.faults(Some(width)), summary.faults(None)),
                ] {
                    let widest = told.lines().map(seen).max();
                    assert!(widest <= Some(usize::from(width)), "{width}:\n{told}");
                    assert_eq!(letters(&told), letters(&whole), "{width}:\n{told}");
                }
            }
        }
    }

    /// Columns of a line on a terminal.
    fn seen(line: &str) -> usize {
        let parts = line.split('\x1b').enumerate();
        let parts = parts.map(|(at, part)| match at {
            0 => part,
            _ => part.split_once('m').map_or("", |(_, rest)| rest),
        });
        parts.map(|part| part.chars().count()).sum()
    }

    /// Every letter and digit, in order of the alphabet.
    fn letters(text: &str) -> Vec<char> {
        let mut letters: Vec<char> = text.chars().filter(|letter| letter.is_alphanumeric()).collect();
        letters.sort_unstable();
        letters
    }
}
