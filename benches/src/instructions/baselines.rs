//! The instruction counts in the repository, and how those of a run differ from them. Pure but for reading and writing the file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::callgrind::Profile;

/// Change of a case that is an error upwards, and worth a note downwards, in percent.
const MAX_CHANGE_PERCENT: u64 = 5;
/// Functions whose counts are kept for each case.
const KEPT_FUNCTIONS: usize = 30;
/// Functions that are named for a case that grew.
const NAMED_FUNCTIONS: usize = 10;
const UPDATE: &str = "run `make instructions-update` and commit benches/instructions.json";

/// The conditions besides the code on which counts depend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Conditions {
    pub(super) architecture: String,
    /// The instructions by which the C library chooses functions such as `memcpy`, also under valgrind.
    pub(super) processor: String,
    pub(super) profile: String,
    pub(super) valgrind: String,
}

impl Conditions {
    pub(super) fn current(valgrind: String) -> Self {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        Self {
            architecture: std::env::consts::ARCH.to_owned(),
            processor: processor_features().to_owned(),
            profile: profile.to_owned(),
            valgrind,
        }
    }

    /// Whether counts under these conditions can be compared. Versions of valgrind count almost the same.
    pub(super) fn is_comparable(&self, other: &Self) -> bool {
        let compared = |conditions: &Self| {
            let Self {
                architecture,
                processor,
                profile,
                ..
            } = conditions.clone();
            [architecture, processor, profile]
        };
        compared(self) == compared(other)
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            architecture,
            processor,
            profile,
            valgrind,
        } = self;
        write!(f, "{architecture} {processor}, {profile} profile, {valgrind}")
    }
}

/// Of x86-64, whether there is AVX2: valgrind hides later extensions.
fn processor_features() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        return "with AVX2";
    }
    "without AVX2"
}

/// The counts of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Baselines {
    pub(super) conditions: Conditions,
    pub(super) cases: BTreeMap<String, Counts>,
}

/// Instructions per request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    /// Of all functions.
    pub(super) instructions: u64,
    /// By function: in the file the largest ones, of a run all.
    pub(super) functions: BTreeMap<String, u64>,
}

impl Counts {
    pub(super) fn per_request(profile: Profile, requests: u64) -> Self {
        let mean = |count: u64| (count + requests / 2) / requests;
        Self {
            instructions: mean(profile.total()),
            functions: profile
                .functions
                .into_iter()
                .map(|(name, count)| (name, mean(count)))
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }

    /// The instructions that these need more than the others: a part of a request.
    pub(super) fn minus(&self, others: &Self) -> Self {
        let more = |(name, count): (&String, &u64)| {
            let other = others.functions.get(name).copied().unwrap_or(0);
            Some((name.clone(), count.checked_sub(other).filter(|more| *more > 0)?))
        };
        Self {
            instructions: self.instructions.saturating_sub(others.instructions),
            functions: self.functions.iter().filter_map(more).collect(),
        }
    }

    fn keep_largest_functions(&mut self) {
        let mut functions: Vec<_> = std::mem::take(&mut self.functions).into_iter().collect();
        functions.sort_by(|(_, one), (_, other)| other.cmp(one));
        functions.truncate(KEPT_FUNCTIONS);
        self.functions = functions.into_iter().collect();
    }

    /// The functions that grew most compared with `before`, largest growth first.
    fn growths_since(&self, before: &Self) -> Vec<Growth> {
        // A function that the file does not have was at most as large as the smallest that it has.
        let unlisted = before.functions.values().copied().min().unwrap_or(0);
        let growth = |(name, after): (&String, &u64)| {
            let listed = before.functions.get(name).copied();
            let by = after.checked_sub(listed.unwrap_or(unlisted)).filter(|by| *by > 0)?;
            Some(Growth {
                function: name.clone(),
                before: listed.map_or(Before::AtMost(unlisted), Before::Exactly),
                after: *after,
                by,
            })
        };
        let mut growths: Vec<Growth> = self.functions.iter().filter_map(growth).collect();
        growths.sort_by_key(|growth| std::cmp::Reverse(growth.by));
        growths.truncate(NAMED_FUNCTIONS);
        growths.extend(self.unlisted_growth_since(before));
        growths
    }

    /// The growth of all functions together that `before` does not list: many may have grown by little.
    fn unlisted_growth_since(&self, before: &Self) -> Option<Growth> {
        let unlisted = |counts: &Self| {
            let listed = before.functions.keys().filter_map(|name| counts.functions.get(name));
            counts.instructions.saturating_sub(listed.sum())
        };
        let (before, after) = (unlisted(before), unlisted(self));
        let by = after.checked_sub(before).filter(|by| *by > 0)?;
        Some(Growth {
            function: "all that the baseline does not list, together".to_owned(),
            before: Before::Exactly(before),
            after,
            by,
        })
    }
}

/// A function that needs more instructions than before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Growth {
    function: String,
    before: Before,
    after: u64,
    by: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Exactly(u64),
    AtMost(u64),
}

