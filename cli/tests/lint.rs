//! `ctrlmesh lint`: positions, findings across several objects, chains, and the files that `--fix` writes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use ctrlmesh_contract::Digest;
use serde_json::Value;

/// Exit code and standard output.
fn run_lint(arguments: &[&str], files: &[&Path]) -> Result<(Option<i32>, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    command.arg("lint").args(arguments);
    for file in files {
        command.arg("-f").arg(file);
    }
    let output = command.output()?;
    Ok((
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned(),
    ))
}

fn list_fixtures(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../manager/planner/tests/fixtures")
        .join(folder);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    files.sort();
    Ok(files)
}

const BREAKER: &str = "\
# A comment.
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: a, namespace: demo}
spec:
  selector: {}
  rateLimitings:
  - name: slow
    triggerPolicy: LimiterOnly
    bucket: {limit: 1, interval: 1s, burst: 1}
    resourceRules:
    - {apiGroups: ['*'], resources: ['*'], verbs: ['*'], namespaces: ['*']}
";

#[test]
fn all_mistakes_are_reported_with_line_and_suggestion() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("all.yaml");
    let wrong = BREAKER
        .replace("LimiterOnly", "LimiterOnli")
        .replace(
            "  selector: {}\n",
            "  selector: {matchLabels: {a: b c}}\n  trafficRules: []\n",
        )
        .replace("CircuitBreaker", "CircuitBraker");
    let rules = BREAKER
        .replace("1s", "x")
        .replace("  selector: {}\n", "  selector: {}\n  selecters: {}\n");
    std::fs::write(
        &file,
        format!(
            "{wrong}---\n{}---\na: [\n---\n{rules}",
            wrong.replace("Braker", "Breaker")
        ),
    )?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(1));
    let file = file.display();
    for line in [
        format!("{file}:3: CircuitBraker demo/a: kind: \"CircuitBraker\" is no kind of"),
        format!("{file}:20: CircuitBreaker demo/a: spec.selector.matchLabels: \"b c\" is not a label value"),
        format!("{file}:21: CircuitBreaker demo/a: spec.trafficRules: is not a field here; known are"),
        format!(
            "{file}:24: CircuitBreaker demo/a: spec.rateLimitings[0].triggerPolicy: is \"LimiterOnli\"; write Normal"
        ),
        format!("{file}:37: CircuitBreaker demo/a: spec.selecters: is not a field here"),
        format!("{file}:41: CircuitBreaker demo/a: spec.rateLimitings[0].bucket.interval: \"x\" is no duration"),
    ] {
        assert!(
            printed.lines().any(|it| it.starts_with(&line)),
            "{line} is missing in {printed}"
        );
    }
    for meant in [
        "did you mean CircuitBreaker?",
        "did you mean LimiterOnly?",
        "did you mean selector?",
    ] {
        assert!(printed.contains(meant), "{meant} is missing in {printed}");
    }
    assert!(printed.contains("is neither YAML nor JSON"), "{printed}");
    Ok(())
}

#[test]
fn duplicate_name_is_error_in_one_file_and_warning_across_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [one, two] = ["one.yaml", "two.yaml"].map(|name| folder.path().join(name));
    std::fs::write(&one, BREAKER)?;
    std::fs::write(&two, BREAKER.replace("name: a,", "name: b,"))?;
    assert_eq!(run_lint(&[], &[&one, &two])?.0, Some(0), "they have other names");
    let (code, printed) = run_lint(&[], &[&one, &one])?;
    assert_eq!(code, Some(0), "a file may be named twice: {printed}");

    std::fs::write(&two, BREAKER)?;
    let (code, printed) = run_lint(&[], &[&one, &two])?;
    assert_eq!(code, Some(0), "{printed}");
    let told = format!(
        "warning: metadata.name: is also the name of the CircuitBreaker in {}, line 2",
        one.display()
    );
    assert!(printed.contains(&told), "{printed}");

    std::fs::write(
        &two,
        format!(
            "{BREAKER}---\n{BREAKER}---\n{}",
            BREAKER.replace("namespace: demo", "namespace: other")
        ),
    )?;
    let (code, printed) = run_lint(&["--output", "json"], &[&two])?;
    assert_eq!(code, Some(1));
    let objects: Value = serde_json::from_str(&printed)?;
    let errors: Vec<_> = (0..3)
        .map(|at| objects[at]["errors"].as_array().map_or(9, Vec::len))
        .collect();
    assert_eq!(errors, [0, 1, 0], "{printed}");
    assert_eq!(objects[1]["errors"][0]["line"], 17, "{printed}");
    Ok(())
}

