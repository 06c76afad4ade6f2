//! nginx as a plain proxy to the origin, one process, keep-alive on both sides. It speaks HTTP/1.1 upstream, also over TLS.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::{Contestant, NGINX, is_program};
use crate::origin::OriginPort;
use crate::process::{Process, find_free_address, wait_for_port};

const PROGRAM: &str = "nginx";

/// nginx binds at once.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn is_installed() -> bool {
    is_program(Path::new(PROGRAM), "-v")
}

/// Returns when it accepts connections.
pub(crate) fn start_nginx(folder: &Path, origin: &OriginPort) -> anyhow::Result<Contestant> {
    std::fs::create_dir_all(folder)?;
    let (http1, http2) = (find_free_address()?, find_free_address()?);
    let settings = folder.join("nginx.conf");
    std::fs::write(&settings, nginx_config(folder, origin, http1, http2))?;
    let mut command = Command::new(PROGRAM);
    command.arg("-p").arg(folder).arg("-c").arg(&settings);
    command.args(["-e", "stderr"]);
    let process = Process::start(command)?;
    wait_for_port(&process, http1, PATIENCE).context("starting nginx")?;
    Ok(Contestant {
        http2,
        ..Contestant::new(NGINX, process, http1, origin.http1())
    })
}

/// One process, so that its CPU time is that of the proxy; as few features as possible. Without TLS this version needs a port of its own for
/// HTTP/2.
fn nginx_config(folder: &Path, origin: &OriginPort, http1: SocketAddr, http2: SocketAddr) -> String {
    let folder = folder.display();
    let address = origin.address;
    let scheme = if origin.ca.is_some() { "https" } else { "http" };
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
{temporary}  upstream origin {{ server {address}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen {http1};
    listen {http2} http2;
    location / {{ proxy_pass {scheme}://origin; proxy_http_version 1.1; proxy_set_header Connection \"\"; }}
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
        let origin = |ca| OriginPort { address: at(1), ca };
        let text = nginx_config(Path::new("/f"), &origin(None), at(2), at(3));
        for part in [
            "server 127.0.0.1:1;",
            "listen 127.0.0.1:2;",
            "listen 127.0.0.1:3 http2;",
            "keepalive 256;",
            "proxy_temp_path /f/proxy;",
            "proxy_pass http://origin;",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        let encrypted = nginx_config(Path::new("/f"), &origin(Some("/ca".into())), at(2), at(3));
        assert!(encrypted.contains("proxy_pass https://origin;"), "{encrypted}");
    }
}
