//! The compiler in a process of its own: what the parent does with it, and what the child does ([`compile_child_main`]).
//!
//! Compiling takes tens of megabytes, and a hostile plugin could ask for more or meet a bug of the compiler. So it happens
//! in a child of the same binary with limits that the child puts on itself; the serving process only waits, with a
//! deadline. Leaves caching and loading to `compile.rs`. Why: docs/adr/0005-compile-in-a-child.md.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rlimit::Resource;

use super::MAX_WASM_BYTES;
use super::cache::MAX_ARTIFACT_BYTES;
use super::engine::wasmtime_engine;

/// The argument that makes the sidecar's binary a compiler.
pub const COMPILE_ARGUMENT: &str = "compile";

/// How long a compile may take. The largest plugin allowed needs some seconds on a whole core; a sidecar often has a tenth
/// of one.
pub(crate) const COMPILE_DEADLINE: Duration = Duration::from_secs(60);

/// Address space of the child. The largest plugin allowed compiles within it; the limit turns a compiler that runs wild into
/// an error message before the kernel looks for a victim in the pod.
const MAX_CHILD_ADDRESS_SPACE: u64 = 2 * 1024 * 1024 * 1024;

/// Processor seconds of the child, in case nobody waits for it any more.
const MAX_CHILD_CPU_SECONDS: u64 = 60;

/// Most of what the child says on stderr that is repeated.
const MAX_CHILD_MESSAGE_BYTES: u64 = 2 * 1024;

/// How the child ended without an artifact.
pub(crate) enum Failure {
    /// It could not be started, or ended with an error; the text says what.
    Refused(String),
    /// It was stopped.
    Deadline,
}

/// Compiles in a child. Blocks up to `deadline`, and leaves no child behind.
///
/// Assumption: `program` is this binary, which starts no processes of its own (one that inherited the pipes would keep the
/// readers waiting).
pub(crate) fn compile(program: &Path, wasm: &[u8], deadline: Duration) -> Result<Vec<u8>, Failure> {
    let mut child = Command::new(program)
        .arg(COMPILE_ARGUMENT)
        // The child needs nothing of what we know: no tokens, no addresses.
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::Refused(format!("the compiler {} can't be started: {error}", program.display())))?;
    let end = Instant::now() + deadline;
    let said = exchange(&mut child, wasm, end);
    let status = wait_until(&mut child, end);
    match (said, status) {
        (_, None) => Err(Failure::Deadline),
        (Said { cut: true, .. }, _) => Err(Failure::Refused(format!(
            "the artifact is larger than {MAX_ARTIFACT_BYTES} bytes"
        ))),
        (said, Some(status)) if status.success() && !said.artifact.is_empty() => Ok(said.artifact),
        (said, Some(status)) => Err(Failure::Refused(describe(status, &said.message))),
    }
}

/// What the child wrote.
struct Said {
    artifact: Vec<u8>,
    /// Whether there was more than [`MAX_ARTIFACT_BYTES`].
    cut: bool,
    message: String,
}

/// Feeds the child and collects what it says, until it has closed both its outputs. At `end` it is killed, which closes
/// them.
fn exchange(child: &mut Child, wasm: &[u8], end: Instant) -> Said {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let (closed, all_closed) = mpsc::sync_channel::<()>(1);
        scope.spawn(move || {
            // A child that refuses early closes its end; what it says then is the better message.
            let _ = stdin.map(|mut stdin| stdin.write_all(wasm));
        });
        let message = {
            let closed = closed.clone();
            scope.spawn(move || (read_bounded(stderr, MAX_CHILD_MESSAGE_BYTES), drop(closed)).0)
        };
        let artifact = scope.spawn(move || (read_bounded(stdout, MAX_ARTIFACT_BYTES), drop(closed)).0);
        // Nothing is sent: it disconnects when both readers are done.
        let left = end.saturating_duration_since(Instant::now());
        if all_closed.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            let _ = child.kill();
        }
        let (artifact, cut) = artifact.join().unwrap_or_default();
        let (message, _) = message.join().unwrap_or_default();
        Said {
            artifact,
            cut,
            message: String::from_utf8_lossy(&message).trim().to_owned(),
        }
    })
}

/// Reads up to `limit` bytes, and tells whether there were more. Dropping the pipe stops a writer that goes on.
fn read_bounded(pipe: Option<impl Read>, limit: u64) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let Some(pipe) = pipe else { return (bytes, false) };
    // A read error means that the child is gone, and its status tells more.
    let _ = pipe.take(limit + 1).read_to_end(&mut bytes);
    let cut = bytes.len() as u64 > limit;
    bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    (bytes, cut)
}

/// The child's status, or none if it had to be killed because `end` has come.
///
/// It has closed its outputs and is about to exit: std can wait for a process for ever or not at all, so this looks again
/// every few milliseconds.
fn wait_until(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            // A kill at the deadline counts as the deadline, whatever the status says.
            return (Instant::now() < end).then_some(status);
        }
        if Instant::now() >= end {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// What a person should know of a child that failed.
fn describe(status: ExitStatus, message: &str) -> String {
    match (status.signal(), message) {
        (Some(signal), "") => format!("the compiler was killed by signal {signal} (out of memory or processor time?)"),
        (Some(signal), message) => format!("the compiler was killed by signal {signal}: {message}"),
        (None, "") if status.success() => "the compiler ended without an artifact".into(),
        (None, "") => format!("the compiler failed ({status})"),
        (None, message) => message.to_owned(),
    }
}

/// The child: limits itself, reads a component from stdin, writes the artifact to stdout.
///
/// `main` calls this for `ctrlmesh-proxy compile`. What is wrong is said on stderr, and the exit code is 1.
#[must_use]
pub fn compile_child_main() -> ExitCode {
    match compile_stdin() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // A parent that is gone can't read it, and nobody else would.
            let _ = writeln!(io::stderr(), "{message}");
            ExitCode::FAILURE
        }
    }
}

fn compile_stdin() -> Result<(), String> {
    limit_self().map_err(|error| format!("limits can't be set: {error}"))?;
    let mut wasm = Vec::new();
    let limit = MAX_WASM_BYTES as u64 + 1;
    io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut wasm)
        .map_err(|error| format!("stdin: {error}"))?;
    if wasm.len() > MAX_WASM_BYTES {
        return Err(format!("more than {MAX_WASM_BYTES} bytes on stdin"));
    }
    let engine = wasmtime_engine().map_err(|error| error.to_string())?;
    let artifact = engine
        .precompile_component(&wasm)
        .map_err(|error| format!("{error:#}"))?;
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(&artifact)
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("stdout: {error}"))
}

/// Bounds this process. All of these can only be lowered, so a compiler that goes wrong can't undo them.
fn limit_self() -> io::Result<()> {
    // No memory image is left behind, and it writes to its pipes and to nothing else.
    Resource::CORE.set(0, 0)?;
    Resource::AS.set(MAX_CHILD_ADDRESS_SPACE, MAX_CHILD_ADDRESS_SPACE)?;
    Resource::CPU.set(MAX_CHILD_CPU_SECONDS, MAX_CHILD_CPU_SECONDS)?;
    Resource::FSIZE.set(0, 0)
}
