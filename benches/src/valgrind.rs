//! A sidecar in valgrind, whose callgrind counts instructions while it is told to. Its output is read by `callgrind`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::callgrind::Profile;
use crate::chain::SidecarFolder;
use crate::contestants::sidecar::Sidecar;

const PROGRAM: &str = "valgrind";
/// Sends commands to a program in valgrind; installed with it.
const CONTROL: &str = "vgdb";
/// Compiled plugins replace code that was there before, and are not loaded from files.
const CHECK_CODE: &str = "--smc-check=all-non-file";
/// Beginning of the names of callgrind's files; one for each thread.
const PROFILE: &str = "profile.";
/// valgrind runs one thread at a time, so that frequent questions whether a sidecar is ready delay it.
const POLL: Duration = Duration::from_millis(50);

/// `valgrind-3.19.0`; `None` if there is none.
pub(crate) fn installed_version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("--version").output().ok()?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

/// Starts a sidecar, and thus fills its compile cache, for valgrind's CPU: that has fewer features than the machine's, so that what is
/// compiled for one does not run on the other.
pub(crate) async fn fill_compile_cache(program: &Path, folder: &SidecarFolder) -> anyhow::Result<()> {
    let mut command = Command::new(PROGRAM);
    command.args(["--tool=none", "--trace-children=yes", "--quiet", CHECK_CODE]);
    command.arg(program);
    Sidecar::start_command(command, folder, POLL).await?;
    Ok(())
}

pub(crate) struct CountedSidecar {
    pub(crate) sidecar: Sidecar,
    /// Where callgrind writes.
    files: PathBuf,
}

impl CountedSidecar {
    /// Returns when the sidecar is ready. It does not count yet.
    pub(crate) async fn start(
        program: &Path,
        folder: &SidecarFolder,
        files: PathBuf,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&files)?;
        let mut command = Command::new(PROGRAM);
        command.args(["--tool=callgrind", "--quiet", CHECK_CODE]);
        command.args(["--separate-threads=yes", "--instr-atstart=no", "--fair-sched=yes"]);
        command.arg(format!("--callgrind-out-file={}", files.join("profile").display()));
        command.arg(pipes_flag(&files));
        command.arg(program).args(flags);
        let sidecar = Sidecar::start_command(command, folder, POLL).await?;
        Ok(Self { sidecar, files })
    }

    pub(crate) fn start_counting(&self) -> anyhow::Result<()> {
        self.send_command(&["instrumentation", "on"])
    }

    /// Forgets what was counted so far.
    pub(crate) fn reset_counts(&self) -> anyhow::Result<()> {
        self.send_command(&["zero"])
    }

    /// The instructions of the busiest thread: with one worker, the one that serves requests.
    pub(crate) fn busiest_thread(&self) -> anyhow::Result<Profile> {
        self.send_command(&["dump"])?;
        let mut busiest = Profile::default();
        for file in std::fs::read_dir(&self.files)? {
            let file = file?;
            if !file.file_name().to_string_lossy().starts_with(PROFILE) {
                continue;
            }
            // Names of source files need not be UTF-8.
            let text = std::fs::read(file.path())?;
            let profile = Profile::parse(&String::from_utf8_lossy(&text))
                .with_context(|| format!("reading {}", file.path().display()))?;
            if profile.total() > busiest.total() {
                busiest = profile;
            }
        }
        ensure!(busiest.total() > 0, "callgrind has counted nothing");
        Ok(busiest)
    }

    fn send_command(&self, words: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(CONTROL);
        command.arg(pipes_flag(&self.files));
        command.arg(format!("--pid={}", self.sidecar.process.id()));
        let output = command.args(words).output();
        let output = output.context("can't start `vgdb`, which is a part of valgrind")?;
        ensure!(
            output.status.success(),
            "`vgdb {}` failed: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

/// Where valgrind and vgdb find each other; by default pipes in /tmp, which outlive a sidecar that is killed.
fn pipes_flag(files: &Path) -> String {
    format!("--vgdb-prefix={}", files.join("vgdb").display())
}
