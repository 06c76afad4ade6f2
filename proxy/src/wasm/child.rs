//! Compiles in a child process: the parent's side, and the child's side ([`compile_child_main`]).
//!
//! Compiling takes tens of megabytes, and a hostile plugin could require more or trigger a bug in the compiler. So it happens in a child of
//! the same binary, which limits itself; the serving process only waits, with a deadline. Leaves caching and loading to `compile.rs`. Why:
//! docs/adr/0005-compile-in-a-child.md, docs/adr/0031-memory.md.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;
use rlimit::Resource;

use super::cache::MAX_ARTIFACT_BYTES;
use super::engine::{Processor, compiling_engine};
use super::memory::CompilerShare;
use super::sealed_file::{MemoryFile, SealedFile};

/// Argument that makes the sidecar's binary run as the compiler.
pub const COMPILE_ARGUMENT: &str = "compile";

/// Second argument, followed by `=` and a number: the memory that the compiler may use, in bytes.
pub const MEMORY_ARGUMENT: &str = "--memory-bytes";

/// Time limit of a compile. The largest allowed plugin needs some seconds on a whole core; a sidecar often has a tenth of one.
pub(crate) const COMPILE_DEADLINE: Duration = Duration::from_secs(60);

/// Limit of the child's address space. The largest allowed plugin compiles within it. With the limit, a runaway compiler ends with an error
/// message before the kernel kills a process in the pod.
const MAX_CHILD_ADDRESS_SPACE: u64 = 2 * 1024 * 1024 * 1024;

/// Minimum: less is too little for any plugin, and maybe for the process itself.
const MIN_CHILD_MEMORY: usize = 8 * 1024 * 1024;

/// Keeps the child's allocator from mapping a gigabyte in advance, and from mapping whole pages of its own: [`Resource::DATA`] counts
/// everything that is mapped for writing.
const MAP_AS_NEEDED: [(&str, &str); 2] = [
    ("MIMALLOC_ARENA_EAGER_COMMIT", "0"),
    ("MIMALLOC_PAGE_COMMIT_ON_DEMAND", "1"),
];

/// Messages of a failed allocation: Rust's, the operating system's, and wasmtime's.
const OUT_OF_MEMORY: [&str; 3] = ["memory allocation of", "cannot allocate memory", "out of memory"];

/// File that sets how readily the kernel kills the process, and the value that makes it the first candidate.
const OOM_SCORE: (&str, &str) = ("/proc/self/oom_score_adj", "1000");

/// Limit of the child's processor time in seconds, in case nobody waits for it any more.
const MAX_CHILD_CPU_SECONDS: u64 = 60;

/// Maximum length of the child's stderr that is repeated in an error.
const MAX_CHILD_MESSAGE_BYTES: u64 = 2 * 1024;

/// Why the child produced no artifact.
pub(crate) enum Failure {
    /// The child could not be started, or ended with the error in the text.
    Refused(String),
    Deadline,
    /// The child needed more memory than its limit.
    Memory {
        limit_bytes: usize,
        /// Whether the limit may be higher another time.
        is_contended: bool,
    },
}

impl Failure {
    const fn allowed_memory(share: &CompilerShare) -> Self {
        Self::Memory {
            limit_bytes: share.process_bytes(),
            is_contended: share.is_contended(),
        }
    }
}

