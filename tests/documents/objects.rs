//! The objects in docs, plugin READMEs and the README are valid for the manager.

use std::fs;
use std::path::PathBuf;

use ctrlmesh_tests::repository_root;
use serde_json::Value;

/// The contents of all YAML blocks in a document.
fn yaml_blocks(text: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut is_in = false;
    for line in text.lines() {
        match line.trim_start() {
            "```yaml" => {
                blocks.push(String::new());
                is_in = true;
            }
            fence if fence.starts_with("```") => is_in = false,
            _ if is_in => {
                let block = blocks.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

fn document_paths() -> Vec<PathBuf> {
    let root = repository_root();
    let mut found = vec![root.join("README.md")];
    let files = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    found.extend(files(root.join("docs")).filter(|file| file.extension().is_some_and(|it| it == "md")));
    let readmes = files(root.join("plugins")).map(|plugin| plugin.join("README.md"));
    found.extend(readmes.filter(|file| file.is_file()));
    found
}

#[test]
fn objects_in_documents_are_valid() {
    let mut kinds = Vec::new();
    for file in document_paths() {
        for block in yaml_blocks(&fs::read_to_string(&file).unwrap()) {
            // Parts of objects, and chains, are checked by other tests.
            if !block.contains("apiVersion: ctrlmesh") {
                continue;
            }
            let objects: Vec<Value> = serde_saphyr::from_multiple(&block).unwrap();
            for object in objects.iter().filter(|object| object["kind"].is_string()) {
                let findings = ctrlmesh_manager::validate(object);
                let mistakes = findings.mistakes;
                assert!(mistakes.list().is_empty(), "{}: {mistakes}\n{block}", file.display());
                kinds.push(object["kind"].as_str().unwrap().to_owned());
            }
        }
    }
    for kind in ["ShardingConfig", "CircuitBreaker", "FaultInjection"] {
        assert!(kinds.iter().any(|known| known == kind), "no {kind} is shown: {kinds:?}");
    }
}
