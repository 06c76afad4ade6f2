//! ARCHITECTURE.md, "Rooms": lists every folder and file at the top of a program's sources from top to bottom, with what it imports, and
//! no room imports one above it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// Programs whose sources are sorted into rooms.
const PROGRAMS: [&str; 2] = ["proxy/src", "manager/src"];

/// Not rooms: they import whatever they put together. `test_env` is compiled for tests only.
const ROOTS: [&str; 4] = ["main", "lib", "bin", "test_env"];

type Imports = BTreeMap<String, BTreeSet<String>>;

/// A row of a program's table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    room: String,
    imports: BTreeSet<String>,
}

/// The lines below a heading, up to the next one that is not below it.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let level = heading.split(' ').next().unwrap_or_default().len();
    let heading = format!("\n{heading}\n");
    let at = text
        .find(&heading)
        .unwrap_or_else(|| panic!("ARCHITECTURE.md has no heading {:?}", heading.trim()));
    // With the line feed, which may begin the next heading.
    let rest = &text[at + heading.len() - 1..];
    let ends = (1..=level).filter_map(|level| rest.find(&format!("\n{} ", "#".repeat(level))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

/// The words in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The rows of a program's table, top to bottom. Imports are named, or `all below but ...`.
fn rows(architecture: &str, program: &str) -> Vec<Row> {
    let table = section(section(architecture, "## Rooms"), &format!("### {program}"));
    let lines = table.lines().filter(|line| line.starts_with("| `"));
    let cells: Vec<(String, &str)> = lines
        .map(|line| {
            let cells: Vec<&str> = line.trim().trim_matches('|').split('|').collect();
            let [room, _, imports] = cells[..] else {
                panic!("ARCHITECTURE.md: a row has a room, what it holds and what it imports: {line}");
            };
            (quoted(room).next().unwrap_or_default().to_owned(), imports.trim())
        })
        .collect();
    let row = |(at, (room, imports)): (usize, &(String, &str))| {
        let mut names: BTreeSet<String> = quoted(imports).map(str::to_owned).collect();
        if imports.starts_with("all below but ") {
            let below = cells[at + 1..].iter().map(|(room, _)| room.clone());
            names = below.filter(|room| !names.contains(room)).collect();
        }
        Row {
            room: room.clone(),
            imports: names,
        }
    };
    cells.iter().enumerate().map(row).collect()
}

/// Source text without comments; doc links are no imports.
fn code(source: &str) -> String {
    let lines = source.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The first names of what follows `crate::`: one, or those of a group.
fn first_names(path: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        let text = text.trim_start();
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let mut depth = 0;
    let mut names = vec![name(group)];
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name(&group[at + 1..])),
            _ => {}
        }
    }
    names
}

/// The names at the top of the crate that a file's paths begin with. `depth`: how many `super` lead from the file to the top.
fn top_names(source: &str, depth: usize) -> BTreeSet<String> {
    let code = code(source);
    let up = "super::".repeat(depth);
    let mut names = BTreeSet::new();
    for prefix in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(prefix) {
            let before = &code[..at];
            // Part of a longer path or name, or of a macro's `$crate`.
            if before.ends_with("::") || before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            let path = &code[at + prefix.len()..];
            if !path.starts_with("super::") {
                names.extend(first_names(path));
            }
        }
    }
    names
}

/// What each room of a program imports.
fn imports(sources: &Path) -> Imports {
    let mut found = Imports::new();
    for entry in fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let room = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !ROOTS.contains(&room.as_str()) {
            let names = found.entry(room).or_default();
            collect(&path, 1, names);
        }
    }
    let rooms: BTreeSet<String> = found.keys().cloned().collect();
    for (room, names) in &mut found {
        names.retain(|name| name != room && rooms.contains(name));
    }
    found
}

fn collect(path: &Path, depth: usize, names: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), depth + 1, names);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        names.extend(top_names(&fs::read_to_string(path).unwrap(), depth));
    }
}

/// What is wrong with a program's table, or with its imports.
fn problems(rows: &[Row], imports: &Imports) -> Vec<String> {
    let place = |room: &str| rows.iter().position(|row| row.room == room);
    let mut problems = Vec::new();
    for (room, imported) in imports {
        let Some(at) = place(room) else {
            problems.push(format!("`{room}` is not in the table"));
            continue;
        };
        for other in imported {
            if place(other).is_some_and(|other| other < at) {
                problems.push(format!("`{room}` imports `{other}`, which is above it"));
            }
        }
        if rows[at].imports != *imported {
            let cell: Vec<String> = imported.iter().map(|name| format!("`{name}`")).collect();
            problems.push(format!(
                "the row of `{room}` must list its imports: {}",
                cell.join(", ")
            ));
        }
    }
    for row in rows {
        if !imports.contains_key(&row.room) && !ROOTS.contains(&row.room.as_str()) {
            problems.push(format!("there is no room `{}`", row.room));
        }
    }
    problems
}

#[test]
fn no_room_imports_one_above_it() {
    let architecture = fs::read_to_string(repository_root().join("ARCHITECTURE.md")).unwrap();
    for program in PROGRAMS {
        let rows = rows(&architecture, program);
        let problems = problems(&rows, &imports(&repository_root().join(program)));
        assert!(problems.is_empty(), "{program}:\n{}", problems.join("\n"));
    }
}

#[test]
fn imports_are_found_in_every_form() {
    let source = "
        use crate::a::b;
        use crate::{c, d::{e, f}, g as h};
        pub(crate) use super::i::j;
        use super::super::too_far;
        fn main() { crate::k::l() } // crate::comment
        macro_rules! m { () => { $crate::n } }
    ";
    let expected = ["a", "c", "d", "g", "i", "k"].map(str::to_owned);
    assert_eq!(top_names(source, 1), BTreeSet::from(expected));
    assert_eq!(
        top_names("use super::x;\nuse super::super::{y, z};", 2),
        BTreeSet::from(["y", "z"].map(str::to_owned))
    );
}

#[test]
fn imports_are_named_or_all_below_but_some() {
    let document = "# T\n## Rooms\n### p\n| `a` | x | all below but `c` |\n| `b` | | `d` |\n| `c` | | |\n| `d` | | |\n";
    let imports: Vec<Vec<String>> = rows(document, "p")
        .into_iter()
        .map(|row| row.imports.into_iter().collect())
        .collect();
    assert_eq!(imports, [vec!["b", "d"], vec!["d"], vec![], vec![]]);
}

#[test]
fn upward_imports_and_missing_rooms_are_problems() {
    let document = "# T\n## Rooms\n### p\n| room | holds | imports |\n|---|---|---|\n| `top` | x | `low` |\n| `low` | y | |\n| `gone` | | |\n## Z\n";
    let rows = rows(document, "p");
    let imports = |pairs: &[(&str, &[&str])]| -> Imports {
        let rooms = pairs.iter().map(|(room, names)| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            ((*room).to_owned(), names)
        });
        rooms.collect()
    };
    assert_eq!(
        problems(&rows, &imports(&[("top", &["low"]), ("low", &[])])),
        ["there is no room `gone`"]
    );
    let found = problems(&rows, &imports(&[("top", &[]), ("low", &["top"]), ("new", &[])]));
    assert_eq!(found.len(), 5, "{found:?}");
    for expected in [
        "`low` imports `top`, which is above it",
        "the row of `top` must list",
        "`new` is not in the table",
    ] {
        assert!(found.iter().any(|problem| problem.contains(expected)), "{found:?}");
    }
}
