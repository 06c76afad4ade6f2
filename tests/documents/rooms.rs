//! Rooms: the modules of a program or crate are listed from top to bottom, and none imports one above it.
//!
//! ARCHITECTURE.md, "Rooms", lists those of programs, with what each imports. The first lines of other folders' top files list theirs in
//! a table of the same order; modules in one row may import each other.

mod imports;
mod reexports;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use ctrlmesh_tests::repository_root;
use imports::{Folder, Imports, own_definitions};
use reexports::Reexports;
use source::code;

/// Programs, and parts of them, whose rooms are listed in ARCHITECTURE.md.
const PROGRAMS: [&str; 5] = [
    "proxy/src",
    "manager/src",
    "manager/src/controllers",
    "manager/src/controllers/distribution",
    "cli/src",
];

/// Folders with files whose first lines list the modules of their folder from top to bottom.
const FOLDERS: [&str; 10] = [
    "contract/src",
    "wire/src",
    "logging/src",
    "sdk/src",
    "plugins",
    "manager",
    "proxy/src",
    "cli/src",
    "testkit/src",
    "benches/src",
];

/// Tables that these files have in all, so that the tests do not look at nothing.
const MIN_TABLES: usize = 50;

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    modules: Vec<String>,
    /// `None` if the table does not say it.
    imports: Option<BTreeSet<String>>,
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
fn rows_of_program(architecture: &str, program: &str) -> Vec<Row> {
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
            modules: vec![room.clone()],
            imports: Some(names),
        }
    };
    cells.iter().enumerate().map(row).collect()
}

/// The rows of the table in the first lines of a file, top to bottom.
fn rows_of_head(source: &str) -> Vec<Row> {
    // Some tables also list files deeper in the folder.
    let head = source.lines().take_while(|line| line.starts_with("//!"));
    let table = head.filter_map(|line| line.strip_prefix("//! |"));
    let cells = table.filter_map(|line| line.split('|').next());
    let modules = cells.map(|cell| {
        let names = quoted(cell).map(|name| name.trim_start_matches("mod@").trim_end_matches(".rs"));
        names
            .filter(|name| !name.contains('/'))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    let row = |modules| Row { modules, imports: None };
    modules.filter(|modules| !modules.is_empty()).map(row).collect()
}

/// A program or crate, or a part of one, by its path. Everything below `src` is a module.
fn folder_at(path: &str, with_tests: bool) -> Folder {
    let (package, below) = path.split_once("/src").unwrap();
    let package = repository_root().join(package);
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
    Folder {
        sources: package.join("src"),
        library: name.trim_matches('"').replace('-', "_"),
        base: below.split('/').skip(1).map(str::to_owned).collect(),
        with_tests,
    }
}

/// The imports of the modules of a folder.
fn imports_of(path: &str, with_tests: bool) -> Imports {
    folder_at(path, with_tests).imports()
}

/// Mistakes in a table, or in the imports of its modules.
fn problems(rows: &[Row], imports: &Imports) -> Vec<String> {
    let mut places = BTreeMap::new();
    let mut problems = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        for module in &row.modules {
            if places.insert(module.as_str(), at).is_some() {
                problems.push(format!("`{module}` is in two rows"));
            }
            if !imports.contains_key(module) {
                problems.push(format!("there is no room `{module}`"));
            }
        }
    }
    for (module, imported) in imports {
        let Some(at) = places.get(module.as_str()) else {
            problems.push(format!("`{module}` is not in the table"));
            continue;
        };
        for other in imported {
            if places.get(other.as_str()).is_some_and(|other| other < at) {
                problems.push(format!("`{module}` imports `{other}`, which is above it"));
            }
        }
        let listed = rows[*at].imports.as_ref();
        if listed.is_some_and(|listed| listed != imported) {
            let cell: Vec<String> = imported.iter().map(|name| format!("`{name}`")).collect();
            problems.push(format!(
                "the row of `{module}` must list its imports: {}",
                cell.join(", ")
            ));
        }
    }
    problems
}

#[test]
fn no_room_imports_one_above_it() {
    let architecture = fs::read_to_string(repository_root().join("ARCHITECTURE.md")).unwrap();
    for program in PROGRAMS {
        let rows = rows_of_program(&architecture, program);
        let problems = problems(&rows, &imports_of(program, program.ends_with("/src")));
        assert!(problems.is_empty(), "{program}:\n{}", problems.join("\n"));
    }
}

/// What the rows of a table say that their rooms hold, top to bottom. Lines begin with `prefix`.
fn held_by_rooms<'a>(table: &'a str, prefix: &str) -> Vec<(String, &'a str)> {
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix(prefix)?.split('|').collect();
        Some((quoted(cells.first()?).next()?.to_owned(), cells.get(1)?.trim()))
    });
    rows.collect()
}

