//! nginx as a plain proxy to the origin, one process, keep-alive on both sides; only if it is installed.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::process::Process;

const PROGRAM: &str = "nginx";

/// nginx binds at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether it is on the `PATH`.
pub(crate) fn is_installed() -> bool {
    Command::new(PROGRAM).arg("-v").output().is_ok()
}

/// Returns when it accepts connections.
pub(crate) fn start_nginx(files: &Path, origin: SocketAddr) -> anyhow::Result<(Process, SocketAddr)> {
    let folder = files.join("nginx");
    std::fs::create_dir_all(&folder)?;
    // It can't report a port chosen by the system, so a free one is picked for it.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let settings = folder.join("nginx.conf");
    std::fs::write(&settings, nginx_config(&folder, origin, address))?;
    let mut command = Command::new(PROGRAM);
    command.arg("-p").arg(&folder).arg("-c").arg(&settings);
    command.args(["-e", "stderr"]);
    let process = Process::start(command)?;
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = TcpStream::connect(address) {
        if Instant::now() > deadline {
            return Err(error).context("nginx does not accept connections");
        }
        std::thread::yield_now();
    }
    if process.resident_memory().is_err() {
        bail!("nginx has ended");
    }
    Ok((process, address))
}

/// One process, so that its CPU time is that of the proxy; as few features as possible.
fn nginx_config(folder: &Path, origin: SocketAddr, address: SocketAddr) -> String {
    let folder = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {folder}/{kind};\n"))
        .collect();
    format!(
        "daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
{temporary}  upstream origin {{ server {origin}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen {address};
    location / {{ proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
  }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_names_both_sides_and_keeps_connections() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = nginx_config(Path::new("/f"), at(1), at(2));
        assert!(
            text.contains("server 127.0.0.1:1;") && text.contains("listen 127.0.0.1:2;"),
            "{text}"
        );
        assert!(
            text.contains("keepalive 256;") && text.contains("proxy_temp_path /f/proxy;"),
            "{text}"
        );
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }
}