/// Compiles in a child. Blocks up to `deadline`, and leaves no child behind. `share` is the memory that the child may use; `None` sets no
/// limit besides that of its address space.
///
/// Assumption: `program` is this binary, which starts no processes of its own (a process that inherited the pipes would keep the readers
/// waiting).
pub(crate) fn compile_in_child(
    program: &Path,
    wasm: &[u8],
    deadline: Duration,
    share: Option<&CompilerShare>,
) -> Result<SealedFile, Failure> {
    if let Some(share) = share.filter(|share| share.process_bytes() < MIN_CHILD_MEMORY) {
        return Err(Failure::allowed_memory(share));
    }
    let mut child = start_child(program, share)
        .map_err(|error| Failure::Refused(format!("the compiler {} can't be started: {error}", program.display())))?;
    let end = Instant::now() + deadline;
    let said = exchange_with_child(&mut child, wasm, share.map_or(MAX_ARTIFACT_BYTES, artifact_limit), end);
    let status = wait_until(&mut child, end);
    let is_out_of_memory = said.is_out_of_memory();
    match (said.artifact, status, share) {
        (_, None, _) => Err(Failure::Deadline),
        (Ok(None), _, Some(share)) => Err(Failure::allowed_memory(share)),
        (Ok(None), ..) => Err(Failure::Refused(format!(
            "the artifact is larger than {MAX_ARTIFACT_BYTES} bytes"
        ))),
        (_, _, Some(share)) if is_out_of_memory => Err(Failure::allowed_memory(share)),
        (Err(error), ..) => Err(Failure::Refused(unkept_artifact(&error, &said.message))),
        (Ok(Some(artifact)), Some(status), _) if status.success() && artifact.size() > 0 => Ok(artifact),
        (Ok(Some(_)), Some(status), _) => Err(Failure::Refused(exit_message(status, &said.message))),
    }
}

/// The error of a memory file, for users, with what the compiler wrote to stderr.
pub(crate) fn unkept_artifact(error: &io::Error, message: &str) -> String {
    match message {
        "" => format!("the artifact can't be held in memory: {error}"),
        message => format!("the artifact can't be held in memory: {error}; the compiler says: {message}"),
    }
}

fn start_child(program: &Path, share: Option<&CompilerShare>) -> io::Result<Child> {
    let mut command = Command::new(program);
    command
        .arg(COMPILE_ARGUMENT)
        // The child gets none of our environment: no tokens, no addresses.
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(share) = share {
        command.arg(format!("{MEMORY_ARGUMENT}={}", share.process_bytes()));
        command.envs(MAP_AS_NEEDED);
    }
    command.spawn()
}

fn artifact_limit(share: &CompilerShare) -> u64 {
    MAX_ARTIFACT_BYTES.min(share.artifact_bytes() as u64)
}

/// The child's output.
struct CompilerMessage {
    /// `None` if the output exceeded its limit.
    artifact: io::Result<Option<SealedFile>>,
    message: String,
}

impl CompilerMessage {
    fn is_out_of_memory(&self) -> bool {
        let message = self.message.to_ascii_lowercase();
        let is_empty = matches!(&self.artifact, Ok(Some(artifact)) if artifact.size() == 0);
        is_empty && OUT_OF_MEMORY.iter().any(|cause| message.contains(cause))
    }
}

/// Feeds the child and collects its output, until it has closed stdout and stderr. At `end` it is killed, which closes them. `limit` is the
/// maximum size of an artifact.
fn exchange_with_child(child: &mut Child, wasm: &[u8], limit: u64, end: Instant) -> CompilerMessage {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let (closed, all_closed) = mpsc::sync_channel::<()>(1);
        scope.spawn(move || {
            // A child that refuses early closes its stdin; its own message is then the better error.
            let _ = stdin.map(|mut stdin| stdin.write_all(wasm));
        });
        let message = {
            let closed = closed.clone();
            scope.spawn(move || (read_bounded(stderr, MAX_CHILD_MESSAGE_BYTES), drop(closed)).0)
        };
        let artifact = scope.spawn(move || (read_artifact(stdout, limit), drop(closed)).0);
        // Nothing is sent on the channel: it disconnects when both readers are done.
        let left = end.saturating_duration_since(Instant::now());
        if all_closed.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            let _ = child.kill();
        }
        let artifact = artifact.join();
        let message = message.join().unwrap_or_default();
        CompilerMessage {
            artifact: artifact.unwrap_or_else(|_| Err(io::Error::other("its reader panicked"))),
            message: String::from_utf8_lossy(&message).trim().to_owned(),
        }
    })
}

/// Reads up to `limit` bytes. Dropping the pipe stops a writer that goes on.
fn read_bounded(pipe: Option<impl Read>, limit: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // A read error means that the child is gone, and its exit status says more.
        let _ = pipe.take(limit).read_to_end(&mut bytes);
    }
    bytes
}

