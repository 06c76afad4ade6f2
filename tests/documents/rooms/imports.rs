//! Finds what the modules of a folder import, from the text of their sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of a folder, each with the modules of the same folder that it imports.
pub(super) type Imports = BTreeMap<String, BTreeSet<String>>;

/// No modules of their own: they put modules together, or are compiled for tests only.
const ROOTS: [&str; 5] = ["lib", "bin", "test_env", "samples", "tests"];

/// A folder with modules.
pub(super) struct Folder {
    /// The sources of a crate.
    pub(super) sources: PathBuf,
    /// The crate's name in paths. Its `main.rs` imports from the library by this name.
    pub(super) library: String,
    /// Path of the module whose modules are looked at; empty for the crate.
    pub(super) base: Vec<String>,
    /// Whether imports of tests count. Tests of a part may start the parts above it.
    pub(super) with_tests: bool,
}

impl Folder {
    pub(super) fn imports(&self) -> Imports {
        let mut found = Imports::new();
        let folder = self
            .base
            .iter()
            .fold(self.sources.clone(), |path, name| path.join(name));
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let is_module = path
                .extension()
                .map_or(path.with_extension("rs").exists(), |end| end == "rs");
            if is_module && !ROOTS.contains(&module.as_str()) {
                self.collect(&path, found.entry(module).or_default());
            }
        }
        let modules: BTreeSet<String> = found.keys().cloned().collect();
        for (module, names) in &mut found {
            names.retain(|name| name != module && modules.contains(name));
        }
        found
    }

    fn collect(&self, path: &Path, names: &mut BTreeSet<String>) {
        if !self.with_tests && path.file_stem().is_some_and(|stem| stem == "tests") {
            return;
        }
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.collect(&entry.unwrap().path(), names);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = path.strip_prefix(&self.sources).unwrap().with_extension("");
            let module = relative.iter().map(|name| name.to_str().unwrap().to_owned());
            names.extend(self.imported_modules(&fs::read_to_string(path).unwrap(), &module.collect::<Vec<_>>()));
        }
    }

    /// The modules of this folder that the source of a module names in paths.
    pub(super) fn imported_modules(&self, source: &str, module: &[String]) -> BTreeSet<String> {
        let mut code = code(source);
        if !self.with_tests
            && let Some(at) = code.find("#[cfg(test)]\nmod tests {")
        {
            code.truncate(at);
        }
        let paths = paths(&code, module, &self.library);
        let below = paths.iter().filter_map(|path| path.strip_prefix(&self.base[..]));
        below.filter_map(|path| path.first().cloned()).collect()
    }
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
fn paths(code: &str, module: &[String], library: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for first in ["crate", "super", "self", library] {
        for (at, _) in code.match_indices(&format!("{first}::")) {
            let before = &code[..at];
            // Part of a longer path or name, or of a macro's `$crate`.
            if before.ends_with("::") || before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
                continue;
            }
            let resolved = expand(&code[at..])
                .into_iter()
                .filter_map(|path| resolve(&path, module));
            found.extend(resolved);
        }
    }
    found
}

/// A path from the crate's top; `None` if its `super` lead out of the crate.
fn resolve(path: &[String], module: &[String]) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    let ups = path.iter().take_while(|name| *name == "super").count();
    let (from, rest) = match first.as_str() {
        "self" => (module, rest),
        "super" => (&module[..module.len().checked_sub(ups)?], &path[ups..]),
        _ => (&[][..], rest),
    };
    Some([from, rest].concat())
}

/// The paths of a use tree: one, or one for each name in its groups.
fn expand(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim_start();
    if let Some(group) = tree.strip_prefix('{') {
        return members(group).into_iter().flat_map(expand).collect();
    }
    let end = tree
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(tree.len());
    let (name, rest) = tree.split_at(end);
    if name.is_empty() {
        return Vec::new();
    }
    let tails = rest.strip_prefix("::").map(expand).unwrap_or_default();
    if tails.is_empty() {
        return vec![vec![name.to_owned()]];
    }
    let path = |tail: Vec<String>| [vec![name.to_owned()], tail].concat();
    tails.into_iter().map(path).collect()
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
