//! `ctrlmesh lint`: positions, findings across several objects, chains, and the files that `--fix` writes.

mod files;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use ctrlmesh_contract::Digest;
use serde_json::Value;

fn run_lint(arguments: &[&str], files: &[&Path]) -> Result<(Option<i32>, String)> {
    let mut command = lint_command(arguments);
    for file in files {
        command.arg("-f").arg(file);
    }
    run(&mut command)
}

fn lint_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    command.arg("lint").args(arguments);
    command
}

/// Exit code and standard output.
fn run(command: &mut Command) -> Result<(Option<i32>, String)> {
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
    assert!(printed.contains("cannot be read as YAML or JSON"), "{printed}");
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
    let message = format!(
        "warning: metadata.name: is also the name of the CircuitBreaker in {}, line 2",
        one.display()
    );
    assert!(printed.contains(&message), "{printed}");

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
fn whole_file_of_json_chain_is_read_like_a_sidecar_reads_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("chain.json");
    let json = r#"{"apiVersion": "chain.ctrlmesh.kusionstack.io/v1", "namespace": "operators", "generation": 1, "entries": []}"#;
    for (end, expected, says) in [
        ("---\n", 0, "chain of operators: ok"),
        ("# Not JSON.\n", 1, "the chain document is not valid JSON"),
    ] {
        std::fs::write(&file, format!("{json}\n{end}"))?;
        let (code, printed) = run_lint(&[], &[&file])?;
        assert!(code == Some(expected) && printed.contains(says), "{end:?}: {printed}");
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
        String::from_utf8_lossy(&output.stderr).contains("--fix cannot write to standard input; name files or folders"),
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
        let message = format!(
            "ShardingConfig demo/{name}: warning: spec.controller: is missing, and this limits the same resources as {other}."
        );
        assert!(printed.contains(&message), "{message} is missing in {printed}");
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
    let faults_of = |metadata: &str, fault: &str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: FaultInjection\nmetadata: {{name: a, namespace: demo{metadata}}}\nspec:\n  \
             selector: {{}}\n  httpFault:\n  - match: {{resources: [{{apiGroups: [''], resources: [pods], verbs: [update]}}]}}\n    {fault}\n"
        )
    };
    let faults = |metadata: &str| faults_of(metadata, "abort: {httpStatus: 409, percent: '10'}");
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
    // KusionStack's definitions have no `do`, so this was written for ctrlmesh.
    std::fs::write(&file, faults_of("", "do: conflict"))?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.trim_end().ends_with("FaultInjection demo/a: ok"), "{printed}");
    Ok(())
}

/// YAML files of a folder of the repository, and of its subfolders.
fn shipped_files(folder: &str) -> Result<Vec<PathBuf>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let mut files = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("yaml") => files.push(path),
                _ => {}
            }
        }
    }
    Ok(files)
}

#[test]
fn shipped_objects_are_accepted_without_warnings() -> Result<()> {
    let files = [
        shipped_files("deploy/samples")?,
        shipped_files("cli/src/demo/plugin_steps")?,
    ]
    .concat();
    assert!(files.len() >= 8, "{files:?}");
    // One by one, because the demo applies two of them after another under one name.
    for file in &files {
        let (code, printed) = run_lint(&[], &[file])?;
        assert_eq!(code, Some(0), "{printed}");
        let is_ok = |line: &str| line.ends_with(": ok");
        assert!(!printed.is_empty() && printed.lines().all(is_ok), "{printed}");
    }
    Ok(())
}