impl Growth {
    pub(super) const HEADER: [&str; 3] = ["functions that grew most", "instructions before", "now"];

    pub(super) fn table_cells(&self) -> Vec<String> {
        let before = match self.before {
            Before::Exactly(count) => count.to_string(),
            Before::AtMost(count) => format!("≤ {count}"),
        };
        vec![self.function.clone(), before, self.after.to_string()]
    }
}

/// The results of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Each is a reason to fail.
    pub(super) errors: Vec<String>,
    pub(super) notes: Vec<String>,
    /// Cases with an error, and what grew in them.
    pub(super) grown: Vec<(String, Vec<Growth>)>,
}

impl Baselines {
    pub(super) fn read(file: &Path) -> anyhow::Result<Self> {
        let read = || anyhow::Ok(serde_json::from_slice(&std::fs::read(file)?)?);
        read().with_context(|| format!("can't read the baselines in {}; {UPDATE}", file.display()))
    }

    /// Writes the largest functions of each case.
    pub(super) fn write(mut self, file: &Path) -> anyhow::Result<()> {
        self.cases.values_mut().for_each(Counts::keep_largest_functions);
        let text = format!("{}\n", serde_json::to_string_pretty(&self)?);
        std::fs::write(file, text).with_context(|| format!("can't write {}", file.display()))
    }

    /// Compares a run with these baselines.
    pub(super) fn compare(&self, run: &Self) -> Findings {
        let mut findings = Findings::default();
        for (name, after) in &run.cases {
            let Some(before) = self.cases.get(name) else {
                findings.errors.push(format!("{name}: there is no baseline; {UPDATE}"));
                continue;
            };
            let (old, new) = (before.instructions, after.instructions);
            if new * 100 > old * (100 + MAX_CHANGE_PERCENT) {
                findings.errors.push(format!(
                    "{name}: {new} instructions per request, {} than the baseline, {old}; make it cheaper, or if the \
                     change is worth that, {UPDATE}",
                    format_change(old, new)
                ));
                findings.grown.push((name.clone(), after.growths_since(before)));
            } else if new * 100 < old * (100 - MAX_CHANGE_PERCENT) {
                findings.notes.push(format!(
                    "{name}: {} than the baseline; so that it stays so, {UPDATE}",
                    format_change(old, new)
                ));
            }
        }
        for name in self.cases.keys().filter(|name| !run.cases.contains_key(*name)) {
            let note = format!("{name}: a baseline without a measurement; {UPDATE}");
            findings.notes.push(note);
        }
        if !findings.errors.is_empty() && self.conditions != run.conditions {
            findings.notes.push(format!(
                "The baselines were counted with {}; this run was with {}.",
                self.conditions, run.conditions
            ));
        }
        findings
    }
}

