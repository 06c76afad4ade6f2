//! Files that were not written for lint, as arguments without a flag: folders of a repository, large exports, names that are hostile to a terminal.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use super::{BREAKER, lint_command, run};

fn run_lint(arguments: &[&str], paths: &[&Path]) -> Result<(Option<i32>, String)> {
    run(lint_command(arguments).args(paths))
}

const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: op}\n";

#[test]
fn files_of_a_folder_without_objects_are_skipped_in_one_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name);
    for (name, text) in [
        ("a.yaml", BREAKER),
        ("chart.yaml", "apiVersion: v2\nname: a\n"),
        ("package.json", "{\"name\": \"a\", \"entries\": []}"),
        ("rules.json", "[{\"a\": 1}]"),
        (
            "template.yaml",
            "{{- if .Values.a }}\n---\napiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: {{ .Values.kind }}\n{{- end }}\n",
        ),
        ("values.yaml", "replicas: 1\n"),
        ("empty.yaml", "# Nothing.\n"),
    ] {
        std::fs::write(place(name), text)?;
    }
    let (code, printed) = run_lint(&[], &[folder.path()])?;
    assert_eq!(code, Some(0), "{printed}");
    let expected = [
        format!("{}: CircuitBreaker demo/a: ok", place("a.yaml").display()),
        format!(
            "not checked: 6 files without an object of Kubernetes: {}, {}, {}, …",
            place("chart.yaml").display(),
            place("empty.yaml").display(),
            place("package.json").display()
        ),
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);

    let (_, printed) = run_lint(&["--output", "json"], &[folder.path()])?;
    let objects: Value = serde_json::from_str(&printed)?;
    assert_eq!(
        objects[1]["notChecked"][0]["message"], "the file has no object of Kubernetes",
        "{printed}"
    );

    for name in ["package.json", "template.yaml", "values.yaml", "empty.yaml"] {
        let (code, printed) = run_lint(&[], &[&place(name)])?;
        assert_eq!(code, Some(1), "{name} was named itself: {printed}");
    }
    Ok(())
}

#[test]
fn files_of_a_folder_with_objects_are_not_skipped_for_a_mistake() -> Result<()> {
    for (text, says) in [
        (
            BREAKER.replace("selector: {}", "selector: {"),
            "cannot be read as YAML or JSON",
        ),
        (
            BREAKER.replace("apiVersion: ctrlmesh.kusionstack.io/v1alpha1\n", ""),
            "apiVersion: is missing",
        ),
        (BREAKER.replace("kind: CircuitBreaker\n", ""), "kind: is missing"),
        (format!("{DEPLOYMENT}---\na: [\n"), "cannot be read as YAML or JSON"),
        ("generation: 1\nentries: []\n".to_owned(), "apiVersion: is missing"),
    ] {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("a.yaml"), &text)?;
        let (code, printed) = run_lint(&[], &[folder.path()])?;
        assert!(code == Some(1) && printed.contains(says), "{text}: {printed}");
    }
    Ok(())
}

#[test]
fn objects_of_other_groups_are_counted_in_one_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("all.yaml");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: op}\n";
    std::fs::write(&file, format!("{DEPLOYMENT}---\n{BREAKER}---\n{service}"))?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    let expected = [
        format!("{}: CircuitBreaker demo/a: ok", file.display()),
        "not checked: 2 objects of other API groups: Deployment op, Service op".to_owned(),
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    let (_, printed) = run_lint(&["--output", "json"], &[&file])?;
    let objects: Value = serde_json::from_str(&printed)?;
    let message = "is apps/v1; only objects of ctrlmesh.kusionstack.io/v1alpha1 and chains are checked";
    assert_eq!(objects[0]["notChecked"][0]["message"], message, "{printed}");
    Ok(())
}

