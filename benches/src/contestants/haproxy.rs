//! haproxy as a plain proxy to the origin, one thread, HTTP/2 by ALPN if the origin speaks TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::{Contestant, HAPROXY, is_program};
use crate::origin::OriginPort;
use crate::process::{Process, find_free_address, wait_for_port};

const PROGRAM: &str = "haproxy";

/// haproxy binds at once.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn is_installed() -> bool {
    is_program(Path::new(PROGRAM), "-v")
}

/// Returns when it accepts connections.
pub(crate) fn start_haproxy(folder: &Path, origin: &OriginPort) -> anyhow::Result<Contestant> {
    std::fs::create_dir_all(folder)?;
    let address = find_free_address()?;
    let settings = folder.join("haproxy.cfg");
    std::fs::write(&settings, haproxy_config(origin, address))?;
    let mut command = Command::new(PROGRAM);
    // In the foreground, one process.
    command.args(["-db", "-f"]).arg(&settings);
    let process = Process::start(command)?;
    wait_for_port(&process, address, PATIENCE).context("starting haproxy")?;
    Ok(Contestant::new(HAPROXY, process, address, origin.best_http()))
}

/// The configuration, in which HAProxy verifies the origin's certificate as the sidecar does. Logs are off by default.
fn haproxy_config(origin: &OriginPort, address: SocketAddr) -> String {
    let tls = origin.ca.as_ref().map_or_else(String::new, |ca| {
        format!(" ssl verify required ca-file {} alpn h2,http/1.1", ca.display())
    });
    let origin = origin.address;
    format!(
        "global
  nbthread 1
  maxconn 4096
defaults
  mode http
  http-reuse always
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend clients
  bind {address}
  default_backend origin
backend origin
  server origin {origin}{tls}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_has_one_thread_and_http2_with_tls_only() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let origin = |ca| OriginPort { address: at(1), ca };
        let text = haproxy_config(&origin(None), at(2));
        assert!(
            text.contains("nbthread 1\n") && text.contains("bind 127.0.0.1:2\n"),
            "{text}"
        );
        assert!(text.ends_with("  server origin 127.0.0.1:1\n"), "{text}");
        let text = haproxy_config(&origin(Some("/ca".into())), at(2));
        assert!(
            text.ends_with("127.0.0.1:1 ssl verify required ca-file /ca alpn h2,http/1.1\n"),
            "{text}"
        );
    }
}
