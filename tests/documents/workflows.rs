//! .github/workflows: actions and tools are pinned, `make` is called for targets that exist, the jobs of CI run all of `.ci/run`, and
//! CONTRIBUTING.md names all workflows. What jobs get from other jobs is not compiled again. Images of a release are built on machines of
//! their architecture, with the same plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ctrlmesh_tests::repository_root;
use serde_json::Value;

/// Names and texts of all workflows.
fn workflows() -> Vec<(String, String)> {
    let files = fs::read_dir(repository_root().join(".github/workflows")).unwrap();
    files
        .map(|file| {
            let file = file.unwrap();
            let name = file.file_name().into_string().unwrap();
            (name, fs::read_to_string(file.path()).unwrap())
        })
        .collect()
}

#[test]
fn actions_are_pinned_and_make_targets_exist() {
    let makefile = read("Makefile");
    let is_target = |word: &str| makefile.lines().any(|line| line.starts_with(&format!("{word}:")));
    let (mut actions, mut targets) = (0, 0);
    for (name, text) in workflows() {
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
    assert!(actions >= 13 && targets >= 9, "{actions} actions, {targets} targets");
}

#[test]
fn tools_are_pinned_by_version() {
    let mut tools = 0;
    for (name, text) in workflows() {
        let commands = text.lines().filter_map(|line| line.split_once("cargo install "));
        for (_, arguments) in commands {
            let tool = arguments.split_whitespace().last().unwrap_or_default();
            let is_pinned = arguments.contains("--locked") && tool.contains('@');
            assert!(
                is_pinned,
                "{name}: cargo install {arguments} has no --locked or no version"
            );
            tools += 1;
        }
    }
    assert!(tools >= 4, "{tools} tools");
}

#[test]
fn contributors_find_all_workflows_in_a_table() {
    let page = read("CONTRIBUTING.md");
    let listed = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(".yml` |"));
    let mut listed: Vec<String> = listed.map(|(name, _)| format!("{name}.yml")).collect();
    let mut names: Vec<String> = workflows().into_iter().map(|(name, _)| name).collect();
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
}

/// The words after `prefix` on the first line that begins with it, up to `end`.
fn words_of_line<'a>(text: &'a str, prefix: &str, end: &str) -> Vec<&'a str> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix(prefix));
    let line = line.unwrap_or_else(|| panic!("no line begins with {prefix}"));
    let words = line.split(end).next().unwrap_or_default();
    words.split_whitespace().collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(repository_root().join(path)).unwrap()
}

/// What `.ci/run` makes for a part.
fn targets_of_part<'a>(run: &'a str, part: &str) -> Vec<&'a str> {
    words_of_line(run, &format!("{part}) targets=("), ")")
}

/// What all parts of a job make.
fn targets_of_job<'a>(workflow: &Value, run: &'a str, job: &str) -> Vec<&'a str> {
    let matrix = &workflow["jobs"][job]["strategy"]["matrix"];
    let listed = matrix["part"].as_array().into_iter().flatten();
    let included = matrix["include"].as_array().into_iter().flatten();
    let parts: Vec<&Value> = listed.chain(included.map(|entry| &entry["part"])).collect();
    assert!(!parts.is_empty(), "the job {job} has no parts");
    let parts = parts.into_iter().map(|part| part.as_str().unwrap());
    parts.flat_map(|part| targets_of_part(run, part)).collect()
}

#[test]
fn required_check_of_ci_waits_for_all_other_jobs() {
    let ci = read(".github/workflows/ci.yml");
    let workflow: Value = serde_saphyr::from_str(&ci).unwrap();
    let jobs = workflow["jobs"].as_object().unwrap();
    let mut others: Vec<&str> = jobs.keys().map(String::as_str).filter(|job| *job != "ci").collect();
    let needed = jobs["ci"]["needs"].as_array().unwrap().iter();
    let mut needed: Vec<&str> = needed.map(|needed| needed.as_str().unwrap()).collect();
    others.sort_unstable();
    needed.sort_unstable();
    assert_eq!(needed, others);
    for job in others {
        let result = format!("needs.{job}.result");
        assert!(ci.contains(&result), "{result} is not read");
    }
}

