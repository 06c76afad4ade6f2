//! Follows imports through the files above a folder: if the file above has a name from one file of its folder, another
//! one that says `use super::Name` imports from that file.
//!
//! Other files that pass names on are not followed: they are modules with rows of their own.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Import, child_modules, code, defined_names, resolve, uses};

/// Steps from one file above to the next one; more would be a circle.
const MAX_STEPS: usize = 16;

/// Imports of the files above a folder.
#[derive(Debug, Default)]
pub(super) struct Reexports {
    base: Vec<String>,
    /// Of the crate's root, and of each module on the way to the folder: names, and the paths that they stand for.
    above: Vec<BTreeMap<String, Vec<String>>>,
}

impl Reexports {
    /// Of the files above the folder of the module `base`. `read` gives a module's source by its path from the crate's top.
    pub(super) fn above(base: &[String], library: &str, read: impl Fn(&[String]) -> Option<String>) -> Self {
        let of_module = |length: usize| imported_names(&base[..length], library, &read);
        Self {
            base: base.to_vec(),
            above: (0..=base.len()).map(of_module).collect(),
        }
    }

    /// The path for which a path stands that may name an import of a file above the folder.
    pub(super) fn follow(&self, mut path: Vec<String>) -> Vec<String> {
        for _ in 0..MAX_STEPS {
            let Some(next) = self.step(&path) else {
                break;
            };
            path = next;
        }
        path
    }

    fn step(&self, path: &[String]) -> Option<Vec<String>> {
        let shared = path.iter().zip(&self.base).take_while(|(name, base)| name == base);
        let length = shared.count();
        let origin = self.above.get(length)?.get(path.get(length)?)?;
        Some([&origin[..], &path[length + 1..]].concat())
    }
}

/// The names that a module imports, each with the path for which it stands.
fn imported_names(
    module: &[String],
    library: &str,
    read: &impl Fn(&[String]) -> Option<String>,
) -> BTreeMap<String, Vec<String>> {
    let Some(source) = read(module) else {
        return BTreeMap::new();
    };
    let code = code(&source);
    let children = child_modules(&code);
    let absolute = |import: &Import| {
        let first = import.path.first()?;
        if ["crate", "super", "self", library].contains(&first.as_str()) {
            return resolve(&import.path, module);
        }
        // Other names are those of crates.
        children.contains(first).then(|| [module, &import.path[..]].concat())
    };
    let mut names = BTreeMap::new();
    let mut globs = Vec::new();
    for import in uses(&code) {
        match absolute(&import) {
            Some(path) if import.name == "*" => globs.push(path),
            Some(path) => {
                names.insert(import.name, path);
            }
            None => {}
        }
    }
    let own = defined_names(&code);
    for glob in globs {
        for name in read(&glob).map(|source| public_names(&source)).unwrap_or_default() {
            if !own.contains(&name) {
                let path = [glob.clone(), vec![name.clone()]].concat();
                names.entry(name).or_insert(path);
            }
        }
    }
    // A module and a function in it may have one name; a path with it leads to the module either way.
    names.retain(|name, _| !children.contains(name));
    names
}

/// The names that a glob import of a module may give: those that it defines, and those that it imports.
fn public_names(source: &str) -> BTreeSet<String> {
    let code = code(source);
    let imported = uses(&code).into_iter().map(|import| import.name);
    imported.chain(defined_names(&code)).collect()
}
