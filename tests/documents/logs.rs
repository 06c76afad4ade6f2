//! Log lines that pages quote, with the statements that log them. Pages quote log lines in tables with a first column
//! `log`, behind "the log says", and in lines of code blocks that have a level.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// Adds the source text below a folder, without comments and tests. Texts that go on in the next line are joined.
pub(super) fn add_sources(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            add_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            let lines = source.lines().map(str::trim).filter(|line| !line.starts_with("//"));
            for line in lines {
                sources.push_str(line.trim_end_matches('\\'));
                if !line.ends_with('\\') {
                    sources.push('\n');
                }
            }
        }
    }
}

/// Words before a log line in backticks.
const INTRODUCTIONS: [&str; 4] = ["log says `", "log has `", "log line `", " logs `"];
const LEVELS: [&str; 4] = [" ERROR ", " WARN ", " INFO ", " DEBUG "];

/// Log lines in backticks. Lines of a paragraph are joined first, because a quotation may go on in the next one.
fn lines_in_text(page: &str) -> Vec<String> {
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let quoted = INTRODUCTIONS
        .iter()
        .flat_map(|introduction| page.split(introduction).skip(1));
    quoted
        .map(|rest| rest.split('`').next().unwrap_or_default().to_owned())
        .collect()
}

/// Messages of log lines in code blocks: `TIME LEVEL target: message field=value`.
fn lines_in_code_blocks(page: &str) -> Vec<String> {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let line = |line: &str| {
        let (_, logged) = LEVELS.iter().find_map(|level| line.split_once(level))?;
        let (_, message) = logged.split_once(": ")?;
        let words = message.split(' ').take_while(|word| !word.contains('='));
        Some(words.collect::<Vec<_>>().join(" "))
    };
    blocks.flat_map(str::lines).filter_map(line).collect()
}

/// The first cells of tables whose first column is `log`.
fn lines_in_tables(page: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut is_log = false;
    for line in page.lines() {
        let Some(cells) = line.strip_prefix("| ") else {
            // The line below the header belongs to the table.
            is_log = is_log && line.starts_with('|');
            continue;
        };
        let first = cells.split('|').next().unwrap_or_default().trim();
        if first == "log" {
            is_log = true;
        } else if is_log {
            found.push(first);
        }
    }
    found
}

/// Beginnings of statements that log, with their levels. Programs log texts of errors as the field `error`, or when
/// they end.
const BEGINNINGS: [(&str, &str); 6] = [
    ("error!(", "ERROR"),
    ("warn!(", "WARN"),
    ("info!(", "INFO"),
    ("debug!(", "DEBUG"),
    ("trace!(", "TRACE"),
    ("#[error(", "error text"),
];

/// A statement that logs, or the text of an error.
struct Statement {
    level: &'static str,
    message: String,
    fields: Vec<String>,
}

impl fmt::Display for Statement {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.level, self.message)?;
        if self.fields.is_empty() {
            return Ok(());
        }
        write!(formatter, " [{}]", self.fields.join(", "))
    }
}

/// The arguments of a call whose opening parenthesis is before `text`. Commas in brackets and literals do not divide
/// them.
fn split_arguments(text: &str) -> Vec<&str> {
    let mut arguments = Vec::new();
    let (mut start, mut depth) = (0, 0_usize);
    let (mut is_literal, mut is_escaped) = (false, false);
    for (position, letter) in text.char_indices() {
        match letter {
            _ if is_literal => {
                is_literal = is_escaped || letter != '"';
                is_escaped = !is_escaped && letter == '\\';
            }
            '"' => is_literal = true,
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => {
                arguments.push(text[start..position].trim());
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(text[start..position].trim());
                start = position + 1;
            }
            _ => {}
        }
    }
    arguments
}

/// The name of the field in `%error`, `seconds` or `plugin = %digest`.
fn field_name(argument: &str) -> String {
    let name = argument.split('=').next().unwrap_or_default();
    name.trim().trim_start_matches(['%', '?']).to_owned()
}

/// Fields are before the message, and values of its placeholders behind it.
fn parse_statement(level: &'static str, call: &str) -> Option<Statement> {
    let arguments = split_arguments(call);
    let position = arguments.iter().position(|argument| argument.starts_with('"'))?;
    let is_field = |argument: &&&str| !argument.starts_with("target:") && !argument.starts_with("parent:");
    Some(Statement {
        level,
        message: arguments[position].to_owned(),
        fields: arguments[..position]
            .iter()
            .filter(is_field)
            .map(|argument| field_name(argument))
            .collect(),
    })
}

