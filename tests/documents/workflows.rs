//! .github/workflows: actions are pinned, and `make` is called for targets that exist.

use std::fs;

use ctrlmesh_tests::repository_root;
use serde_json::Value;

#[test]
fn actions_are_pinned_and_make_targets_exist() {
    let makefile = fs::read_to_string(repository_root().join("Makefile")).unwrap();
    let is_target = |word: &str| makefile.lines().any(|line| line.starts_with(&format!("{word}:")));
    let (mut actions, mut targets) = (0, 0);
    for name in ["ci.yml", "release.yml"] {
        let text = fs::read_to_string(repository_root().join(".github/workflows").join(name)).unwrap();
        let workflow: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(
            workflow["permissions"],
            serde_json::json!({ "contents": "read" }),
            "{name}"
        );
        for line in text
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("- ").strip_prefix("uses: "))
        {
            let (action, version) = line
                .split_once(" # v")
                .unwrap_or_else(|| panic!("{name}: {line} names no version"));
            let commit = action.split_once('@').map_or("", |(_, commit)| commit);
            let is_commit = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(
                is_commit && !version.is_empty(),
                "{name}: {line} is not pinned by commit"
            );
            actions += 1;
        }
        let code: Vec<&str> = text.lines().filter(|line| !line.trim().starts_with('#')).collect();
        for called in code.join("\n").split("make ").skip(1) {
            let line = called.lines().next().unwrap_or_default();
            let words = line.split(['"', ')']).next().unwrap_or_default().split_whitespace();
            for word in words
                .take_while(|word| !word.contains('=') && *word != ">")
                .filter(|word| *word != "-s")
            {
                assert!(is_target(word), "{name}: the Makefile has no target {word}");
                targets += 1;
            }
        }
    }
    assert!(actions >= 8 && targets >= 5, "{actions} actions, {targets} targets");
}
