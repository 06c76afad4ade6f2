//! Comments and documents name Rust files that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ctrlmesh_tests::repository_root;

/// Files that a reader of the plugin guide writes.
const OF_READERS: [&str; 1] = ["tests/component.rs"];

/// Paths of Rust and Markdown files below a folder, relative to the root.
fn add_sources(root: &Path, folder: &Path, sources: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            add_sources(root, &path, sources);
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            let relative = path.strip_prefix(root).unwrap();
            sources.insert(relative.to_string_lossy().into_owned());
        }
    }
}

/// Names of Rust files between backticks.
fn named_files(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split('`').skip(1).step_by(2);
    code.filter(|code| code.ends_with(".rs") && !code.contains([' ', '*', '<', '{']))
}

#[test]
fn named_source_files_exist() {
    let root = repository_root();
    let mut sources = BTreeSet::new();
    add_sources(&root, &root, &mut sources);
    let mut found = 0;
    for source in &sources {
        // Decisions name files as they were.
        if source.starts_with("docs/adr/") {
            continue;
        }
        let text = fs::read_to_string(root.join(source)).unwrap();
        let lines = text.lines().map(str::trim_start);
        let comments = lines.filter(|line| source.ends_with(".md") || line.starts_with("//"));
        for named in comments.flat_map(named_files) {
            let name = named.trim_start_matches("../");
            let exists = sources
                .iter()
                .any(|other| other == name || other.ends_with(&format!("/{name}")));
            assert!(
                exists || OF_READERS.contains(&name),
                "{source} names {named}, which does not exist"
            );
            found += 1;
        }
    }
    assert!(found > 100, "only {found} names were found");
}
