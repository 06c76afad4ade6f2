//! Tables in Markdown hold words and figures: a cell has at most 120 characters.

use std::fs;
use std::path::{Path, PathBuf};

use ctrlmesh_tests::repository_root;

const MAX_CELL: usize = 120;

fn markdown_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && ![".git", "target", "node_modules"].contains(&name.as_str()) {
            markdown_files(&path, files);
        } else if name.ends_with(".md") {
            files.push(path);
        }
    }
}

/// Line numbers and lengths of cells that are too long. Lines between fences are no tables.
fn long_cells(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code && line.starts_with('|') {
            // An escaped pipe is part of its cell.
            let line = line.replace("\\|", "!");
            let lengths = line.split('|').map(|cell| cell.trim().chars().count());
            found.extend(
                lengths
                    .filter(|length| *length > MAX_CELL)
                    .map(|length| (number + 1, length)),
            );
        }
    }
    found
}

#[test]
fn cells_of_tables_are_short() {
    let root = repository_root();
    let mut files = Vec::new();
    markdown_files(&root, &mut files);
    assert!(files.len() > 60, "{files:?}");
    let long: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let name = file.strip_prefix(&root).unwrap().display();
            let cells = long_cells(&fs::read_to_string(file).unwrap());
            let messages = cells.into_iter().map(move |(line, length)| {
                format!("{name}:{line}: a cell of {length} characters; move its text below the table")
            });
            messages.collect::<Vec<_>>()
        })
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn long_cells_are_found_in_tables_only() {
    let (fits, long) = ("x".repeat(MAX_CELL), "x".repeat(MAX_CELL + 1));
    let escaped = format!("{}\\|{}", &fits[..60], &fits[..60]);
    let text = format!("| a | b |\n|---|---|\n| {fits} | {long} |\n{long}\n```\n| {long} |\n```\n| {escaped} |");
    assert_eq!(long_cells(&text), [(3, MAX_CELL + 1), (8, MAX_CELL + 1)]);
}
