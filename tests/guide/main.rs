//! Follows docs/plugin-guide.md literally: `ctrlmesh plugin new`, the tests of the new crate, the component, the production engine, a
//! chain directory, a real sidecar. Offline: cargo uses what this workspace has fetched.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod component;
mod document;

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ctrlmesh_tests::{Client, Sidecar, binary_path, repository_root, wait_until};
use http::Method;

use crate::document::{Guide, normalize_code};

/// A reader at a shell in an empty folder beside a checkout, with the commands on the path.
struct Reader {
    home: tempfile::TempDir,
    folder: PathBuf,
}

impl Reader {
    fn new() -> Result<Self> {
        let home = tempfile::tempdir()?;
        symlink(repository_root().canonicalize()?, home.path().join("ctrlmesh"))?;
        Ok(Self {
            folder: home.path().to_owned(),
            home,
        })
    }

    fn shell_command(&self, command: &str) -> Result<Command> {
        let mut path = OsString::from(binary_path("ctrlmesh")?.parent().context("a folder")?);
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell
            .args(["-euc", command])
            .current_dir(&self.folder)
            .env("PATH", path);
        // The toolchain keeps its own home directories; only `~` in the guide's commands is moved.
        for (variable, folder) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
            let usual = std::env::home_dir().unwrap_or_default().join(folder);
            shell.env(variable, std::env::var_os(variable).unwrap_or_else(|| usual.into()));
        }
        shell.env("HOME", self.home.path()).env("CARGO_NET_OFFLINE", "true");
        shell.env_remove("CARGO_TARGET_DIR");
        Ok(shell)
    }

    /// Runs a command and returns its output.
    fn run_command(&self, command: &str) -> Result<String> {
        let output = self.shell_command(command)?.output()?;
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(output.status.success(), "{command}\n{stdout}\n{stderr}");
        Ok(stdout.into_owned())
    }

    /// Step 1. The build output is kept between runs.
    fn make_package(&mut self, guide: &Guide) -> Result<Vec<String>> {
        let command = &guide.blocks(1, "console")[0].commands()[0];
        let next = self.run_command(command)?;
        self.folder.push("my-plugin");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guide");
        std::fs::create_dir_all(&target)?;
        symlink(target, self.folder.join("target"))?;
        let proposed = next.lines().filter_map(|line| line.strip_prefix("  "));
        Ok(proposed.map(str::to_owned).collect())
    }
}

/// Steps 2, 3 and 5: each piece of code in the guide is part of the reader's files.
fn check_code_against_guide(person: &Reader, guide: &Guide) -> Result<()> {
    let source = normalize_code(&std::fs::read_to_string(person.folder.join("src/lib.rs"))?);
    let harness = normalize_code(include_str!("component.rs"))
        .replace("pub(crate)", "")
        .replace("folder:&Path", "")
        .replace("read(folder.join(", "read(")
        .replace(".wasm\"))", ".wasm\")");
    for (step, whole) in [(2, &source), (3, &source), (5, &harness)] {
        let blocks = guide.blocks(step, "rust");
        ensure!(!blocks.is_empty(), "step {step} shows no code");
        for block in blocks {
            assert!(
                whole.contains(&normalize_code(&block.text)),
                "step {step} differs:\n{}",
                block.text
            );
        }
    }
    Ok(())
}

/// Step 5: the cases file, and the output of the command.
fn check_cases(person: &Reader, guide: &Guide) -> Result<()> {
    let cases = std::fs::read_to_string(person.folder.join("tests/component.yaml"))?;
    assert_eq!(cases, guide.blocks(5, "yaml")[0].text);
    let block = guide.blocks(5, "console")[0];
    let printed = person.run_command(&block.commands()[0])?;
    let shown: Vec<&str> = block.text.lines().filter(|line| !line.starts_with("$ ")).collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), shown);
    Ok(())
}

/// Step 6: the reader's chain is enforced.
async fn check_chain_is_enforced(person: &Reader, guide: &Guide) -> Result<()> {
    let blocks = guide.blocks(6, "console");
    let _api = Running(
        person
            .shell_command(&format!("exec {}", blocks[0].commands()[0]))?
            .spawn()?,
    );
    wait_until("the kubeconfig is written", || async {
        Ok(std::fs::read_to_string(person.folder.join("kubeconfig")).is_ok_and(|text| text.contains("server:")))
    })
    .await?;
    let mut commands = blocks[1].commands();
    let start = commands.pop().context("the sidecar's start")?;
    person.run_command(&commands.join("\n"))?;
    let sidecar = Sidecar::from_command(person.shell_command(&format!("exec env {start}"))?.into()).await?;
    sidecar.wait_ready().await?;

    let write = Client::http1(sidecar.api_address());
    let answer = write
        .send(Method::DELETE, "/api/v1/namespaces/prod-eu/pods/web", "")
        .await?;
    let shown = blocks[2].text.lines().find(|line| line.starts_with("namespace "));
    assert_eq!((answer.status, answer.json()["message"].as_str()), (403, shown));
    assert_eq!(
        write.get("/api/v1/namespaces/prod-eu/pods").await?.status,
        200,
        "a read passes"
    );
    assert_eq!(sidecar.status().await?.chain.entries[0].name, "read-only");
    let series = r#"ctrlmesh_plugin_refused_total{entry="read-only",label="prod-eu"}"#;
    assert_eq!(sidecar.metric_value(series).await?, 1.0);
    let asked = &blocks[2].commands()[2];
    let (_, pattern) = asked.split_once("grep ").context("the metric")?;
    assert!(series.contains(pattern), "{asked}");

    for (generation, block) in (2..).zip(guide.blocks(7, "console")) {
        let mut commands = block.commands();
        assert_eq!(commands.pop().as_deref(), Some("ctrlmesh status"));
        person.run_command(&commands.join("\n"))?;
        sidecar.wait_generation(generation).await?;
    }
    let answer = write
        .send(Method::DELETE, "/api/v1/namespaces/dev/pods/web", "")
        .await?;
    assert_eq!(answer.status, 403, "the new settings hold");
    assert_eq!(sidecar.status().await?.chain.generation, 3);
    Ok(())
}

/// Kills the command when the test ends.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn guide_leads_from_an_empty_folder_to_a_plugin_in_force() -> Result<()> {
    let guide = Guide::read()?;
    let mut person = Reader::new()?;
    let proposed = person.make_package(&guide)?;
    check_code_against_guide(&person, &guide)?;
    let [enter, test, build, inspect, cases] = &proposed[..] else {
        panic!("the command proposes {proposed:?}");
    };
    assert_eq!((&**enter, &**test), ("cd my-plugin", "cargo test"));
    let tested = person.run_command(test)?;
    assert!(tested.contains("write_is_refused_and_counted ... ok"), "{tested}");
    let commands = guide.blocks(4, "console")[0].commands();
    assert_eq!((build, inspect), (&commands[0], &commands[2]));
    assert_eq!(cases, &guide.blocks(5, "console")[0].commands()[0]);
    let output = person.run_command(&commands.join("\n"))?;
    assert!(output.contains("takes it: ctrlmesh:plugin 0.2"), "{output}");

    check_cases(&person, &guide)?;
    component::component_refuses_a_write(&person.folder);
    check_chain_is_enforced(&person, &guide).await
}
