//! Child processes, and their CPU time and memory.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// A child process. Dropping this kills it.
pub(crate) struct Process {
    child: Child,
}

/// Clock ticks per second of `/proc/<pid>/stat`; 100 on every Linux that we run on.
const TICKS: u64 = 100;

const PORT_POLL: Duration = Duration::from_millis(5);

impl Process {
    pub(crate) fn start(mut command: Command) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {}", command.get_program().display()))?;
        Ok(Self { child })
    }

    /// Starts a child and reads the line with its address.
    pub(crate) fn start_and_listen(mut command: Command) -> anyhow::Result<(Self, String)> {
        command.stdout(Stdio::piped());
        let mut process = Self::start(command)?;
        let output = process.child.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok((process, line.trim().to_owned()))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// User and system time of the process so far.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let rest = text.rsplit_once(") ").context("no stat")?.1;
        let fields: Vec<&str> = rest.split(' ').collect();
        let ticks = |place: usize| -> anyhow::Result<u64> { Ok(fields.get(place).context("short stat")?.parse()?) };
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS))
    }

    /// Current resident set, bytes.
    pub(crate) fn resident_memory(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmRSS:")
    }

    /// Memory that no file on disk stands for, bytes: heap, stacks, and memory files, which hold compiled code.
    pub(crate) fn anonymous_memory(&self) -> anyhow::Result<u64> {
        let id = self.child.id();
        let text = std::fs::read_to_string(format!("/proc/{id}/smaps_rollup"))?;
        let anonymous =
            parse_kibibytes(&text, "Anonymous:").with_context(|| format!("no anonymous memory of process {id}"))?;
        Ok(anonymous + self.memory_files()?)
    }

    /// Size of the memory files that the process has open, bytes. All of it counts as memory of the container, mapped or not.
    fn memory_files(&self) -> anyhow::Result<u64> {
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.flatten();
        let memory_files = files.filter(|file| {
            let target = std::fs::read_link(file.path()).unwrap_or_default();
            target.to_string_lossy().starts_with("/memfd:")
        });
        // A file may be open several times.
        let by_inode: BTreeMap<u64, u64> = memory_files
            .filter_map(|file| std::fs::metadata(file.path()).ok())
            .map(|file| (file.ino(), file.blocks() * 512))
            .collect();
        Ok(by_inode.values().sum())
    }

    /// Peak resident set, bytes.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<u64> {
        self.status_bytes("VmHWM:")
    }

    fn status_bytes(&self, field: &str) -> anyhow::Result<u64> {
        read_status_bytes(&self.child.id().to_string(), field)
    }

    /// Resets the peak resident set.
    pub(crate) fn forget_peak(&self) -> anyhow::Result<()> {
        // proc(5): 5 resets VmHWM.
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }
}

/// Current resident set of this process, bytes.
pub(crate) fn own_memory() -> anyhow::Result<u64> {
    read_status_bytes("self", "VmRSS:")
}

fn read_status_bytes(process: &str, field: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    parse_kibibytes(&text, field).with_context(|| format!("no {field} of process {process}"))
}

/// A field of `/proc/<pid>/status` or `smaps_rollup`, as bytes.
fn parse_kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a child that can't report its address accepts connections.
pub(crate) fn wait_for_port(process: &Process, address: SocketAddr, patience: Duration) -> anyhow::Result<()> {
    let deadline = Instant::now() + patience;
    while let Err(error) = TcpStream::connect(address) {
        ensure!(process.resident_memory().is_ok(), "it has ended");
        if Instant::now() > deadline {
            return Err(error).context("it does not accept connections");
        }
        std::thread::sleep(PORT_POLL);
    }
    Ok(())
}

/// A port that is free now, for children that can't report one chosen by the system.
pub(crate) fn find_free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Prints the addresses of this process in one line.
pub(crate) fn announce_addresses(addresses: &[SocketAddr]) -> anyhow::Result<()> {
    let line: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let mut output = std::io::stdout();
    writeln!(output, "{}", line.join(" "))?;
    output.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_status_is_read_as_bytes() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t     512 kB\n";
        assert_eq!(parse_kibibytes(text, "VmRSS:"), Some(512 << 10));
        assert_eq!(parse_kibibytes(text, "VmHWM:"), Some(2 << 20));
        assert_eq!(parse_kibibytes(text, "VmSwap:"), None);
    }

    #[test]
    fn process_memory_and_cpu_are_measured() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let process = Process::start(command).unwrap();
        assert!(process.resident_memory().unwrap() > 0);
        assert!(process.anonymous_memory().unwrap() > 0);
        process.forget_peak().unwrap();
        // In this order: the process may still be starting, and grow.
        let memory = process.resident_memory().unwrap();
        assert!(process.peak_memory().unwrap() >= memory);
        assert!(process.cpu_time().unwrap() < Duration::from_secs(10));
    }
}
