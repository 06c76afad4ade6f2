//! A child process of the demo: started, watched, and ended with it. Its standard error goes to a file, whose end is shown when the
//! process ends too early.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::error::Error;

/// Time between closing standard input and killing the process.
const GRACE: Duration = Duration::from_secs(1);

/// Bytes of the log that are shown.
const LOG_TAIL: usize = 2_000;

/// A running child process. Dropping this ends the process; a task of the tracker waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    ended: watch::Receiver<Option<String>>,
    _stop: DropGuard,
}

impl Process {
    /// Starts `command` with piped standard input, which is closed to end the process, and piped standard output, which the caller
    /// must read.
    pub(crate) fn start(
        name: &str,
        mut command: Command,
        directory: &Path,
        keepers: &TaskTracker,
    ) -> Result<(Self, ChildStdout), Error> {
        let log = directory.join(format!("{name}.log"));
        let file = std::fs::File::create(&log).map_err(Error::file("create", &log))?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(file)
            .kill_on_drop(true);
        let spawn = |source| Error::Spawn {
            name: name.to_owned(),
            source,
        };
        let mut child = command.spawn().map_err(spawn)?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| spawn(std::io::ErrorKind::BrokenPipe.into()))?;
        let stdin = child.stdin.take();
        let stop = CancellationToken::new();
        let (sender, ended) = watch::channel(None);
        keepers.spawn(supervise(child, stdin, stop.clone(), sender));
        Ok((
            Self {
                name: name.to_owned(),
                log,
                ended,
                _stop: stop.drop_guard(),
            },
            stdout,
        ))
    }

    /// Ends the process and waits until it is gone.
    pub(crate) async fn end(self) {
        let ended = self.wait_for_exit();
        drop(self);
        ended.await;
    }

    /// Returns when the process has ended by itself, with exit status and end of the log.
    pub(crate) fn wait_for_exit(&self) -> impl Future<Output = Error> + use<> {
        let (name, log, mut ended) = (self.name.clone(), self.log.clone(), self.ended.clone());
        async move {
            let status = match ended.wait_for(Option::is_some).await {
                Ok(status) => status.clone().unwrap_or_default(),
                Err(_) => "the task that watches it is gone".to_owned(),
            };
            Error::Ended {
                name,
                status,
                last_words: log_tail(&log),
            }
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.ended.borrow().is_none()
    }
}

fn log_tail(log: &Path) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    let from = log.len().saturating_sub(LOG_TAIL);
    String::from_utf8_lossy(log.get(from..).unwrap_or_default())
        .trim()
        .to_owned()
}

async fn supervise(
    mut child: Child,
    stdin: Option<ChildStdin>,
    stop: CancellationToken,
    ended: watch::Sender<Option<String>>,
) {
    let exited = tokio::select! {
        exited = child.wait() => Some(exited),
        () = stop.cancelled() => None,
    };
    if let Some(exited) = exited {
        ended.send_replace(Some(exit_text(exited)));
        return;
    }
    drop(stdin);
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        // Fails only if the process is already gone.
        let _ = child.kill().await;
    }
}

fn exit_text(exited: std::io::Result<ExitStatus>) -> String {
    exited.map_or_else(|error| error.to_string(), |status| status.to_string())
}
