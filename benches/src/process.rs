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
    /// Starts a child and reads the line by which it says where it listens.
    pub(crate) fn start(mut command: Command) -> anyhow::Result<(Self, String)> {
        let mut child = command
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .context("can't start")?;
        let output = child.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok((Self { child }, line.trim().to_owned()))
    }

    /// User and system time of the process so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let rest = text.rsplit_once(") ").context("no stat")?.1;
        let fields: Vec<&str> = rest.split(' ').collect();
        let ticks = |place: usize| -> anyhow::Result<u64> { Ok(fields.get(place).context("short stat")?.parse()?) };
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS))
    }

    /// Largest resident set so far, bytes.
    pub(crate) fn peak_memory(&self) -> anyhow::Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .context("no VmHWM")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
    }
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
