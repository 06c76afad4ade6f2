//! Other pages use each word of docs/glossary.md. No page, message or name uses a word that its last table retires, and
//! pages, messages and the interface in `wit/` say `answer` as the glossary does.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

use super::logs::add_sources;

const GLOSSARY: &str = "docs/glossary.md";
const RETIRED_HEADING: &str = "## Words that these pages do not use";
/// A word that is used once needs no row.
const MIN_USES: usize = 2;
/// ADR 0014 keeps its file name, because pages link to it.
const KEPT_FILE_NAME: &str = "0014-handover";
/// Words after which `answer` is a noun.
const BEFORE_NOUNS: [&str; 16] = [
    "a", "an", "the", "no", "its", "their", "whose", "of", "without", "every", "early", "late", "slow", "lost",
    "large", "complete",
];
/// Messages about the verdict `answer`.
const ABOUT_VERDICT: [&str; 3] = [
    "an answer with the code",
    "on an answer of its own",
    "An answer that is no Status",
];
/// Files of the interface that keep their words, because hosts support them as they are.
const EARLIER_INTERFACE: &str = "wit/0.1/";
/// Folders of sources whose names and comments may have no retired word.
const SOURCES: [&str; 9] = [
    "benches", "cli", "contract", "manager", "plugins", "proxy", "sdk", "testkit", "wire",
];
/// Folders of sources with messages for users.
const MESSAGES: [&str; 4] = ["proxy/src", "manager", "cli/src", "contract/src"];
/// Endings of a word's other forms, such as `claims`, `bypassed` and `overtaking`.
const ENDINGS: [&str; 5] = ["s", "es", "ed", "d", "ing"];

/// Adds the texts of the files below a folder whose names have one of these endings, by path.
fn add_files(root: &Path, folder: &str, endings: &[&str], files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(root.join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{folder}/{}", path.file_name().unwrap().to_string_lossy());
        if path.is_dir() {
            add_files(root, &name, endings, files);
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            files.insert(name, fs::read_to_string(path).unwrap());
        }
    }
}

/// Texts of docs/ and of the pages in the root folder, by path.
fn read_pages(root: &Path) -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    add_files(root, "docs", &[".md"], &mut pages);
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        pages.insert(name.to_owned(), fs::read_to_string(root.join(name)).unwrap());
    }
    pages
}

/// Adds READMEs outside of docs/, and the interface, whose comments are the specification for authors of plugins.
fn add_readmes_and_interface(root: &Path, pages: &mut BTreeMap<String, String>) {
    for folder in SOURCES.iter().chain(&["tests", "wit"]) {
        add_files(root, folder, &["README.md"], pages);
    }
    add_files(root, "wit", &[".wit"], pages);
    pages.retain(|name, _| !name.starts_with(EARLIER_INTERFACE));
}

/// Texts that people read beside the pages, by path: sources, tests in Go, what is deployed, READMEs, the interface and
/// the Makefile.
fn read_names(root: &Path) -> BTreeMap<String, String> {
    let mut texts = BTreeMap::new();
    for folder in SOURCES {
        add_files(root, folder, &[".rs"], &mut texts);
    }
    add_files(root, "tests", &[".go"], &mut texts);
    add_files(root, "deploy", &[".yaml", ".json", ".tpl", ".txt"], &mut texts);
    add_readmes_and_interface(root, &mut texts);
    texts.insert(
        "Makefile".to_owned(),
        fs::read_to_string(root.join("Makefile")).unwrap(),
    );
    texts
}

fn add_messages(root: &Path, texts: &mut BTreeMap<String, String>) {
    for folder in MESSAGES {
        let mut sources = String::new();
        add_sources(&root.join(folder), &mut sources);
        texts.insert(format!("messages of {folder}"), messages(&sources));
    }
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

/// The words of names in small letters: of `handOver`, `HandOver`, `hand_over` and `hand-over` they are `hand` and `over`.
fn split_names(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for name in text.split(|letter: char| !letter.is_alphanumeric()) {
        let mut word = String::new();
        let mut letters = name.chars().peekable();
        let mut last = ' ';
        while let Some(letter) = letters.next() {
            // The last letter of `HTTP` in `HTTPServer` is followed by a word.
            let is_before_small = letters.peek().is_some_and(|next| next.is_lowercase());
            if letter.is_uppercase() && (last.is_lowercase() || is_before_small) {
                words.push(std::mem::take(&mut word));
            }
            word.extend(letter.to_lowercase());
            last = letter;
        }
        words.push(word);
    }
    words.retain(|word| !word.is_empty());
    words
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

/// Retired words in names and comments. Those of `lost.answer` are in two names.
fn retired_words_in_names<'a>(text: &str, retired: &[&'a str]) -> Vec<&'a str> {
    let text = text.replace(KEPT_FILE_NAME, "");
    let is_inside = |letter: char| letter.is_alphanumeric() || letter.is_whitespace() || "-_".contains(letter);
    let parts = text.split(|letter: char| !is_inside(letter));
    // An empty word keeps the last word of a part from the first one of the next.
    let words: Vec<String> = parts
        .flat_map(|part| split_names(part).into_iter().chain([String::new()]))
        .collect();
    let is_used = |term: &&&str| count_uses(&words, term, is_same_word) > 0;
    retired.iter().filter(is_used).copied().collect()
}