#[test]
fn unchecked_parts_of_chains_and_objects_are_named() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [chain, object] = ["chain.yaml", "object.yaml"].map(|name| folder.path().join(name));
    let plugin = Digest::of(b"a plugin of somebody's own");
    std::fs::write(
        &chain,
        format!(
            "apiVersion: chain.ctrlmesh.kusionstack.io/v1\nnamespace: operators\ngeneration: 1\nentries:\n- name: mine/a\n  plugin: \
             {plugin}\n  settings: {{any: thing}}\n"
        ),
    )?;
    std::fs::write(
        &object,
        "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {name: left, namespace: demo, labels: \
         {ctrlmesh.kusionstack.io/ignore-validate: ''}}\nspec:\n  selector: {matchLabels: {shard: left}}\n  limits:\n  - relateResources: \
         [{apiGroups: [''], resources: [pods]}]\n    selector: {matchLabels: {a: left}}\n  plugins:\n  - {name: mine, image: \
         'oci://example.com/mine:1'}\n",
    )?;
    let (code, printed) = run_lint(&[], &[&chain, &object])?;
    assert_eq!(code, Some(0), "{printed}");
    let expected = [
        format!(
            "{}:7: chain of operators: not checked: entries[0].settings: plugin {plugin} is not among",
            chain.display()
        ),
        format!(
            "{}:3: ShardingConfig demo/left: not checked: metadata.labels: label ",
            object.display()
        ),
        format!(
            "{}:10: ShardingConfig demo/left: not checked: spec.plugins[0]: the image oci://example.com",
            object.display()
        ),
    ];
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{printed}");
    for (line, expected) in lines.iter().zip(&expected) {
        assert!(line.starts_with(expected), "{expected} is missing in {printed}");
    }

    let (_, printed) = run_lint(&["--output", "json"], &[&chain])?;
    let objects: Value = serde_json::from_str(&printed)?;
    assert_eq!(objects[0]["notChecked"][0]["path"], "entries[0].settings", "{printed}");
    assert_eq!(objects[0]["notChecked"][0]["line"], 7, "{printed}");
    let message = objects[0]["notChecked"][0]["message"].as_str().unwrap_or_default();
    assert!(message.contains("ctrlmesh plugin test"), "{printed}");
    assert_eq!(objects[0]["errors"].as_array().map(Vec::len), Some(0), "{printed}");
    Ok(())
}

#[test]
fn chain_of_another_version_is_an_error_that_says_what_to_write() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("chain.yaml");
    let rest = "namespace: operators\ngeneration: 1\nentries: []\n";
    for (version, says) in [
        (
            "apiVersion: chain.ctrlmesh.kusionstack.io/v2\n",
            "is \"chain.ctrlmesh.kusionstack.io/v2\", which this release does not know; write chain.ctrlmesh.kusionstack.io/v1",
        ),
        (
            "apiVersion: chain.example.com/v1\n",
            "is \"chain.example.com/v1\", which this release does not know; write chain.ctrlmesh.kusionstack.io/v1",
        ),
        ("", "is missing"),
    ] {
        std::fs::write(&file, format!("{version}{rest}"))?;
        let (code, printed) = run_lint(&[], &[&file])?;
        assert_eq!(code, Some(1), "{printed}");
        let message = format!("{}:1: chain of operators: apiVersion: {says}", file.display());
        assert!(printed.starts_with(&message), "{message} is missing in {printed}");
    }
    std::fs::write(&file, "apiVersion: example.com/v1\n")?;
    let (code, printed) = run_lint(&[], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(
        printed.trim_end(),
        "not checked: 1 object of another API group: document"
    );
    Ok(())
}