/// Statements of sources, by level and then in their order.
fn find_statements(sources: &str) -> Vec<Statement> {
    let mut statements = Vec::new();
    for (beginning, level) in BEGINNINGS {
        for (position, _) in sources.match_indices(beginning) {
            // `compile_error!` does not log.
            if !sources[..position].ends_with('_') {
                statements.extend(parse_statement(level, &sources[position + beginning.len()..]));
            }
        }
    }
    statements
}

/// Each line that a page quotes, with the statements that have its text. `programs`: statements of each folder.
fn describe_quotations(page: &str, quotations: &[String], programs: &[(&str, Vec<Statement>)]) -> String {
    let mut text = String::new();
    for quotation in quotations {
        writeln!(text, "{page}: {quotation}").unwrap();
        let mut count = 0;
        for (folder, statements) in programs {
            for statement in statements
                .iter()
                .filter(|statement| statement.message.contains(quotation))
            {
                writeln!(text, "    {folder}: {statement}").unwrap();
                count += 1;
            }
        }
        assert!(
            !quotation.is_empty() && count > 0,
            "{page}: no program logs {quotation:?}"
        );
    }
    text
}

/// A changed level, message or field may make a page wrong that quotes the line.
#[test]
fn quoted_log_lines_match_snapshot() {
    let root = repository_root();
    let programs = ["proxy/src", "manager", "cli/src", "contract/src"].map(|folder| {
        let mut sources = String::new();
        add_sources(&root.join(folder), &mut sources);
        let mut statements = find_statements(&sources);
        // Folders are read in the order of the file system.
        statements.sort_by_cached_key(ToString::to_string);
        (folder, statements)
    });
    let (mut in_tables, mut in_text) = (0, 0);
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        let mut lines: Vec<String> = lines_in_tables(&page).into_iter().map(str::to_owned).collect();
        in_tables += lines.len();
        let text = lines_in_text(&page);
        in_text += text.len();
        lines.extend(text);
        lines.extend(lines_in_code_blocks(&page));
        let name = format!("docs/{}", path.file_name().unwrap().to_string_lossy());
        pages.insert(name.clone(), describe_quotations(&name, &lines, &programs));
    }
    assert!(in_tables >= 3, "only {in_tables} lines were found in tables");
    assert!(in_text >= 1, "no line was found in backticks");
    insta::assert_snapshot!(pages.into_values().collect::<String>());
}

#[test]
fn statements_have_level_message_and_fields() {
    let source =
        "warn!(target: \"access\", entry = e.name, %digest, ?state, secs = f(1, \"a\"), \"a, (b) \\\"c\\\" {}\", d);
                  compile_error!(\"e\"); tracing::debug!(\"f\"); #[error(\"g: {h}\")] #[error(transparent)]";
    let statements: Vec<String> = find_statements(source).iter().map(ToString::to_string).collect();
    assert_eq!(
        statements,
        [
            "WARN \"a, (b) \\\"c\\\" {}\" [entry, digest, state, secs]",
            "DEBUG \"f\"",
            "error text \"g: {h}\"",
        ]
    );
}

#[test]
fn description_changes_with_level_message_and_fields() {
    let describe = |source: &str| {
        let programs = [("proxy/src", find_statements(source))];
        describe_quotations("docs/a.md", &["chain refused".to_owned()], &programs)
    };
    let described = describe("warn!(%error, \"chain refused; retrying\");");
    assert_eq!(
        described,
        "docs/a.md: chain refused\n    proxy/src: WARN \"chain refused; retrying\" [error]\n"
    );
    for changed in [
        "info!(%error, \"chain refused; retrying\");",
        "warn!(%reason, \"chain refused; retrying\");",
        "warn!(%error, \"chain refused\");",
    ] {
        assert_ne!(describe(changed), described);
    }
}

#[test]
fn log_lines_are_found_in_tables_of_log_lines_only() {
    let page = "| log | what to do |\n|---|---|\n| a b | c |\n| d | e |\n\n| f | g |\n|---|---|\n| h | i |\n";
    assert_eq!(lines_in_tables(page), ["a b", "d"]);
}

#[test]
fn log_lines_are_found_in_text_and_code_blocks() {
    let page = "The log\nsays `a\nb`. `c` is code.\n\n```sh\nkubectl logs POD\n```\n\n```text\n2026-01-01T00:00:00Z  WARN proxy::chain: d e path=/f \
                error=g\n```\nThe log says `h`.\n";
    assert_eq!(lines_in_text(page), ["a b", "h"]);
    assert_eq!(lines_in_code_blocks(page), ["d e"]);
}