#[test]
fn roots_of_programs_say_of_their_rooms_what_architecture_says() {
    let architecture = fs::read_to_string(repository_root().join("ARCHITECTURE.md")).unwrap();
    for program in ["proxy/src", "manager/src"] {
        let table = section(section(&architecture, "## Rooms"), &format!("### {program}"));
        let mut expected = held_by_rooms(table, "| ");
        // It is not in the library.
        expected.retain(|(room, _)| room != "main");
        let root = fs::read_to_string(repository_root().join(program).join("lib.rs")).unwrap();
        assert_eq!(held_by_rooms(&root, "//! | "), expected, "{program}/lib.rs");
    }
}

/// The folder of the modules of a file, such as `proxy/src/app` of `proxy/src/app.rs`.
fn folder_of(file: &str) -> &str {
    let folder = file.trim_end_matches(".rs");
    folder.trim_end_matches("/lib").trim_end_matches("/main")
}

/// Rust files below a folder, relative to the root.
fn add_files(folder: &str, files: &mut Vec<String>) {
    for entry in fs::read_dir(repository_root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.path().is_dir() {
            add_files(&path, files);
        } else if path.ends_with(".rs") {
            files.push(path);
        }
    }
}

/// The files with a table in their first lines, and its rows.
fn files_with_tables() -> Vec<(String, Vec<Row>)> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        add_files(folder, &mut files);
    }
    let with_rows = files.into_iter().map(|file| {
        let rows = rows_of_head(&fs::read_to_string(repository_root().join(&file)).unwrap());
        (file, rows)
    });
    let found: Vec<_> = with_rows.filter(|(_, rows)| !rows.is_empty()).collect();
    assert!(found.len() >= MIN_TABLES, "only {} tables were found", found.len());
    found
}

#[test]
fn no_module_imports_one_above_it_in_their_table() {
    for (file, rows) in files_with_tables() {
        // Their order is in ARCHITECTURE.md.
        if PROGRAMS.contains(&folder_of(&file)) {
            continue;
        }
        let problems = problems(&rows, &imports_of(folder_of(&file), false));
        assert!(problems.is_empty(), "{file}:\n{}", problems.join("\n"));
    }
}

/// The root composes the modules, so what it defines is above them.
#[test]
fn no_module_of_crate_imports_what_the_root_defines() {
    let files = files_with_tables().into_iter().map(|(file, _)| file);
    let roots = files.filter(|file| file.ends_with("/src/lib.rs"));
    let roots: Vec<String> = roots.collect();
    assert!(
        roots.iter().any(|root| root == "manager/rollout/src/lib.rs"),
        "{roots:?}"
    );
    for root in roots {
        let found = folder_at(folder_of(&root), false).imports_from_above();
        assert!(found.is_empty(), "{root} defines what its modules import: {found:?}");
    }
}

