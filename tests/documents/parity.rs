//! docs/parity.md: every row of the three checklists is present, and each test that a row names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use ctrlmesh_tests::repository_root;

/// Ids of the checklists: prefix and count, numbered from 01.
const KUSION: [(&str, usize); 17] = [
    ("API", 12),
    ("INJ", 14),
    ("PXY", 11),
    ("SEL", 9),
    ("LE", 4),
    ("WHP", 1),
    ("REST", 5),
    ("CB", 12),
    ("FI", 8),
    ("MGR", 7),
    ("LBL", 6),
    ("RO", 3),
    ("MC", 3),
    ("OBS", 6),
    ("SEC", 4),
    ("PKG", 4),
    ("EXT", 1),
];
const OTHERS: [(&str, usize); 3] = [("TST", 2), ("OK", 75), ("CR", 68)];

/// Names of tests, and the files with a test of that name.
pub(crate) type Tests = BTreeMap<String, BTreeSet<PathBuf>>;

const STATES: [&str; 3] = ["works", "different on purpose", "not yet"];

fn read_document() -> String {
    fs::read_to_string(repository_root().join("docs/parity.md")).unwrap()
}

/// The rows: id, state, and the rest of the row.
fn parse_rows() -> Vec<(String, String, String)> {
    let text = read_document();
    let table = text
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ID"));
    table
        .filter_map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let (id, state) = (cells.first()?, cells.get(2)?);
            id.contains('-').then(|| {
                (
                    (*id).to_owned(),
                    (*state).to_owned(),
                    cells.get(3..).unwrap_or_default().join("|"),
                )
            })
        })
        .collect()
}

#[test]
fn checklist_rows_are_complete_and_have_known_states() {
    let expected: BTreeSet<String> = KUSION
        .iter()
        .chain(&OTHERS)
        .flat_map(|(prefix, count)| (1..=*count).map(move |number| format!("{prefix}-{number:02}")))
        .collect();
    let rows = parse_rows();
    let found: BTreeSet<String> = rows.iter().map(|(id, ..)| id.clone()).collect();
    assert_eq!(found, expected);
    assert_eq!(rows.len(), expected.len(), "an ID is there twice");
    for (id, state, _) in rows {
        assert!(STATES.contains(&state.as_str()), "{id}: {state}");
    }
}

/// Tests of rows that do not fit into a cell, by id: items such as `- **API-01**: ...` below a heading `### Tests of ...`. Each with
/// what the row's cell must say instead.
fn parse_lists(document: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let mut lists = BTreeMap::new();
    for section in document.split("\n### ").skip(1) {
        let (heading, rest) = section.split_once('\n').unwrap();
        let body = rest.split("\n## ").next().unwrap_or_default();
        let anchor = heading.to_lowercase().replace(' ', "-");
        for item in body.split("\n- **").skip(1) {
            let (id, text) = item.split_once("**: ").unwrap();
            let names = names_of_tests(text);
            let cell = format!("[{} below](#{anchor})", names.len());
            assert!(
                lists.insert(id.to_owned(), (cell, names)).is_none(),
                "{id} has two lists"
            );
        }
    }
    lists
}

pub(crate) fn names_of_tests(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter(|name| name.contains("::") || name.starts_with("Test"));
    names.map(str::to_owned).collect()
}

#[test]
fn tests_named_by_rows_exist() {
    let known = all_tests();
    let mut lists = parse_lists(&read_document());
    for (id, state, rest) in parse_rows() {
        let named = if rest.contains(" below](#tests-of-") {
            let (cell, names) = lists
                .remove(&id)
                .unwrap_or_else(|| panic!("{id} has no list of its tests"));
            assert!(rest.ends_with(&cell), "{id}: the last cell must be {cell}");
            names
        } else {
            names_of_tests(&rest)
        };
        if state != "not yet" {
            assert!(!named.is_empty(), "{id} claims {state:?} and names no test");
        }
        for name in &named {
            let files = known.get(name).map_or(0, BTreeSet::len);
            assert!(files > 0, "{id}: there is no test {name}");
            let is_clear = files == 1 || !name.contains("::");
            assert!(is_clear, "{id}: {name} may be any of {:?}", known[name]);
        }
    }
    assert!(lists.is_empty(), "lists that no row refers to: {:?}", lists.keys());
}

#[test]
fn lists_of_tests_belong_to_rows_by_id_count_and_section() {
    let document = "x\n### Tests of all rows\n\n- **A-01**: `a::b`,\n  `TestC` (`d`)\n- **A-02**: `e::f`\n## B\n- **A-03**: `g::h`\n";
    let lists = parse_lists(document);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(lists.len(), 2);
    assert_eq!(
        lists["A-01"],
        ("[2 below](#tests-of-all-rows)".to_owned(), names(&["a::b", "TestC"]))
    );
    assert_eq!(lists["A-02"].1, names(&["e::f"]));
}

/// `<file without ending>::<function>` for Rust, `TestX` and `TestX/<subtest>` for Go.
pub(crate) fn all_tests() -> Tests {
    let mut found = Tests::new();
    let mut folders = vec![repository_root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
                folders.push(path);
            } else if name.ends_with(".rs") {
                rust_tests(&path, &mut found);
            } else if name.ends_with("_test.go") {
                go_tests(&path, &mut found);
            }
        }
    }
    found
}

fn add_test(found: &mut Tests, name: String, path: &Path) {
    found.entry(name).or_default().insert(path.to_owned());
}

fn rust_tests(path: &Path, found: &mut Tests) {
    let text = fs::read_to_string(path).unwrap();
    let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
    // `edit/tests.rs` belongs to what it tests, and `lint/main.rs` begins the tests of the folder.
    let file = if ["tests", "main"].contains(&stem.as_str()) {
        path.parent()
            .unwrap()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned()
    } else {
        stem
    };
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if is_test && let Some((before, after)) = line.split_once("fn ") {
            if before.is_empty() || before == "async " {
                let name = after.split('(').next().unwrap_or_default();
                add_test(found, format!("{file}::{name}"), path);
            }
            is_test = false;
        }
    }
}

fn go_tests(path: &Path, found: &mut Tests) {
    let text = fs::read_to_string(path).unwrap();
    let mut test = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("func Test") {
            test = format!("Test{}", rest.split('(').next().unwrap_or_default());
            add_test(found, test.clone(), path);
        }
        // Named subtests, and the catalogue's cases by number.
        for literal in line.split('"').skip(1).step_by(2) {
            if line.contains("Run(") {
                add_test(found, format!("{test}/{literal}"), path);
            }
            let number = literal.split('_').next().unwrap_or_default();
            if number.len() > 1
                && number.starts_with(|c: char| ('A'..='I').contains(&c))
                && number[1..].parse::<u32>().is_ok()
            {
                add_test(found, format!("TestKnownBypassesAreClosed/{literal}"), path);
            }
        }
    }
}
