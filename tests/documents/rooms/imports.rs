//! Finds what the modules of a folder import, from the text of their sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::reexports::Reexports;
use super::source::{child_modules, code, defined_names, paths};

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

/// The names that a file defines itself, apart from its modules.
pub(super) fn own_definitions(source: &str) -> BTreeSet<String> {
    let code = code(source);
    let modules = child_modules(&code);
    let names = defined_names(&code).into_iter();
    names.filter(|name| !modules.contains(name)).collect()
}

impl Folder {
    pub(super) fn imports(&self) -> Imports {
        let mut found = self.imported_names();
        let modules: BTreeSet<String> = found.keys().cloned().collect();
        for (module, names) in &mut found {
            names.retain(|name| name != module && modules.contains(name));
        }
        found
    }

    /// Definitions in the file above that modules import, by module.
    pub(super) fn imports_from_above(&self) -> Imports {
        let above = self.read(&self.base).unwrap_or_default();
        let own = own_definitions(&above);
        let mut found = self.imported_names();
        for names in found.values_mut() {
            names.retain(|name| own.contains(name));
        }
        // Beside a library, `main` is above its root.
        found.retain(|module, names| module != "main" && !names.is_empty());
        found
    }

    /// The first names of the paths below this folder that its modules import: modules, or what the file above defines.
    fn imported_names(&self) -> Imports {
        let mut found = Imports::new();
        let reexports = Reexports::above(&self.base, &self.library, |module| self.read(module));
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
            if is_module && !self.is_root(&module) {
                self.collect(&path, &reexports, found.entry(module).or_default());
            }
        }
        found
    }

    fn is_root(&self, module: &str) -> bool {
        // Beside a library, `main` is a room above it.
        ROOTS.contains(&module) || module == "main" && !self.sources.join("lib.rs").exists()
    }

    fn collect(&self, path: &Path, reexports: &Reexports, names: &mut BTreeSet<String>) {
        if !self.with_tests && path.file_stem().is_some_and(|stem| stem == "tests") {
            return;
        }
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                self.collect(&entry.unwrap().path(), reexports, names);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = path.strip_prefix(&self.sources).unwrap().with_extension("");
            let module = relative.iter().map(|name| name.to_str().unwrap().to_owned());
            let source = fs::read_to_string(path).unwrap();
            names.extend(self.imported_modules(&source, &module.collect::<Vec<_>>(), reexports));
        }
    }

    /// The source of a module, by its path from the crate's top.
    fn read(&self, module: &[String]) -> Option<String> {
        let read = |path: PathBuf| fs::read_to_string(path.with_extension("rs")).ok();
        if module.is_empty() {
            return read(self.sources.join("lib")).or_else(|| read(self.sources.join("main")));
        }
        read(module.iter().fold(self.sources.clone(), |path, name| path.join(name)))
    }

    /// The modules of this folder that the source of a module names in paths, directly or through files above them.
    pub(super) fn imported_modules(&self, source: &str, module: &[String], reexports: &Reexports) -> BTreeSet<String> {
        let mut code = code(source);
        if !self.with_tests
            && let Some(at) = code.find("#[cfg(test)]\nmod tests {")
        {
            code.truncate(at);
        }
        let paths = paths(&code, module, &self.library).into_iter();
        let paths: Vec<_> = paths.map(|path| reexports.follow(path)).collect();
        let below = paths.iter().filter_map(|path| path.strip_prefix(&self.base[..]));
        below.filter_map(|path| path.first().cloned()).collect()
    }
}