/// The modules in the table of a file's first lines, and those of its folder. `None`: it has no table.
fn listed_and_existing(file: &str) -> Option<(BTreeSet<String>, BTreeSet<String>)> {
    let rows = rows_of_head(&fs::read_to_string(repository_root().join(file)).unwrap());
    let stem = folder_of(file).rsplit('/').next().unwrap().to_owned();
    let listed = rows.into_iter().flat_map(|row| row.modules);
    // Some tables also say what is in the file itself.
    let listed: BTreeSet<String> = listed.filter(|module| *module != stem).collect();
    (!listed.is_empty()).then(|| (listed, modules_of(folder_of(file))))
}

fn modules_of(folder: &str) -> BTreeSet<String> {
    let modules = imports_of(folder, false).into_keys();
    modules.filter(|module| module != "main").collect()
}

#[test]
fn tables_in_first_lines_list_every_module() {
    for (file, _) in files_with_tables() {
        let (listed, modules) = listed_and_existing(&file).unwrap_or_default();
        assert_eq!(listed, modules, "{file}");
    }
}

#[test]
fn every_room_with_files_begins_with_a_table_of_them() {
    for program in PROGRAMS {
        for room in modules_of(program) {
            let folder = format!("{program}/{room}");
            // Some rooms have a folder for their tests only.
            if !repository_root().join(&folder).is_dir() || modules_of(&folder).is_empty() {
                continue;
            }
            let file = format!("{folder}.rs");
            let (listed, modules) =
                listed_and_existing(&file).unwrap_or_else(|| panic!("{file} has no table of its files"));
            assert_eq!(listed, modules, "{file}");
        }
    }
}

/// Imports of a source file at `module`, of the modules below `base`.
fn imported(source: &str, module: &str, base: &str, with_tests: bool) -> BTreeSet<String> {
    imported_below(&[], source, module, base, with_tests)
}

/// The same below other files: the crate's root, whose path is empty, and modules.
fn imported_below(
    above: &[(&str, &str)],
    source: &str,
    module: &str,
    base: &str,
    with_tests: bool,
) -> BTreeSet<String> {
    let names = |path: &str| -> Vec<String> { path.split_terminator('/').map(str::to_owned).collect() };
    let folder = Folder {
        sources: PathBuf::new(),
        library: "program".to_owned(),
        base: names(base),
        with_tests,
    };
    let read = |path: &[String]| {
        let found = above.iter().find(|(module, _)| names(module) == path);
        found.map(|(_, source)| (*source).to_owned())
    };
    let reexports = Reexports::above(&folder.base, &folder.library, read);
    folder.imported_modules(source, &names(module), &reexports)
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    BTreeSet::from(names.map(str::to_owned))
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
        use program::o::p;
        use other_program::q;
    ";
    assert_eq!(
        imported(source, "m", "", true),
        names(["a", "c", "d", "g", "i", "k", "o"])
    );
    assert_eq!(
        imported("use super::x;\nuse super::super::{y, z};", "a/b", "", true),
        names(["a", "y", "z"])
    );
}

#[test]
fn imports_within_a_part_are_found_from_its_files_and_from_the_top() {
    let source = "
        use crate::{part::{a, b::B}, other::c};
        use super::{d, e};
        use super::super::e::{self, E};
        use super::super::super::part::f;
    ";
    assert_eq!(
        imported(source, "part/room/file", "part", true),
        names(["a", "b", "e", "f", "room"])
    );
}

#[test]
fn imports_through_file_above_count_as_imports_of_the_file_that_it_has_them_from() {
    let root = "
        mod error;
        mod store;
        pub use error::Error;
        pub use crate::store::{Snapshot, state::{self, State as StoreState}, wait::*};
        pub struct OfRoot;
        fn f() { use crate::local::Local; }
    ";
    let wait = "pub const DEADLINE: u64 = 1; pub(crate) use super::log::Log; fn f() {}";
    let above = [("", root), ("store/wait", wait)];
    let find = |source: &str| imported_below(&above, source, "resource", "", false);
    assert_eq!(find("use crate::Error;"), names(["error"]));
    assert_eq!(find("use super::{Error as E, Snapshot};"), names(["error", "store"]));
    assert_eq!(
        find("fn f() -> super::StoreState { crate::state::g() }"),
        names(["store"])
    );
    assert_eq!(find("use crate::DEADLINE;"), names(["store"]));
    assert_eq!(find("use program::Log;"), names(["store"]));
    // Defined in the file above itself, or not in scope there.
    assert_eq!(find("use crate::{OfRoot, Local};"), names(["OfRoot", "Local"]));
    assert_eq!(own_definitions(root), names(["OfRoot", "f"]));
}