#[test]
fn jobs_of_ci_run_all_targets_of_a_full_run() {
    let (ci, run, makefile) = (read(".github/workflows/ci.yml"), read(".ci/run"), read("Makefile"));
    let workflow: Value = serde_saphyr::from_str(&ci).unwrap();
    assert_eq!(targets_of_job(&workflow, &run, "fast"), targets_of_part(&run, "fast"));
    let jobs = ["without-cluster", "e2e", "upgrade"];
    let in_parts: Vec<&str> = jobs
        .into_iter()
        .flat_map(|job| targets_of_job(&workflow, &run, job))
        .collect();

    // `test-e2e` runs all packages of tests/e2e; its parts share them out by NODE_PACKAGES and UPGRADE_TEST.
    let mut of_full = targets_of_part(&run, "full");
    assert_eq!(of_full.pop(), Some("test"));
    of_full.extend(words_of_line(&makefile, "test: ", "##"));
    assert_eq!(of_full.pop(), Some("test-e2e"));
    of_full.extend(["e2e-cluster", "e2e-node", "e2e-upgrade"]);
    assert_eq!(in_parts, of_full);
    for selection in [
        "grep -v $(foreach package,$(NODE_PACKAGES),",
        "-skip '$(UPGRADE_TEST)' $(NODE_PACKAGES:%=./%/...)",
        "-run '$(UPGRADE_TEST)' ./lifecycle",
    ] {
        assert!(makefile.contains(selection), "the Makefile has no {selection}");
    }
    // Tests of redirected traffic are skipped without root unless this is required, also those of e2e-cluster.
    assert!(run.contains("export CTRLMESH_NODE=required\n"));
    for target in ["test-e2e", "e2e-cluster"] {
        assert!(
            !makefile.contains(&format!("{target}: export CTRLMESH_NODE")),
            "{target}"
        );
    }
    assert!(ci.contains(".ci/run ${{ matrix.part }}\n") && !ci.contains("continue-on-error"));
    // Go succeeds if no test has the name.
    let name = words_of_line(&makefile, "UPGRADE_TEST := ^", "$$")[0];
    let upgrade = read("tests/e2e/lifecycle/version_upgrade_test.go");
    assert!(
        upgrade.contains(&format!("func {name}(")),
        "{name} is no test of lifecycle"
    );
}

/// The targets that make makes before this one, without `PREBUILT`.
fn prerequisites<'a>(makefile: &'a str, target: &str) -> Vec<&'a str> {
    let prefix = format!("{target}: ");
    let mut rules = makefile.lines().filter_map(|line| line.strip_prefix(&prefix));
    let rule = rules.find(|rule| !rule.starts_with("export ")).unwrap();
    let words = rule.split("##").next().unwrap_or_default();
    words.split_whitespace().collect()
}

#[test]
fn jobs_with_a_cluster_need_jobs_that_build_what_they_run() {
    let (ci, run, makefile) = (read(".github/workflows/ci.yml"), read(".ci/run"), read("Makefile"));
    let workflow: Value = serde_saphyr::from_str(&ci).unwrap();
    for job in ["e2e", "upgrade"] {
        assert_eq!(workflow["jobs"][job]["env"]["PREBUILT"], 1, "{job}");
        let needed = workflow["jobs"][job]["needs"].as_array().unwrap().iter();
        let needed = needed.map(|needed| needed.as_str().unwrap());
        let built: Vec<&str> = needed
            .flat_map(|needed| targets_of_job(&workflow, &run, needed))
            .collect();
        for target in targets_of_job(&workflow, &run, job) {
            let prerequisites = prerequisites(&makefile, target);
            assert!(prerequisites.contains(&"build"), "{target} needs {prerequisites:?}");
            // `cluster` builds what `cluster-without-node` does, and more.
            let mut prerequisites = prerequisites.iter().map(|name| name.trim_end_matches("-without-node"));
            assert!(
                prerequisites.all(|name| built.contains(&name)),
                "{job} makes {target}, and jobs that it needs make {built:?}"
            );
        }
    }
    assert!(ci.contains("sudo --preserve-env=PATH,HOME,PREBUILT .ci/run "));

    // Folders are below CTRLMESH_CACHE, as the Makefile and binaries.go say.
    let entries = ["build", "earlier"].map(|job| &workflow["jobs"][job]["strategy"]["matrix"]["include"]);
    let entries = entries.into_iter().flat_map(|entries| entries.as_array().unwrap());
    let files = entries.flat_map(|entry| entry["files"].as_str().unwrap().split_whitespace());
    let programs = words_of_line(&makefile, "E2E_PROGRAMS := ", "#").into_iter();
    let programs = programs.map(|name| format!("target/debug/{name}"));
    let folders = ["plugins", "e2e", "earlier"].map(str::to_owned);
    assert_eq!(files.collect::<Vec<_>>(), programs.chain(folders).collect::<Vec<_>>());
}

/// Runs `make` with `PREBUILT` in a cache that should have all that its targets make.
fn make_prebuilt(cache: &Path, arguments: &[&str]) -> Output {
    Command::new("make")
        .args(["--no-print-directory", "PREBUILT=1"])
        .args(arguments)
        .current_dir(repository_root())
        .env("CTRLMESH_CACHE", cache)
        .env("CARGO_TARGET_DIR", cache.join("target"))
        // No such toolchain exists, so cargo and rustup would fail.
        .env("RUSTUP_TOOLCHAIN", "none")
        // make may run this test.
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap()
}

