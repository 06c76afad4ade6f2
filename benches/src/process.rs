//! Child processes and what the kernel says of them.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;

/// A child that is ended with this value.
pub(crate) struct Process {
    child: Child,
}

/// Clock ticks per second of `/proc/<pid>/stat`; 100 on every Linux that we run on.
const TICKS: u64 = 100;

impl Process {
    /// Starts a child.
    pub(crate) fn start(mut command: Command) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {}", command.get_program().display()))?;
        Ok(Self { child })
    }

    /// Starts a child and reads the line by which it says where it listens.
    pub(crate) fn start_and_listen(mut command: Command) -> anyhow::Result<(Self, String)> {
        command.stdout(Stdio::piped());
        let mut process = Self::start(command)?;
        let output = process.child.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok((process, line.trim().to_owned()))
    }

    /// User and system time of the process so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let rest = text.rsplit_once(") ").context("no stat")?.1;
        let fields: Vec<&str> = rest.split(' ').collect();
        let ticks = |place: usize| -> anyhow::Result<u64> { Ok(fields.get(place).context("short stat")?.parse()?) };
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS))
    }

    /// Resident set now, bytes.
    pub(crate) fn memory(&self) -> anyhow::Result<u64> {
        self.status("VmRSS:")
    }

    /// Largest resident set so far, bytes.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<u64> {
        self.status("VmHWM:")
    }

    fn status(&self, field: &str) -> anyhow::Result<u64> {
        status(&self.child.id().to_string(), field)
    }

    /// Begins to measure the largest resident set anew.
    pub(crate) fn forget_peak(&self) -> anyhow::Result<()> {
        // proc(5): 5 resets VmHWM.
        Ok(std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5")?)
    }
}

/// Resident set of this process now, bytes.
pub(crate) fn own_memory() -> anyhow::Result<u64> {
    status("self", "VmRSS:")
}

fn status(process: &str, field: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    kibibytes(&text, field).with_context(|| format!("no {field} of process {process}"))
}

/// A field of `/proc/<pid>/status`, as bytes.
fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says where this process listens.
pub(crate) fn announce(address: SocketAddr) -> anyhow::Result<()> {
    let mut output = std::io::stdout();
    writeln!(output, "{address}")?;
    output.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_status_is_read_as_bytes() {
        let text = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t     512 kB\n";
        assert_eq!(kibibytes(text, "VmRSS:"), Some(512 << 10));
        assert_eq!(kibibytes(text, "VmHWM:"), Some(2 << 20));
        assert_eq!(kibibytes(text, "VmSwap:"), None);
    }

    #[test]
    fn a_process_can_be_measured() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let process = Process::start(command).unwrap();
        assert!(process.memory().unwrap() > 0);
        process.forget_peak().unwrap();
        // In this order: it may still be starting, and grow.
        let memory = process.memory().unwrap();
        assert!(process.peak_memory().unwrap() >= memory);
        assert!(process.cpu().unwrap() < Duration::from_secs(10));
    }
}