#[test]
fn imports_are_followed_through_every_file_above() {
    let above = [
        ("", "mod part; pub use part::{Plan, store};"),
        (
            "part",
            "mod a; mod check; pub use a::Plan; use super::other::X; pub use check::check;",
        ),
        ("other", "pub use crate::part::a::X;"),
    ];
    let find = |source: &str| imported_below(&above, source, "part/b", "part", false);
    assert_eq!(find("use crate::Plan;"), names(["a"]));
    assert_eq!(find("use super::check;"), names(["check"]));
    // `other` is a module with imports of its own.
    assert_eq!(find("use super::X;"), names([]));
}

#[test]
fn parent_of_module_in_same_file_is_the_file() {
    let source = "mod inner { use super::x; use super::super::y; mod deeper { super::super::z() } } use super::w;";
    assert_eq!(imported(source, "a", "", true), names(["a", "w", "y"]));
}

#[test]
fn imports_of_tests_count_only_where_they_are_asked_for() {
    let source = "use crate::a;\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n";
    assert_eq!(imported(source, "m", "", true), names(["a", "b"]));
    assert_eq!(imported(source, "m", "", false), names(["a"]));
}

#[test]
fn comments_and_texts_are_no_code_and_end_where_they_end() {
    let source = r##"
        f("https://a"); crate::b::c();
        g("crate::text", "\" crate::escaped", '"', '\'', 'x'); crate::d::e::<'a>();
        h(r#"" crate::raw "#, r"\"); crate::f::g(); /* crate::block // */ crate::h::i();
        // crate::comment "
        crate::j::k()
    "##;
    assert_eq!(imported(source, "m", "", true), names(["b", "d", "f", "h", "j"]));
    assert_eq!(code("a // b\nc").split_whitespace().collect::<Vec<_>>(), ["a", "c"]);
}

#[test]
fn rows_have_modules_and_perhaps_imports() {
    let document = "# T\n## Rooms\n### p\n| `a` | x | all below but `c` |\n| `b` | | `d` |\n| `c` | | |\n| `d` | | |\n";
    let imports = rows_of_program(document, "p")
        .into_iter()
        .map(|row| row.imports.unwrap());
    let expected = [names(["b", "d"]), names(["d"]), names([]), names([])];
    assert_eq!(imports.collect::<Vec<_>>(), expected);

    let head = "//! A crate.\n//!\n//! | module | holds |\n//! |---|---|\n//! | [`mod@a`], `b` | `x` |\n//! | `c` | y |\n\n//! | `d` |\n";
    let modules: Vec<Vec<String>> = rows_of_head(head).into_iter().map(|row| row.modules).collect();
    assert_eq!(modules, [vec!["a", "b"], vec!["c"]]);
}

#[test]
fn upward_imports_and_missing_rooms_are_problems() {
    let document = "# T\n## Rooms\n### p\n| room | holds | imports |\n|---|---|---|\n| `top` | x | `low` |\n| `low` | y | |\n| `gone` | | |\n## Z\n";
    let rows = rows_of_program(document, "p");
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
    let rows = rows_of_head("//! | `a`, `b` |\n//! | `c` | |\n//! | `c` |");
    let found = problems(&rows, &imports(&[("a", &["b"]), ("b", &["a"]), ("c", &["b"])]));
    assert_eq!(found, ["`c` is in two rows", "`c` imports `b`, which is above it"]);
}
