//! Log lines that pages quote, in tables with a first column `log`, are text of the programs.

use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// Source text below a folder without comments and tests. Texts that go on in the next line are joined.
fn add_sources(folder: &Path, sources: &mut String) {
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

/// The first cells of tables whose first column is `log`.
fn quoted_lines(page: &str) -> Vec<&str> {
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
    let mut found = 0;
    for entry in fs::read_dir(root.join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = fs::read_to_string(&path).unwrap();
        for line in quoted_lines(&page) {
            let problem = format!("{}: no program logs {line:?}", path.display());
            assert!(sources.contains(line), "{problem}");
            found += 1;
        }
    }
    assert!(found >= 3, "only {found} lines were found");
}

#[test]
fn log_lines_are_found_in_tables_of_log_lines_only() {
    let page = "| log | what to do |\n|---|---|\n| a b | c |\n| d | e |\n\n| f | g |\n|---|---|\n| h | i |\n";
    assert_eq!(quoted_lines(page), ["a b", "d"]);
}
