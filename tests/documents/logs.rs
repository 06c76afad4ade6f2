//! Log lines that pages quote are text of the programs: first cells of tables with a first column `log`, text after "the log says",
//! and lines of code blocks that have a level.

use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// Source text below a folder without comments and tests. Texts that go on in the next line are joined.
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

/// What comes before a log line in backticks.
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

#[test]
fn quoted_log_lines_are_text_of_the_programs() {
    let root = repository_root();
    let mut sources = String::new();
    for folder in ["proxy/src", "manager", "cli/src", "contract/src"] {
        add_sources(&root.join(folder), &mut sources);
    }
    let (mut in_tables, mut in_text) = (0, 0);
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        let tables: Vec<String> = lines_in_tables(&page).into_iter().map(str::to_owned).collect();
        let text = lines_in_text(&page);
        in_tables += tables.len();
        in_text += text.len();
        for line in tables.into_iter().chain(text).chain(lines_in_code_blocks(&page)) {
            let problem = format!("{}: no program logs {line:?}", path.display());
            assert!(!line.is_empty() && sources.contains(&line), "{problem}");
        }
    }
    assert!(in_tables >= 3, "only {in_tables} lines were found in tables");
    assert!(in_text >= 1, "no line was found in backticks");
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
