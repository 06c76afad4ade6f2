//! Logs too much: `bytes` in lines of `line` bytes, to the log or to stderr.

use std::io::Write;

use ctrlmesh_sdk::Host;
use ctrlmesh_test_guests::{Act, ActingPlugin};
use serde::Deserialize;

#[derive(Deserialize)]
struct LogFlood {
    #[serde(default = "ten_megabytes")]
    bytes: usize,
    #[serde(default = "one_kilobyte")]
    line: usize,
    #[serde(default)]
    to: To,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum To {
    #[default]
    Log,
    Stderr,
}

fn ten_megabytes() -> usize {
    10_000_000
}

fn one_kilobyte() -> usize {
    1_000
}

impl Act for LogFlood {
    fn act(&self, host: &dyn Host) {
        let line = "x".repeat(self.line.max(1));
        for _ in 0..self.bytes.div_ceil(line.len()) {
            match self.to {
                To::Log => host.info(&line),
                // The test is about a host that accepts no more; the error does not matter here.
                To::Stderr => drop(writeln!(std::io::stderr(), "{line}")),
            }
        }
    }
}

ctrlmesh_sdk::export_plugin!(ActingPlugin<LogFlood>);