/// Reads up to `limit` bytes into a memory file. Returns `None` if there are more; dropping the pipe stops a writer that goes on.
fn read_artifact(pipe: Option<impl Read>, limit: u64) -> io::Result<Option<SealedFile>> {
    let mut artifact = MemoryFile::create();
    if let Some(pipe) = pipe
        && artifact.write_from(pipe.take(limit + 1))? > limit
    {
        return Ok(None);
    }
    artifact.seal().map(Some)
}

/// The child's exit status; `None` if it had to be killed at `end`.
///
/// The child has closed its outputs and is about to exit. std can wait for a process forever or not at all, so this polls every few
/// milliseconds.
fn wait_until(child: &mut Child, end: Instant) -> Option<ExitStatus> {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            // A kill at the deadline counts as the deadline, whatever the exit status is.
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

/// Describes a failed child for users.
fn exit_message(status: ExitStatus, message: &str) -> String {
    match (status.signal(), message) {
        (Some(signal), "") => format!("the compiler was killed by signal {signal} (out of memory or processor time?)"),
        (Some(signal), message) => format!("the compiler was killed by signal {signal}: {message}"),
        (None, "") if status.success() => "the compiler ended without an artifact".into(),
        (None, "") => format!("the compiler failed ({status})"),
        (None, message) => message.to_owned(),
    }
}

/// Main function of the child: limits itself, reads a component from stdin, writes the artifact to stdout.
///
/// `main` calls this for `ctrlmesh-proxy compile`. Errors are written to stderr, and the exit code is 1. `memory_bytes` is the value of
/// [`MEMORY_ARGUMENT`].
#[must_use]
pub fn compile_child_main(memory_bytes: Option<u64>) -> ExitCode {
    match compile_stdin(memory_bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // If the parent is gone, nobody can read the message.
            let _ = writeln!(io::stderr(), "{message}");
            ExitCode::FAILURE
        }
    }
}

fn compile_stdin(memory_bytes: Option<u64>) -> Result<(), String> {
    limit_self(memory_bytes).map_err(|error| format!("limits can't be set: {error}"))?;
    let mut wasm = Vec::new();
    let limit = MAX_PLUGIN_BYTES as u64 + 1;
    io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut wasm)
        .map_err(|error| format!("stdin: {error}"))?;
    if wasm.len() > MAX_PLUGIN_BYTES {
        return Err(format!("more than {MAX_PLUGIN_BYTES} bytes on stdin"));
    }
    let engine = compiling_engine(Processor::Native).map_err(|error| error.to_string())?;
    let artifact = engine
        .precompile_component(&wasm)
        .map_err(|error| format!("{error:#}"))?;
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(&artifact)
        .and_then(|()| stdout.flush())
        .map_err(|error| format!("stdout: {error}"))
}

/// Limits this process. All of these limits can only be lowered, so a faulty compiler cannot undo them.
fn limit_self(memory_bytes: Option<u64>) -> io::Result<()> {
    // If the kernel still has to kill a process of this container, it should be this one. If the file cannot be written, the kernel
    // chooses.
    let _ = fs::write(OOM_SCORE.0, OOM_SCORE.1);
    if let Some(bytes) = memory_bytes {
        Resource::DATA.set(bytes, bytes)?;
    }
    // The child leaves no core dump behind, and writes to nothing but its pipes.
    Resource::CORE.set(0, 0)?;
    Resource::AS.set(MAX_CHILD_ADDRESS_SPACE, MAX_CHILD_ADDRESS_SPACE)?;
    Resource::CPU.set(MAX_CHILD_CPU_SECONDS, MAX_CHILD_CPU_SECONDS)?;
    Resource::FSIZE.set(0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_memory_file_is_followed_by_what_the_compiler_says() {
        let error = io::Error::other("it is full");
        let alone = "the artifact can't be held in memory: it is full";
        assert_eq!(unkept_artifact(&error, ""), alone);
        let expected = format!("{alone}; the compiler says: stdout: broken pipe");
        assert_eq!(unkept_artifact(&error, "stdout: broken pipe"), expected);
    }
}
