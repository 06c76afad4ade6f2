//! The errors of all commands. Messages say what happened and what to do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot start the event loop")]
    Runtime(#[source] std::io::Error),
    #[error("cannot {action} {}", path.display())]
    File {
        /// The action that failed: `read`, `write`, `create`.
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The deletion was not confirmed.
    #[error("this deletes every ShardingConfig of the cluster and cannot be undone; confirm with --yes")]
    NotConfirmed,
    #[error(transparent)]
    Uninstall(#[from] ctrlmesh_manager_uninstall::Error),
    #[error(
        "{name} not found at {}; build it with `cargo build -p {name}` (or `make build`), or set {flag}",
        path.display()
    )]
    NoBinary {
        name: &'static str,
        /// The flag that sets its path.
        flag: &'static str,
        path: PathBuf,
    },
    /// No loopback address is free for a pod of the demo.
    #[error(
        "no address of 127.0.0.0/8 has both ports of a sidecar (5441, 5443) free; free them on the loopback interface"
    )]
    NoAddress {
        /// The error for the last address that was tried.
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start {name}")]
    Spawn {
        name: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{name} ended by itself ({status}); end of its log:\n{last_words}")]
    Ended {
        name: String,
        status: String,
        last_words: String,
    },
    #[error("timed out after {} s: {what}; last state: {last}", after.as_secs())]
    Deadline {
        what: String,
        after: Duration,
        last: String,
    },
    /// A timeout on a machine that was too slow.
    #[error(
        "inconclusive: machine too slow. In the {} s that the demo waited for this: {what}, its processes got {percent} % of the CPU that \
         they should have; try again when less runs beside it. (The last state was: {last})",
        after.as_secs()
    )]
    TooSlow {
        /// The CPU that the demo got, of what it needs.
        percent: String,
        what: String,
        after: Duration,
        last: String,
    },
    /// The demo's own watch of the API server is broken, so that counts are no longer reliable.
    #[error("the demo can no longer observe the API server, so its counts are incomplete: {0}")]
    Blind(String),
    #[error("interrupted")]
    Interrupted,
    #[error("the in-memory API server failed")]
    ApiServer(#[from] ctrlmesh_testkit::Error),
    #[error("the demo's {file} is not valid YAML")]
    Manifest {
        file: &'static str,
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    #[error("{doing}")]
    Client {
        /// The use of the client.
        doing: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(
        "cannot read {path} of a sidecar at {address}: {problem}; is that its admin port (5441 in a pod)? From outside the pod it is \
         reached by `kubectl port-forward POD 5441`"
    )]
    Admin {
        address: SocketAddr,
        path: &'static str,
        problem: String,
    },
    #[error("cannot write to standard output")]
    StandardOutput(#[source] std::io::Error),
    #[error(
        "{} exists, and was not written by `ctrlmesh plugin api-server`; name another file, or remove it",
        .0.display()
    )]
    ForeignKubeconfig(PathBuf),
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    #[error("--fix cannot write to standard input; name files or folders")]
    FixStandardInput,
    #[error("{flag}: {problem}")]
    LabelKey { flag: &'static str, problem: String },
    /// A folder that is linted.
    #[error("the folder has no *.yaml, *.yml or *.json file, nor has a subfolder")]
    NoFiles,
    /// A file that is linted.
    #[error("the file has more than {megabytes} MiB; split it")]
    FileTooLarge { megabytes: usize },
    /// A file that is linted.
    #[error("the file is not UTF-8 text")]
    NotText,
    #[error("cannot write a document as YAML")]
    Yaml(#[from] Box<serde_saphyr::ser::Error>),
    #[error(
        "{} is not WebAssembly: it does not start with the magic bytes `\\0asm`; name the .wasm file that cargo builds",
        .0.display()
    )]
    NotWasm(PathBuf),
    /// A sidecar would refuse the plugin.
    #[error("a sidecar would refuse this plugin or its settings")]
    Plugin(#[from] ctrlmesh_proxy::harness::HarnessError),
    /// The same without settings, which it may need.
    #[error("a sidecar would refuse this plugin without settings; if it needs some, write them in a file for --cases")]
    PluginWithoutSettings(#[source] ctrlmesh_proxy::harness::HarnessError),
    #[error("{} {problem}", path.display())]
    Cases { path: PathBuf, problem: String },
    #[error(
        "{0:?} can't be the name of a plugin; use lower-case letters, digits and hyphens, a letter first, and not the name of the SDK"
    )]
    PluginName(String),
    #[error("the folder {0:?} already exists; choose another name, or remove it")]
    FolderExists(String),
    #[error(
        "--sdk: neither {} nor {} is the manifest of ctrlmesh-sdk; name the folder `sdk` of a clone of ctrlmesh, or the clone",
        inner.display(),
        outer.display()
    )]
    NoSdk {
        /// Manifest of the SDK, if a clone was named.
        inner: PathBuf,
        /// Manifest of the SDK, if its folder was named.
        outer: PathBuf,
    },
    #[error("cannot read or write JSON")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// For `map_err` on file operations.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// For `map_err` on client requests.
    pub(crate) fn client(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Client {
            doing,
            source: Box::new(source),
        }
    }
}