/// Uses of `answer` as a noun, outside of code. Another word in front, such as `that`, leaves open what it is.
fn answers_as_nouns(text: &str) -> Vec<String> {
    let prose: Vec<&str> = text.split('`').step_by(2).collect();
    let prose = ABOUT_VERDICT
        .iter()
        .fold(prose.join(" code "), |prose, allowed| prose.replace(allowed, ""));
    let words = split_words(&prose);
    let is_noun = |pair: &&[String]| match pair {
        [before, word] => ["answer", "answers"].contains(&word.as_str()) && BEFORE_NOUNS.contains(&before.as_str()),
        _ => false,
    };
    words.windows(2).filter(is_noun).map(|pair| pair.join(" ")).collect()
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
    add_messages(&root, &mut texts);
    for (name, text) in &texts {
        let found = retired_words_in(text, &retired);
        assert!(
            found.is_empty(),
            "{name} has {found:?}; the end of {GLOSSARY} says what to write"
        );
    }
}

#[test]
fn retired_words_are_not_in_names() {
    let root = repository_root();
    let glossary = fs::read_to_string(root.join(GLOSSARY)).unwrap();
    let (_, retired) = glossary.split_once(RETIRED_HEADING).unwrap();
    let retired = words_of_rows(retired);
    let texts = read_names(&root);
    assert!(texts.len() > 500, "only {} files were read", texts.len());
    let found: Vec<_> = texts
        .iter()
        .map(|(name, text)| (name, retired_words_in_names(text, &retired)))
        .filter(|(_, found)| !found.is_empty())
        .collect();
    assert!(
        found.is_empty(),
        "the end of {GLOSSARY} says what to write instead: {found:#?}"
    );
}

#[test]
fn answer_is_a_verb_or_the_verdict() {
    let root = repository_root();
    let mut texts = read_pages(&root);
    texts.remove(GLOSSARY).unwrap();
    texts.insert(
        "SECURITY.md".to_owned(),
        fs::read_to_string(root.join("SECURITY.md")).unwrap(),
    );
    add_readmes_and_interface(&root, &mut texts);
    add_messages(&root, &mut texts);
    let found: Vec<_> = texts
        .iter()
        .map(|(name, text)| (name, answers_as_nouns(text)))
        .filter(|(_, found)| !found.is_empty())
        .collect();
    assert!(found.is_empty(), "what is sent back is a response: {found:#?}");
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
fn retired_words_are_found_in_falsified_names() {
    let retired = ["story", "lost answer", "handover"];
    let text = "let history = lost.answer; // hand_over, HandOver, docs/adr/0014-handover.md, AnswerLost";
    assert!(retired_words_in_names(text, &retired).is_empty());
    for (falsified, word) in [
        ("struct UserStory;", "story"),
        ("fn HTTPStory()", "story"),
        ("let last_story = 1;", "story"),
        ("name: long-story", "story"),
        ("func TestLostAnswerByTimeout()", "lost answer"),
        ("/// The lost answer of a create.", "lost answer"),
        ("ADR: handover", "handover"),
    ] {
        assert_eq!(retired_words_in_names(falsified, &retired), [word], "{falsified}");
    }
}

#[test]
fn answers_are_found_in_falsified_text() {
    let text = "A pod that answers, and both answer webhooks. An `answer` of the plugin: don't answer it. \
                Go on with a delay, not on an answer of its own. The code `the answer` answered.";
    assert!(answers_as_nouns(text).is_empty(), "{:?}", answers_as_nouns(text));
    let falsified = format!("{text} It reads none of its\nanswers, or the late answer.");
    assert_eq!(answers_as_nouns(&falsified), ["its answers", "late answer"]);
    let interface = "  /// An answer that is no Status.\n  record answer {}\n  /// The answer to `take`.\n";
    assert_eq!(answers_as_nouns(interface), ["the answer"]);
}

#[test]
fn interface_is_read_without_its_earlier_version() {
    let mut pages = BTreeMap::new();
    add_readmes_and_interface(&repository_root(), &mut pages);
    let files = pages.keys().map(String::as_str);
    let files: Vec<&str> = files.filter(|name| name.starts_with("wit/")).collect();
    assert_eq!(
        files,
        ["wit/README.md", "wit/host.wit", "wit/plugin.wit", "wit/types.wit"]
    );
}

#[test]
fn messages_are_literals_of_several_words() {
    let source = "mend(\"mend\", '\"', \"cannot \\\"load\\\" {mend}: retry\");\n";
    assert_eq!(messages(source), "cannot load : retry\n");
}