#[test]
fn folders_are_read_with_their_subfolders() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let inner = folder.path().join("b/c");
    std::fs::create_dir_all(&inner)?;
    let named = |name: &str| BREAKER.replace("name: a,", &format!("name: {name},"));
    let good = [("a.yaml", "one"), ("b/z.yml", "two"), ("b/c/x.yaml", "three")];
    for (file, name) in good {
        std::fs::write(folder.path().join(file), named(name))?;
    }
    let value: Value = serde_saphyr::from_str(&named("four"))?;
    std::fs::write(inner.join("y.json"), value.to_string())?;
    std::fs::write(inner.join("README.md"), "no object")?;
    std::fs::create_dir(folder.path().join("empty.yaml"))?;
    let other = tempfile::tempdir()?;
    let [single, empty] = ["single", "empty"].map(|name| other.path().join(name));
    std::fs::write(&single, named("five"))?;

    let mut command = Command::new(env!("CARGO_BIN_EXE_ctrlmesh"));
    command
        .arg("lint")
        .args([folder.path(), single.as_path()])
        .arg("-f")
        .arg("-");
    let mut input = tempfile::tempfile()?;
    std::io::Write::write_all(&mut input, named("six").as_bytes())?;
    std::io::Seek::rewind(&mut input)?;
    let output = command.stdin(input).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let place = |file: &str| folder.path().join(file).display().to_string();
    let expected = [
        format!("{}: CircuitBreaker demo/one: ok", place("a.yaml")),
        format!("{}: CircuitBreaker demo/three: ok", place("b/c/x.yaml")),
        format!("{}: CircuitBreaker demo/four: ok", place("b/c/y.json")),
        format!("{}: CircuitBreaker demo/two: ok", place("b/z.yml")),
        format!("{}: CircuitBreaker demo/five: ok", single.display()),
        "-: CircuitBreaker demo/six: ok".to_owned(),
    ];
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);

    std::fs::create_dir(&empty)?;
    let (code, printed) = run_lint(&[], &[&empty])?;
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("has no *.yaml, *.yml or *.json file"), "{printed}");
    assert_eq!(run_lint(&[], &[])?.0, Some(2), "something must be named");
    Ok(())
}

#[test]
fn shards_that_share_pods_or_objects_are_warned_about() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [left, right] = ["left", "right"].map(|name| (name, folder.path().join(format!("{name}.yaml"))));
    let shard = |name: &str, pods: &str, bucket: &str| {
        format!(
            "apiVersion: ctrlmesh.kusionstack.io/v1alpha1\nkind: ShardingConfig\nmetadata: {{name: {name}, namespace: demo}}\nspec:\n  \
             selector: {{matchLabels: {{shard: {pods}}}}}\n  controller: {{leaderElectionName: operator}}\n  limits:\n  - relateResources: \
             [{{apiGroups: [''], resources: [pods]}}]\n    selector: {{matchLabels: {{ctrlmesh.kusionstack.io/shard-hash: '{bucket}'}}}}\n"
        )
    };
    for (name, file) in [&left, &right] {
        std::fs::write(file, shard(name, "same", "7"))?;
    }
    let (code, printed) = run_lint(&[], &[&left.1, &right.1])?;
    assert_eq!(code, Some(0), "{printed}");
    for ((name, file), other) in [(&left, "right"), (&right, "left")] {
        for message in [
            format!(
                "{}:5: ShardingConfig demo/{name}: warning: spec.selector: selects pods that {other} selects, too",
                file.display()
            ),
            format!(
                "{}:7: ShardingConfig demo/{name}: warning: spec.limits: pods of hash bucket 7 can be in both ",
                file.display()
            ),
        ] {
            assert!(printed.contains(&message), "{message} is missing in {printed}");
        }
    }
    for (name, file) in [&left, &right] {
        std::fs::write(file, shard(name, name, if *name == "left" { "7" } else { "8" }))?;
    }
    let (_, printed) = run_lint(&[], &[&left.1, &right.1])?;
    assert!(!printed.contains("warning"), "{printed}");
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
    assert!(
        code == Some(1) && printed.contains("\"32\" is no hash bucket"),
        "{printed}"
    );

    std::fs::write(&file, shard(KEY, "1"))?;
    let (code, printed) = run_lint(&["--fix"], &[&file])?;
    assert_eq!(code, Some(0), "{printed}");
    let usual = shard("ctrlmesh.kusionstack.io/shard-hash", "1");
    assert_eq!(std::fs::read_to_string(&file)?, usual, "{printed}");
    Ok(())
}

#[test]
fn equal_label_keys_are_refused() -> Result<()> {
    let output = lint_command(&["--label-namespace=a/b", "--label-shard-hash=a/b", "a.yaml"]).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let says = "--label-namespace: \"a/b\" is the key of another label, too; write three that differ";
    assert!(errors.contains(says), "{errors}");
    Ok(())
}
