//! The message of a YAML parser's error, for the person who wrote the text.

use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, UserMessageFormatter};

use crate::error::quote;

/// The parser's reason and place, without advice for programmers.
#[must_use]
pub fn error_text(error: &Error) -> String {
    let problem = error.render_with_formatter(&UserMessageFormatter);
    match error {
        Error::DuplicateMappingKey {
            key: Some(key),
            location,
        } => {
            let (line, column) = (location.line(), location.column());
            format!(
                "duplicate key {} at line {line}, column {column}; write each key once",
                quote(key)
            )
        }
        Error::DuplicateMappingKey { .. } => format!("{problem}; write each key once"),
        Error::Budget { breach, .. } => over_budget(breach).to_owned(),
        _ => problem,
    }
}

/// The parser's text has the `Debug` form of the limit.
const fn over_budget(breach: &BudgetBreach) -> &'static str {
    match breach {
        BudgetBreach::Depth { .. } => "it is nested too deeply",
        BudgetBreach::Aliases { .. } | BudgetBreach::Anchors { .. } | BudgetBreach::AliasAnchorRatio { .. } => {
            "it has too many anchors or aliases; write the values themselves"
        }
        BudgetBreach::Events { .. } | BudgetBreach::Nodes { .. } => {
            "it has more values than are read, where an alias counts as all that it stands for; split it, or write it without aliases"
        }
        BudgetBreach::Documents { .. } => "it has too many documents; write one",
        _ => "it is too large or too complex; split it",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn problem_in(text: &str) -> String {
        let options = serde_saphyr::options! { with_snippet: false };
        let read = serde_saphyr::from_str_with_options::<Value>(text, options);
        error_text(&read.expect_err("must be refused"))
    }

    #[test]
    fn problem_has_its_position_and_no_advice_for_programmers() {
        assert_eq!(
            problem_in("a: 1\nb: 2\na: 3\n"),
            "duplicate key \"a\" at line 3, column 1; write each key once"
        );
        for text in ["a: [\n", "a: b: c\n", "a: *b\n", "- a\nb: 1\n"] {
            let message = problem_in(text);
            assert!(
                message.contains("line ") && !message.contains("Options"),
                "{text:?}: {message}"
            );
        }
    }
}