/// Asserts that `make` compiles nothing in a cache with these files, and fails if one is missing.
fn assert_targets_require(targets: &[&str], cache: &Path, files: &[PathBuf]) {
    for file in files {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    let output = make_prebuilt(cache, targets);
    assert!(output.status.success(), "{output:?}");
    for file in files {
        fs::remove_file(file).unwrap();
        let output = make_prebuilt(cache, targets);
        let errors = String::from_utf8(output.stderr).unwrap();
        let expected = format!("there is no {};", file.display());
        assert!(!output.status.success() && errors.contains(&expected), "{errors}");
        fs::write(file, "").unwrap();
    }
}

#[test]
fn make_requires_prebuilt_files_and_compiles_nothing() {
    let makefile = read("Makefile");
    let cache = tempfile::tempdir().unwrap();
    let programs = words_of_line(&makefile, "E2E_PROGRAMS := ", "#").into_iter();
    let programs = programs.map(|name| cache.path().join("target/debug").join(name));
    let plugins = words_of_line(&makefile, "RELEASE_PLUGINS := ", "#").into_iter();
    let plugins = plugins.map(|name| cache.path().join("plugins").join(format!("{name}.wasm")));
    let files: Vec<PathBuf> = programs.chain(plugins).collect();
    assert_targets_require(&["build", "plugins"], cache.path(), &files);
}

#[test]
fn release_requires_prebuilt_archives_of_all_architectures() {
    let makefile = read("Makefile");
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("images");
    let version = env!("CARGO_PKG_VERSION");
    let mut files = Vec::new();
    for arch in words_of_line(&makefile, "RELEASE_ARCHS ?= ", "#") {
        for image in words_of_line(&makefile, "RELEASE_IMAGES := ", "#") {
            files.push(folder.join(format!("{image}-{version}-linux-{arch}.tar")));
        }
    }
    assert_eq!(files.len(), 4);
    assert_targets_require(&["release-images"], cache.path(), &files);
    let (_, release) = makefile.split_once("\nrelease: ").unwrap();
    let (release, _) = release.split_once("\n\n").unwrap();
    assert!(release.contains("\t$(MAKE) release-images\n\tcp $(RELEASE_ARCHIVES) $(RELEASE_DIR)/\n"));
}

#[test]
fn images_are_built_and_checked_with_plugins_of_cache() {
    let makefile = read("Makefile");
    let cache = tempfile::tempdir().unwrap();
    let output = make_prebuilt(cache.path(), &["--dry-run", "images"]);
    assert!(output.status.success(), "{output:?}");
    let commands = String::from_utf8(output.stdout).unwrap();
    let plugins = cache.path().join("plugins");
    let build = format!("CTRLMESH_PREBUILT_PLUGINS={} cargo $build ", plugins.display());
    assert!(commands.contains(&build), "{commands}");
    let (_, precompile) = commands.split_once(" precompile --out ").unwrap();
    let (precompile, check) = precompile.split_once("./cmd/images ").unwrap();
    for name in words_of_line(&makefile, "RELEASE_PLUGINS := ", "#") {
        let file = plugins.join(format!("{name}.wasm")).display().to_string();
        assert!(precompile.contains(&file) && check.contains(&file), "{commands}");
    }
}

#[test]
fn images_of_release_are_built_on_machines_of_their_architecture() {
    let (release, makefile) = (read(".github/workflows/release.yml"), read("Makefile"));
    let workflow: Value = serde_saphyr::from_str(&release).unwrap();
    let jobs = &workflow["jobs"];
    let machines = jobs["images"]["strategy"]["matrix"]["include"].as_array().unwrap();
    let archs: Vec<&str> = machines
        .iter()
        .map(|machine| machine["arch"].as_str().unwrap())
        .collect();
    assert_eq!(archs, words_of_line(&makefile, "RELEASE_ARCHS ?= ", "#"));
    for (machine, arch) in machines.iter().zip(archs) {
        let suffix = if arch == "amd64" { "" } else { "-arm" };
        assert_eq!(machine["runner"], format!("ubuntu-24.04{suffix}"), "{arch}");
    }
    assert_eq!(jobs["images"]["runs-on"], "${{ matrix.runner }}");
    // All images contain the plugins of one machine, and the release the same plugins.
    assert_eq!(jobs["images"]["needs"], serde_json::json!(["plugins"]));
    assert_eq!(jobs["build"]["needs"], serde_json::json!(["plugins", "images"]));
    for (job, command) in [
        ("plugins", "make plugins"),
        ("images", "make images PREBUILT=1 IMAGE_ARCH=${{ matrix.arch }}"),
        ("build", "make release PREBUILT=1 RELEASE_DIR="),
    ] {
        let steps = jobs[job]["steps"].as_array().unwrap().iter();
        let mut commands = steps.filter_map(|step| step["run"].as_str());
        assert!(commands.any(|run| run.starts_with(command)), "{job}: no {command}");
    }
    // A run by hand has no tag.
    assert_eq!(jobs["build"]["if"], "github.event_name == 'push'");
    assert_eq!(jobs["publish"]["needs"], "build");
}