/// As step 1 of docs/migration.md makes it.
#[test]
fn export_of_many_objects_is_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("before.yaml");
    let item = |index: usize| {
        format!(
            "- apiVersion: ctrlmesh.kusionstack.io/v1alpha1\n  kind: CircuitBreaker\n  metadata: {{name: b{index}, namespace: demo, labels: \
             {{a: b, c: d, e: f, g: h, i: j}}}}\n  spec: {{selector: {{matchLabels: {{a: b, c: d, e: f, g: h}}}}}}\n"
        )
    };
    let items: String = (0..8_000).map(item).collect();
    std::fs::write(&file, format!("apiVersion: v1\nkind: List\nitems:\n{items}"))?;
    let (code, printed) = run_lint(&[], &[&file])?;
    let some: Vec<_> = printed.lines().take(3).collect();
    assert_eq!((code, printed.lines().count()), (Some(0), 8_000), "{some:?}");

    std::fs::write(&file, "apiVersion: v1\nkind: List\nitems: []\n")?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(printed.trim_end(), format!("{}: empty List: ok", file.display()));
    Ok(())
}

#[test]
fn text_that_only_aliases_make_large_is_refused_in_words() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bomb.yaml");
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..8 {
        let before = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [&*before; 10].join(", "));
    }
    std::fs::write(&file, &bomb)?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("aliases") && !printed.contains("{ "), "{printed}");
    // The comment makes the file larger, and its bound with it.
    std::fs::write(&file, format!("{bomb}# {}\n", "x".repeat(3 << 20)))?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert!(
        code == Some(1) && printed.contains("too large or too complex"),
        "{printed}"
    );
    Ok(())
}

#[test]
fn file_that_is_too_large_or_no_text_is_an_error_in_words() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [large, utf16] = ["large.yaml", "utf16.yaml"].map(|name| folder.path().join(name));
    std::fs::File::create(&large)?.set_len((32 << 20) + 1)?;
    let words: Vec<u8> = BREAKER.encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(&utf16, [&[0xff, 0xfe], &words[..]].concat())?;
    let (code, printed) = run_lint(&[], &[&large, &utf16])?;
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("has more than 32 MiB; split it"), "{printed}");
    assert!(printed.contains("utf16.yaml: the file is not UTF-8 text"), "{printed}");
    Ok(())
}

#[test]
fn control_characters_of_names_do_not_reach_the_terminal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("esc\u{1b}[1m.yaml");
    std::fs::write(&file, BREAKER.replace("name: a,", "name: \"\\e[31mred\\a\\n\\x9b\","))?;
    for arguments in [&[][..], &["--output", "json"], &["--fix"]] {
        let (code, printed) = run_lint(arguments, &[&file])?;
        assert_eq!(code, Some(1), "{printed}");
        let is_raw = |char: char| char.is_control() && char != '\n';
        assert!(!printed.contains(is_raw), "{printed:?}");
        let is_json = arguments.contains(&"json");
        if is_json {
            let objects: Value = serde_json::from_str(&printed)?;
            assert_eq!(
                objects[0]["object"], "CircuitBreaker demo/\u{1b}[31mred\u{7}\n\u{9b}",
                "{printed}"
            );
        } else {
            assert!(
                printed.contains("esc\\u001b[1m.yaml") && printed.contains("\\u001b[31mred\\u0007\\n\\u009b"),
                "{printed}"
            );
            assert!(
                printed.lines().all(|line| line.contains("esc\\u001b")),
                "a name makes no line: {printed}"
            );
        }
    }
    let missing = folder.path().join("no\u{1b}[1m.wasm");
    let (_, printed) = run_lint(&[], &[&missing])?;
    assert!(
        printed.ends_with("[1m.wasm: cannot read it: No such file or directory\n"),
        "{printed}"
    );
    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .args(["plugin", "inspect"])
        .arg(&missing)
        .output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        printed.contains("no\\u001b[1m.wasm") && !printed.contains('\u{1b}'),
        "{printed:?}"
    );
    Ok(())
}

#[test]
fn findings_are_in_the_order_of_their_lines() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("a.yaml");
    std::fs::write(
        &file,
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {name: a, namespace: demo}\nspec:\n  selector: \
         {matchLabels: {a: b}}\n  limits:\n  - relateResources:\n    - apiGroups: ['']\n      resources: [configmap]\n    selector: \
         {matchLabels: {a: b c}}\n  unknown: 1\n",
    )?;
    let (_, printed) = run_lint(&[], &[&file])?;
    let line = |text: &str| {
        text.strip_prefix(&format!("{}:", file.display()))
            .and_then(|it| it.split(':').next()?.parse::<u32>().ok())
    };
    let lines: Vec<_> = printed.lines().filter_map(line).collect();
    assert!(lines.len() >= 3 && lines.is_sorted(), "{printed}");
    Ok(())
}