#[test]
fn chains_are_read_like_a_sidecar_reads_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("chain.yaml");
    let shipped = ctrlmesh_plugins_builtin::builtin().iter();
    let selector = shipped
        .clone()
        .find(|plugin| plugin.name == "shard-selector")
        .context("it is shipped")?;
    let chain = |timeout: &str, settings: &str| {
        format!(
            "apiVersion: chain.ctrlmesh.kusionstack.io/v1\nnamespace: operators\ngeneration: 1\nentries:\n- name: shard-selector/a\n  \
             plugin: {}\n  timeoutMs: {timeout}\n  settings: {settings}\n",
            Digest::of(selector.bytes)
        )
    };
    let good = "{limits: [{selector: {matchLabels: {a: b}}}]}";
    std::fs::write(&file, chain("10", good))?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.trim_end().ends_with("chain of operators: ok"), "{printed}");
    for (text, says) in [
        (
            chain("0", good),
            "chain.yaml:7: chain of operators: entries[0].timeoutMs: ",
        ),
        (
            chain("10", "{limits: [{selector: {matchLabels: {a b: c}}}]}"),
            "chain.yaml:8: chain of operators: entries[0].settings.limits[0].selector.matchLabels: ",
        ),
        (
            format!("{}---\n{}", chain("10", good), chain("10", good)),
            "is one of several documents",
        ),
        (chain("10", "{a: &b 1, c: *b}"), "the chain document is not valid YAML"),
    ] {
        std::fs::write(&file, text)?;
        let (code, printed) = run_lint(&[], &[&file])?;
        assert!(code == Some(1) && printed.contains(says), "{says}: {printed}");
    }
    Ok(())
}

#[test]
fn fix_repairs_every_refused_kusionstack_sample() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for sample in [list_fixtures("refused")?, list_fixtures("refused-by-rules")?].concat() {
        let file = folder.path().join(sample.file_name().context("a name")?);
        std::fs::copy(&sample, &file)?;
        assert_eq!(run_lint(&[], &[&file])?.0, Some(1), "{}", file.display());
        let (code, printed) = run_lint(&["--fix"], &[&file])?;
        assert_eq!(code, Some(0), "{printed}");
        assert!(printed.contains(": fixed: spec."), "{printed}");
        let fixed = std::fs::read_to_string(&file)?;
        let before = std::fs::read_to_string(&sample)?;
        let comments = |text: &str| text.lines().filter(|line| line.contains('#')).count();
        assert_eq!(comments(&fixed), comments(&before), "{fixed}");
        let (code, printed) = run_lint(&["--fix"], &[&file])?;
        assert_eq!(code, Some(0));
        assert!(!printed.contains("fixed"), "{printed}");
        assert_eq!(std::fs::read_to_string(&file)?, fixed, "a second time changes nothing");
    }
    Ok(())
}

#[test]
fn fix_leaves_decisions_to_a_person_and_reports_changes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("all.yaml");
    let wrong = BREAKER
        .replace("rateLimitings", "rateLimiting")
        .replace("triggerPolicy: LimiterOnly", "triggerPolicy: Limiter");
    std::fs::write(&file, &wrong)?;
    let (code, printed) = run_lint(&["--fix", "--output", "json"], &[&file])?;
    assert_eq!(code, Some(1), "{printed}");
    let report: Value = serde_json::from_str(&printed)?;
    assert_eq!(
        report["fixed"][0]["change"], "spec.rateLimiting: renamed to rateLimitings",
        "{printed}"
    );
    assert_eq!(report["fixed"][0]["isMade"], true);
    assert_eq!(
        report["objects"][0]["errors"][0]["path"], "spec.rateLimitings[0].triggerPolicy",
        "{printed}"
    );
    assert_eq!(
        std::fs::read_to_string(&file)?,
        wrong.replace("rateLimiting:", "rateLimitings:")
    );

    std::fs::write(&file, BREAKER)?;
    let modified = std::fs::metadata(&file)?.modified()?;
    assert_eq!(run_lint(&["--fix"], &[&file])?.0, Some(0));
    assert_eq!(
        std::fs::metadata(&file)?.modified()?,
        modified,
        "a good file is not written"
    );

    let output = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .args(["lint", "--fix", "-f", "-"])
        .output()?;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--fix cannot write to standard input"),
        "{output:?}"
    );
    Ok(())
}

