//! Other pages use each word of docs/glossary.md, and no page or message uses a word that its last table retires.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

use super::logs::add_sources;

const GLOSSARY: &str = "docs/glossary.md";
const RETIRED_HEADING: &str = "## Words that these pages do not use";
/// A word that is used once needs no row.
const MIN_USES: usize = 2;
/// Endings of a word's other forms, such as `claims`, `bypassed` and `overtaking`.
const ENDINGS: [&str; 5] = ["s", "es", "ed", "d", "ing"];

fn add_pages(root: &Path, folder: &str, pages: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{folder}/{}", path.file_name().unwrap().to_string_lossy());
        if path.is_dir() {
            add_pages(root, &name, pages);
        } else if name.ends_with(".md") {
            pages.insert(name, fs::read_to_string(path).unwrap());
        }
    }
}

/// Texts of docs/ and of the pages in the root folder, by path.
fn read_pages(root: &Path) -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    add_pages(root, "docs", &mut pages);
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        pages.insert(name.to_owned(), fs::read_to_string(root.join(name)).unwrap());
    }
    pages
}

/// Words in bold in the first cells of tables.
fn words_of_rows(section: &str) -> Vec<&str> {
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let first_cells = rows.filter_map(|row| row.split('|').next());
    first_cells
        .flat_map(|cell| cell.split("**").skip(1).step_by(2))
        .collect()
}

/// Words of a text in small letters. `hand-over` and `hand_over` are one word each.
fn split_words(text: &str) -> Vec<String> {
    let is_inside = |letter: char| letter.is_alphanumeric() || "-_'".contains(letter);
    let words = text.split(|letter: char| !is_inside(letter)).map(|word| {
        let word = word.trim_matches(['-', '_', '\'']);
        word.trim_end_matches("'s").to_lowercase()
    });
    words.filter(|word| !word.is_empty()).collect()
}

fn is_same_word(word: &str, base: &str) -> bool {
    word == base
}

fn is_form_of(word: &str, base: &str) -> bool {
    let stems = [Some(base), base.strip_suffix('e'), base.strip_suffix("ing")];
    let mut endings = stems.into_iter().flatten().filter_map(|stem| word.strip_prefix(stem));
    word == base || endings.any(|ending| ENDINGS.contains(&ending))
}

/// How often a text has a term of one or more words.
fn count_uses(text: &[String], term: &str, is_match: fn(&str, &str) -> bool) -> usize {
    let term = split_words(term);
    text.windows(term.len())
        .filter(|window| window.iter().zip(&term).all(|(word, base)| is_match(word, base)))
        .count()
}

/// Words of rows that other pages use less than `MIN_USES` times.
fn unused_words<'a>(rows: &'a str, other_pages: &[Vec<String>]) -> Vec<&'a str> {
    let is_unused = |term: &&str| {
        let uses = other_pages.iter().map(|page| count_uses(page, term, is_form_of));
        uses.sum::<usize>() < MIN_USES
    };
    words_of_rows(rows).into_iter().filter(is_unused).collect()
}

fn retired_words_in<'a>(text: &str, retired: &[&'a str]) -> Vec<&'a str> {
    let text = split_words(text);
    let is_used = |term: &&&str| count_uses(&text, term, is_same_word) > 0;
    retired.iter().filter(is_used).copied().collect()
}

/// String literals of several words, without the names of values in braces.
fn messages(sources: &str) -> String {
    let mut messages = String::new();
    for line in sources.lines() {
        let line = line.replace("\\\"", "").replace("'\"'", "");
        let literals = line.split('"').skip(1).step_by(2);
        for literal in literals.filter(|literal| literal.contains(' ')) {
            messages.extend(literal.split(['{', '}']).step_by(2));
            messages.push('\n');
        }
    }
    messages
}

#[test]
fn words_of_glossary_are_used_on_other_pages() {
    let mut pages = read_pages(&repository_root());
    let glossary = pages.remove(GLOSSARY).unwrap();
    let (rows, _) = glossary.split_once(RETIRED_HEADING).unwrap();
    assert!(words_of_rows(rows).len() > 50, "{:?}", words_of_rows(rows));
    let pages: Vec<Vec<String>> = pages.values().map(|page| split_words(page)).collect();
    let unused = unused_words(rows, &pages);
    assert!(
        unused.is_empty(),
        "pages use {unused:?} less than twice; remove the rows"
    );
}

#[test]
fn retired_words_are_not_in_pages_and_messages() {
    let root = repository_root();
    let mut texts = read_pages(&root);
    let glossary = texts.remove(GLOSSARY).unwrap();
    let (rows, retired) = glossary.split_once(RETIRED_HEADING).unwrap();
    texts.insert(GLOSSARY.to_owned(), rows.to_owned());
    let retired = words_of_rows(retired);
    assert!(retired.len() >= 10, "{retired:?}");
    for folder in ["proxy/src", "manager", "cli/src", "contract/src"] {
        let mut sources = String::new();
        add_sources(&root.join(folder), &mut sources);
        texts.insert(format!("messages of {folder}"), messages(&sources));
    }
    for (name, text) in &texts {
        let found = retired_words_in(text, &retired);
        assert!(
            found.is_empty(),
            "{name} has {found:?}; the end of {GLOSSARY} says what to write"
        );
    }
}

#[test]
fn unused_words_are_found_in_falsified_glossary() {
    let rows = "| word | meaning |\n|---|---|\n| **lock** of a shard | a |\n| **stale cache**, **heir** | b |\n";
    assert_eq!(words_of_rows(rows), ["lock", "stale cache", "heir"]);
    let pages = [
        "Locks, and a shard's *lock*. A stale cache.",
        "Stale\ncaches of `heir`; blocks.",
    ];
    let pages = pages.map(split_words);
    assert_eq!(unused_words(rows, &pages), ["heir"]);
    assert_eq!(unused_words(rows, &pages[..1]), ["stale cache", "heir"]);
}

#[test]
fn retired_words_are_found_in_falsified_text() {
    let retired = ["handover", "lost answer", "mend"];
    let text = "A [hand-over](adr/0014-handover.md) of `handovers_total`; a lost, answered request is amended.";
    assert!(retired_words_in(text, &retired).is_empty());
    let falsified = format!("{text} After a handover\nthe lost\nanswer comes.");
    assert_eq!(retired_words_in(&falsified, &retired), ["handover", "lost answer"]);
}

#[test]
fn messages_are_literals_of_several_words() {
    let source = "mend(\"mend\", '\"', \"cannot \\\"load\\\" {mend}: retry\");\n";
    assert_eq!(messages(source), "cannot load : retry\n");
}
