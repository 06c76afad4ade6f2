//! The result of a run: tables, notes and budgets on standard output, and the same with the raw data in files.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::stats::Spread;
use crate::table::{format_number, format_range, table_text};

#[derive(Debug, Default)]
pub(crate) struct Report {
    content: RefCell<Content>,
}

#[derive(Debug, Default)]
struct Content {
    markdown: String,
    /// The values of all rounds, by the title of their table.
    raw: Map<String, Value>,
    budgets: Vec<Budget>,
}

/// A value that has a limit. The median of the rounds decides.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    /// One value for each round; empty if it was not measured.
    pub(crate) values: Vec<f64>,
    pub(crate) limit: Limit,
}

/// The limit of a budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }
}

impl Budget {
    fn table_cells(&self) -> Vec<String> {
        let spread = Spread::from_values(&self.values);
        let state = match spread {
            None => "not measured",
            Some(spread) if self.limit.is_met(spread.median) => "met",
            Some(_) => "missed",
        };
        // Ratios need more digits than milliseconds.
        let digits = if self.unit == RATIO { 2 } else { 1 };
        let limit = match self.limit {
            Limit::AtMost(limit) => format!("≤ {}", format_number(Some(limit), digits)),
            Limit::AtLeast(limit) => format!("≥ {}", format_number(Some(limit), digits)),
        };
        vec![
            self.what.clone(),
            self.unit.to_owned(),
            format_number(spread.map(|spread| spread.median), digits),
            format_range(spread, digits),
            limit,
            state.to_owned(),
        ]
    }

    fn to_json(&self) -> Value {
        let (name, limit) = match self.limit {
            Limit::AtMost(limit) => ("at_most", limit),
            Limit::AtLeast(limit) => ("at_least", limit),
        };
        json!({ "what": self.what, "unit": self.unit, "values": self.values, name: limit })
    }
}

/// The unit of a budget that is a ratio.
pub(crate) const RATIO: &str = "×";

impl Report {
    pub(crate) fn print_table(&self, title: &str, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
        self.print(&format!("## {title}\n\n{}\n", table_text(header, rows)));
    }

    /// Prints a line of text.
    pub(crate) fn print_note(&self, text: &str) {
        self.print(&format!("{text}\n"));
    }

    /// Keeps values for the JSON file.
    pub(crate) fn add_raw(&self, title: &str, value: Value) {
        self.content.borrow_mut().raw.insert(title.to_owned(), value);
    }

    pub(crate) fn add_budget(&self, budget: Budget) {
        self.content.borrow_mut().budgets.push(budget);
    }

    /// Prints the table of the budgets whose rows were measured.
    pub(crate) fn print_budgets(&self) {
        let rows: Vec<_> = self.content.borrow().budgets.iter().map(Budget::table_cells).collect();
        if !rows.is_empty() {
            self.print_table("Budgets", &["", "unit", "median", "min–max", "budget", "state"], rows);
        }
    }

    #[expect(clippy::print_stdout, reason = "the tables are the program's output")]
    fn print(&self, text: &str) {
        println!("{text}");
        // Writing to a string does not fail.
        let _ = writeln!(self.content.borrow_mut().markdown, "{text}");
    }

    /// Writes `bench.md` and `bench.json`, replacing those of an earlier run.
    pub(crate) fn write_files(&self, directory: &Path) -> anyhow::Result<()> {
        let content = self.content.borrow();
        let budgets: Vec<Value> = content.budgets.iter().map(Budget::to_json).collect();
        let raw = json!({ "budgets": budgets, "tables": content.raw });
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(directory)?;
            std::fs::write(directory.join("bench.md"), &content.markdown)?;
            std::fs::write(directory.join("bench.json"), format!("{raw:#}\n"))
        };
        write().with_context(|| format!("can't write the results to {}", directory.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(values: &[f64]) -> Budget {
        Budget {
            what: "a".to_owned(),
            unit: RATIO,
            values: values.to_vec(),
            limit: Limit::AtMost(1.1),
        }
    }

    #[test]
    fn median_decides_whether_budget_is_met() {
        let cells = budget(&[1.0, 1.1, 9.0]).table_cells();
        assert_eq!(cells, ["a", "×", "1.10", "1.00–9.00", "≤ 1.10", "met"]);
        assert_eq!(budget(&[1.0, 1.2, 1.3]).table_cells()[5], "missed");
        assert_eq!(budget(&[]).table_cells()[2..], ["-", "-", "≤ 1.10", "not measured"]);
    }

    #[test]
    fn lower_limit_is_missed_below_it() {
        let rate = |values: &[f64]| Budget {
            limit: Limit::AtLeast(600.0),
            unit: "MB/s",
            ..budget(values)
        };
        assert_eq!(rate(&[500.0, 600.0, 700.0]).table_cells()[4..], ["≥ 600.0", "met"]);
        assert_eq!(rate(&[500.0, 599.0, 700.0]).table_cells()[5], "missed");
        assert_eq!(rate(&[1.0]).to_json()["at_least"], json!(600.0));
    }

    #[test]
    fn files_hold_tables_budgets_and_raw_values() {
        let files = tempfile::tempdir().unwrap();
        let report = Report::default();
        report.print_table("Title", &["", "n"], [vec!["a".to_owned(), "1".to_owned()]]);
        report.add_raw("Title", json!([1, 2]));
        report.add_budget(budget(&[1.0]));
        report.print_budgets();
        report.write_files(&files.path().join("out")).unwrap();
        let text = std::fs::read_to_string(files.path().join("out/bench.md")).unwrap();
        assert!(
            text.contains("## Title\n\n|") && text.contains("## Budgets\n\n|"),
            "{text}"
        );
        let raw: Value = serde_json::from_slice(&std::fs::read(files.path().join("out/bench.json")).unwrap()).unwrap();
        assert_eq!(raw["tables"]["Title"], json!([1, 2]));
        assert_eq!(raw["budgets"][0]["values"], json!([1.0]));
        assert_eq!(raw["budgets"][0]["at_most"], json!(1.1));
    }
}