/// `6.0 % more`.
#[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
pub(super) fn format_change(before: u64, after: u64) -> String {
    let percent = (after as f64 / before as f64 - 1.0) * 100.0;
    let direction = if percent < 0.0 { "less" } else { "more" };
    format!("{:.1} % {direction}", percent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(functions: &[(&str, u64)]) -> Counts {
        Counts {
            instructions: functions.iter().map(|(_, count)| count).sum(),
            functions: functions
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect(),
        }
    }

    fn baselines(cases: &[(&str, Counts)]) -> Baselines {
        Baselines {
            conditions: Conditions::current("valgrind-3.19.0".to_owned()),
            cases: cases
                .iter()
                .map(|(name, counts)| ((*name).to_owned(), counts.clone()))
                .collect(),
        }
    }

    /// A case whose function `parse` grew, or shrank, by so many of a thousand instructions.
    fn findings_after_change(by: i64) -> Findings {
        let before = baselines(&[("get", counts(&[("parse", 600), ("copy", 400)]))]);
        let parse = 600_u64.checked_add_signed(by).unwrap();
        before.compare(&baselines(&[("get", counts(&[("parse", parse), ("copy", 400)]))]))
    }

    #[test]
    fn case_fails_above_five_percent_and_names_what_grew() {
        for by in [-50, 0, 40, 50] {
            assert_eq!(findings_after_change(by), Findings::default(), "{by}");
        }
        let findings = findings_after_change(60);
        let [error] = findings.errors.as_slice() else {
            panic!("{findings:?}")
        };
        assert!(
            error.starts_with("get: 1060 instructions per request, 6.0 % more than the baseline, 1000; "),
            "{error}"
        );
        assert!(error.ends_with(UPDATE), "{error}");
        let (case, growths) = &findings.grown[0];
        let cells: Vec<_> = growths.iter().map(Growth::table_cells).collect();
        assert_eq!(
            (case.as_str(), cells),
            (
                "get",
                vec![vec!["parse".to_owned(), "600".to_owned(), "660".to_owned()]]
            )
        );
    }

    #[test]
    fn smaller_case_is_a_note_with_advice() {
        let findings = findings_after_change(-60);
        assert!(findings.errors.is_empty() && findings.grown.is_empty(), "{findings:?}");
        assert_eq!(
            findings.notes,
            [format!(
                "get: 6.0 % less than the baseline; so that it stays so, {UPDATE}"
            )]
        );
    }

    #[test]
    fn case_without_baseline_fails_with_advice() {
        let before = baselines(&[("get", counts(&[("parse", 1000)]))]);
        let findings = before.compare(&baselines(&[("list", counts(&[("parse", 1000)]))]));
        assert_eq!(findings.errors, [format!("list: there is no baseline; {UPDATE}")]);
        let note = format!("get: a baseline without a measurement; {UPDATE}");
        assert_eq!(findings.notes, [note]);
    }

    #[test]
    fn other_conditions_are_mentioned_if_a_case_fails() {
        let before = baselines(&[("get", counts(&[("parse", 1000)]))]);
        let mut run = baselines(&[("get", counts(&[("parse", 1010)]))]);
        run.conditions.valgrind = "valgrind-4".to_owned();
        assert!(run.conditions.is_comparable(&before.conditions));
        assert_eq!(before.compare(&run), Findings::default());
        run.cases = [("get".to_owned(), counts(&[("parse", 2000)]))].into();
        let [note] = &before.compare(&run).notes[..] else {
            panic!("no note")
        };
        assert!(
            note.contains("valgrind-3.19.0; ") && note.contains("valgrind-4."),
            "{note}"
        );
        run.conditions.architecture = "other".to_owned();
        assert!(!run.conditions.is_comparable(&before.conditions));
    }

    #[test]
    fn largest_growth_is_first_and_function_outside_of_the_file_counts_from_its_smallest() {
        let before = counts(&[("parse", 600), ("copy", 400), ("free", 100)]);
        let after = counts(&[
            ("copy", 420),
            ("free", 90),
            ("hash", 250),
            ("parse", 600),
            ("small", 100),
        ]);
        let cells: Vec<_> = after.growths_since(&before).iter().map(Growth::table_cells).collect();
        assert_eq!(
            cells,
            [
                ["hash", "≤ 100", "250"],
                ["copy", "400", "420"],
                ["all that the baseline does not list, together", "0", "350"]
            ]
        );
    }

    #[test]
    fn file_has_the_largest_functions_and_can_be_read_again() {
        let many: Vec<(String, u64)> = (1..=100).map(|count| (format!("f{count}"), count)).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        let files = tempfile::tempdir().unwrap();
        let file = files.path().join("instructions.json");
        baselines(&[("get", counts(&many))]).write(&file).unwrap();
        let case = Baselines::read(&file).unwrap().cases.remove("get").unwrap();
        assert_eq!(case.instructions, 5050);
        assert_eq!(case.functions.len(), KEPT_FUNCTIONS);
        assert_eq!(case.functions.values().min(), Some(&71));
        let error = Baselines::read(&files.path().join("none")).unwrap_err();
        assert!(error.to_string().ends_with(UPDATE), "{error}");
    }

    #[test]
    fn difference_has_functions_that_need_more() {
        let (with, without) = (
            counts(&[("call", 70), ("copy", 50), ("parse", 600)]),
            counts(&[("copy", 40), ("parse", 600), ("send", 10)]),
        );
        let difference = with.minus(&without);
        assert_eq!(difference.instructions, 70);
        assert_eq!(difference.functions, counts(&[("call", 70), ("copy", 10)]).functions);
    }

    #[test]
    fn counts_are_rounded_means() {
        let functions = [("a".to_owned(), 1496), ("b".to_owned(), 4), ("c".to_owned(), 5)];
        let profile = Profile {
            functions: functions.into(),
        };
        let counts = Counts::per_request(profile, 10);
        assert_eq!(counts.instructions, 151);
        let expected = [("a".to_owned(), 150), ("c".to_owned(), 1)];
        assert_eq!(counts.functions, expected.into());
    }
}
