//! The proxies that do the same work, each in a process of its own with one thread for requests.
//!
//! | file | proxy |
//! |---|---|
//! | `bare_proxy` | hyper and nothing else: the baseline; a role of this program |
//! | `nginx`, `haproxy` | those on the `PATH` |
//! | `envoy` | `--envoy`, or the one on the `PATH`; without filters, with Lua, and with a Wasm filter |
//! | `sidecar` | ours |

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::process::Process;
use crate::work::HttpVersion;

pub(crate) mod bare_proxy;
pub(crate) mod envoy;
pub(crate) mod haproxy;
pub(crate) mod nginx;
pub(crate) mod sidecar;

/// Name of the bare hyper proxy in tables.
pub(crate) const BARE: &str = "bare hyper proxy";
pub(crate) const NGINX: &str = "nginx";
pub(crate) const HAPROXY: &str = "haproxy";
/// Name of the sidecar with an empty chain in tables.
pub(crate) const NO_ENTRY: &str = "ctrlmesh, no entry";

/// Something that answers the requests of the load.
pub(crate) struct Contestant {
    pub(crate) name: String,
    /// The process whose CPU time and memory are counted; `None` for the origin itself.
    pub(crate) process: Option<Process>,
    http1: SocketAddr,
    http2: SocketAddr,
    /// The HTTP version that it speaks with the origin.
    pub(crate) upstream_http: &'static str,
}

impl Contestant {
    /// A proxy that recognises HTTP/2 by its first bytes, so that one port is enough.
    pub(crate) fn new(name: &str, process: Process, address: SocketAddr, upstream_http: &'static str) -> Self {
        Self {
            name: name.to_owned(),
            process: Some(process),
            http1: address,
            http2: address,
            upstream_http,
        }
    }

    /// The origin without a proxy. In plaintext it speaks HTTP/1.1 only.
    pub(crate) fn direct(origin: SocketAddr) -> Self {
        Self {
            name: "direct".to_owned(),
            process: None,
            http1: origin,
            http2: origin,
            upstream_http: "-",
        }
    }

    pub(crate) const fn address(&self, version: HttpVersion) -> SocketAddr {
        match version {
            HttpVersion::Http1 => self.http1,
            HttpVersion::Http2 => self.http2,
        }
    }
}

/// Whether a program can be started by its name or path.
pub(crate) fn is_program(program: &Path, version_flag: &str) -> bool {
    Command::new(program)
        .arg(version_flag)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}
