//! Reads what Rust sources say of their imports: code without comments and texts, and paths in it.

use std::collections::BTreeSet;
use std::ops::Range;

/// Keywords before the name of what a module defines.
const DEFINING: [&str; 10] = [
    "const",
    "enum",
    "fn",
    "macro_rules",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "union",
];

/// A name in a use tree, or in a path elsewhere in code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The name in the importing module; `*` for all names of the path.
    pub(super) name: String,
}

/// Source text without comments and without what is in quotes: neither imports anything.
pub(super) fn code(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let skipped = skipped_length(rest, code.chars().next_back());
        if skipped == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.push(' ');
            rest = &rest[skipped..];
        }
    }
    code
}

/// The length of the comment, text or character with which `rest` begins; 0 if it begins with code.
fn skipped_length(rest: &str, before: Option<char>) -> usize {
    let until = |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    let continues_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return until("*/", 2);
    }
    if rest.starts_with('r') && !continues_name {
        let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
        if rest[1 + hashes..].starts_with('"') {
            return until(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        }
    }
    if rest.starts_with('"') {
        return quoted_length(rest, '"').unwrap_or(rest.len());
    }
    if let Some(inner) = rest.strip_prefix('\'') {
        // Otherwise a lifetime.
        let is_character = inner.starts_with('\\') || inner.chars().nth(1) == Some('\'');
        return is_character.then(|| quoted_length(rest, '\'')).flatten().unwrap_or(0);
    }
    0
}

/// The length up to the closing quote, which no backslash escapes.
fn quoted_length(rest: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if c == quote && !is_escaped {
            return Some(at + 1);
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    None
}

/// All paths in the code of a module that begin with `crate`, `super`, `self` or the library's name, from the crate's top.
pub(super) fn paths(code: &str, module: &[String], library: &str) -> Vec<Vec<String>> {
    let inline = inline_modules(code);
    let mut found = Vec::new();
    for first in ["crate", "super", "self", library] {
        for (at, _) in code.match_indices(&format!("{first}::")) {
            let before = &code[..at];
            // Part of a longer path or name, or of a macro's `$crate`.
            if before.ends_with("::") || before.ends_with(|c: char| is_in_name(c) || c == '$') {
                continue;
            }
            let around = inline.iter().filter(|(range, _)| range.contains(&at));
            let mut module = module.to_vec();
            module.extend(around.map(|(_, name)| name.clone()));
            let resolved = expand(&code[at..])
                .into_iter()
                .filter_map(|import| resolve(&import.path, &module));
            found.extend(resolved);
        }
    }
    found
}

/// The modules whose code is in the same file, from the outer to the inner ones.
fn inline_modules(code: &str) -> Vec<(Range<usize>, String)> {
    let mut found = Vec::new();
    for (at, keyword) in code.match_indices("mod ") {
        if code[..at].ends_with(is_in_name) {
            continue;
        }
        let Some((name, block)) = code[at + keyword.len()..].split_once('{') else {
            break;
        };
        if name.trim().chars().all(is_in_name) {
            let start = code.len() - block.len();
            found.push((start..start + block_length(block), name.trim().to_owned()));
        }
    }
    found
}

/// The length of a block after its opening brace.
fn block_length(block: &str) -> usize {
    let mut depth = 0;
    for (at, c) in block.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return at,
            '}' => depth -= 1,
            _ => {}
        }
    }
    block.len()
}

fn is_in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Imports of the `use` declarations of a module, apart from those in its functions and inline modules.
pub(super) fn uses(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            'u' if depth == 0 && !code[..at].ends_with(is_in_name) => {
                found.extend(code[at..].strip_prefix("use ").map(expand).unwrap_or_default());
            }
            _ => {}
        }
    }
    found
}

/// The names that a module defines, at any depth.
pub(super) fn defined_names(code: &str) -> BTreeSet<String> {
    names_after(code, &DEFINING)
}

/// The names of the modules in a module, in files of their own or not.
pub(super) fn child_modules(code: &str) -> BTreeSet<String> {
    names_after(code, &["mod"])
}

fn names_after(code: &str, keywords: &[&str]) -> BTreeSet<String> {
    let words = code.split(|c: char| !is_in_name(c)).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    let pairs = words.windows(2).filter(|pair| keywords.contains(&pair[0]));
    pairs.map(|pair| pair[1].to_owned()).collect()
}

/// A path from the crate's top; `None` if its `super` lead out of the crate.
pub(super) fn resolve(path: &[String], module: &[String]) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    let ups = path.iter().take_while(|name| *name == "super").count();
    let (from, rest) = match first.as_str() {
        "self" => (module, rest),
        "super" => (&module[..module.len().checked_sub(ups)?], &path[ups..]),
        _ => (&[][..], rest),
    };
    Some([from, rest].concat())
}

/// The imports of a use tree: one, or one for each name in its groups.
fn expand(tree: &str) -> Vec<Import> {
    let tree = tree.trim_start();
    if let Some(group) = tree.strip_prefix('{') {
        return members(group).into_iter().flat_map(expand).collect();
    }
    if tree.starts_with('*') {
        return vec![Import {
            path: Vec::new(),
            name: "*".to_owned(),
        }];
    }
    let (first, rest) = split_name(tree);
    if first.is_empty() {
        return Vec::new();
    }
    let tails = rest.strip_prefix("::").map(expand).unwrap_or_default();
    if tails.is_empty() {
        let alias = rest.trim_start().strip_prefix("as ").map(|rest| split_name(rest).0);
        return vec![Import {
            path: vec![first.to_owned()],
            name: alias.unwrap_or(first).to_owned(),
        }];
    }
    tails.into_iter().map(|tail| below(first, tail)).collect()
}

fn split_name(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !is_in_name(c)).unwrap_or(text.len()))
}

/// An import of a group, with the path before the group.
fn below(first: &str, tail: Import) -> Import {
    let is_self = tail.path == ["self"];
    let name = if is_self && tail.name == "self" {
        first.to_owned()
    } else {
        tail.name
    };
    let rest = if is_self { Vec::new() } else { tail.path };
    Import {
        path: [vec![first.to_owned()], rest].concat(),
        name,
    }
}

/// The members of a group, after its opening brace.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut start) = (0, 0);
    let mut members = Vec::new();
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                members.push(&group[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                members.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    members
}