#[test]
fn missing_lock_is_warned_about_across_files() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [left, right] = ["left", "right"].map(|name| (name, folder.path().join(format!("{name}.yaml"))));
    let shard = |name: &str, lock: &str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {{name: {name}, namespace: demo}}\nspec:\n  \
             selector: {{matchLabels: {{shard: {name}}}}}\n{lock}  limits:\n  - relateResources: [{{apiGroups: [''], resources: [pods]}}]\n    \
             selector: {{matchLabels: {{a: {name}}}}}\n"
        )
    };
    for (name, file) in [&left, &right] {
        std::fs::write(file, shard(name, ""))?;
    }
    let (code, printed) = run_lint(&[], &[&left.1, &right.1])?;
    assert_eq!(code, Some(0), "{printed}");
    for (name, other) in [("left", "right"), ("right", "left")] {
        let told = format!(
            "ShardingConfig demo/{name}: warning: spec.controller: is missing, and this limits the same resources as {other}."
        );
        assert!(printed.contains(&told), "{told} is missing in {printed}");
    }
    let (_, printed) = run_lint(&[], &[&left.1])?;
    assert!(printed.trim_end().ends_with("left: ok"), "{printed}");
    for (name, file) in [&left, &right] {
        std::fs::write(file, shard(name, "  controller: {leaderElectionName: operator}\n"))?;
    }
    let (_, printed) = run_lint(&[], &[&left.1, &right.1])?;
    assert!(!printed.contains("warning"), "{printed}");
    Ok(())
}

#[test]
fn faults_are_warned_about_until_confirmed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("faults.yaml");
    let faults = |metadata: &str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: FaultInjection\nmetadata: {{name: a, namespace: demo{metadata}}}\nspec:\n  \
             selector: {{}}\n  httpFault:\n  - match: {{resources: [{{apiGroups: [''], resources: [pods], verbs: [list]}}]}}\n    do: \
             conflict\n"
        )
    };
    std::fs::write(&file, faults(""))?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    assert!(
        printed.contains("faults.yaml:6: FaultInjection demo/a: warning: spec.httpFault: acts in every pod"),
        "{printed}"
    );
    std::fs::write(
        &file,
        faults(", annotations: {ctrlmesh.kusionstack.io/activate: 'true'}"),
    )?;
    let (_, printed) = run_lint(&[], &[&file])?;
    assert!(!printed.contains("acts in every pod"), "{printed}");
    Ok(())
}

/// `--label-shard-hash` of a manager may be what is a mistake for others.
#[test]
fn keys_of_the_managers_labels_are_those_that_flags_or_the_environment_say() -> Result<()> {
    const KEY: &str = "ctrlmesh.kusionstack.io/sharding-hash";
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shard.yaml");
    let shard = |key: &str, bucket: &str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {{name: left, namespace: demo}}\nspec:\n  \
             selector: {{matchLabels: {{shard: left}}}}\n  limits:\n  - relateResources: [{{apiGroups: [''], resources: [pods, services]}}]\n    \
             selector: {{matchLabels: {{{key}: '{bucket}'}}}}\n"
        )
    };
    std::fs::write(&file, shard(KEY, "1"))?;
    let flag = format!("--label-shard-hash={KEY}");
    let (code, printed) = run_lint(&["--fix", &flag], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    assert!(
        printed.trim_end().ends_with("ShardingConfig demo/left: ok"),
        "{printed}"
    );
    assert_eq!(std::fs::read_to_string(&file)?, shard(KEY, "1"), "the key is right");
    let from_environment = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"))
        .args(["lint", "-f"])
        .arg(&file)
        .env("CTRLMESH_LABEL_SHARD_HASH", KEY)
        .output()?;
    assert!(from_environment.status.success(), "{from_environment:?}");

    std::fs::write(&file, shard(KEY, "32"))?;
    let (code, printed) = run_lint(&[&flag], &[&file])?;
    assert!(code == Some(1) && printed.contains("\"32\" is no bucket"), "{printed}");

    std::fs::write(&file, shard(KEY, "1"))?;
    let (code, printed) = run_lint(&["--fix"], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    let usual = shard("ctrlmesh.kusionstack.io/shard-hash", "1");
    assert_eq!(std::fs::read_to_string(&file)?, usual, "{printed}");
    Ok(())
}
