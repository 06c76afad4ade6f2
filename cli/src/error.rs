//! What can go wrong for a command, in words that say what to do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The event loop could not be made.
    #[error("cannot start the event loop")]
    Runtime(#[source] std::io::Error),
    /// A file or directory.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried: `read`, `write`, `create`.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Nobody has said that everything shall be deleted.
    #[error("this deletes every ShardingConfig of the cluster, and nothing undoes it; say so with --yes")]
    NotConfirmed,
    /// ShardingConfigs are not gone.
    #[error(transparent)]
    Uninstall(#[from] ctrlmesh_manager::Error),
    /// There is nothing to run.
    #[error(
        "there is no {name} at {}; build it with `cargo build -p {name}` (or `make build`), or name it with {flag}",
        path.display()
    )]
    NoBinary {
        /// Its name.
        name: &'static str,
        /// Which flag names it.
        flag: &'static str,
        /// Where it was looked for.
        path: PathBuf,
    },
    /// No pod of the demo can have an address.
    #[error(
        "no address of 127.0.0.0/8 has both ports of a sidecar free (5441, 5443); this machine needs them on its loopback"
    )]
    NoAddress {
        /// The operating system's reason for the last one.
        #[source]
        source: std::io::Error,
    },
    /// A process could not be started.
    #[error("cannot start {name}")]
    Spawn {
        /// Its name in the demo.
        name: String,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A process of the demo ended before the demo did.
    #[error("{name} ended by itself ({status}); its last words:\n{last_words}")]
    Ended {
        /// Its name in the demo.
        name: String,
        /// Exit code or signal.
        status: String,
        /// End of its log.
        last_words: String,
    },
    /// Something that must happen soon did not.
    #[error("waited {} s for this: {what}; the last state was: {last}", after.as_secs())]
    Deadline {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// What was there instead.
        last: String,
    },
    /// Something did not happen in time, on a machine where it could not.
    #[error(
        "inconclusive: machine too slow. In the {} s that the demo waited for this: {what}, its processes got {percent} % of the CPU that \
         they should have; try again when less runs beside it. (The last state was: {last})",
        after.as_secs()
    )]
    TooSlow {
        /// What the demo got, of what it needs.
        percent: String,
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// What was there instead.
        last: String,
    },
    /// The demo's own look at the API server is broken, so nothing can be counted any more.
    #[error("the demo lost sight of the API server, so it can't count what it claims: {0}")]
    Blind(String),
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// The API server of the test kit.
    #[error("the in-memory API server")]
    ApiServer(#[from] ctrlmesh_testkit::Error),
    /// A document that the demo applies.
    #[error("the demo's {file} is no YAML")]
    Manifest {
        /// Its file.
        file: &'static str,
        /// What is wrong with it.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A Kubernetes client.
    #[error("{doing}")]
    Client {
        /// What the client was for.
        doing: String,
        /// Why it failed.
        #[source]
        source: Box<kube::Error>,
    },
    /// A sidecar's admin port gave no good answer.
    #[error(
        "{path} of a sidecar at {address} can't be had: {problem}; is that its admin port (5441 in a pod)? From outside of the pod it is \
         reached by `kubectl port-forward POD 5441`"
    )]
    Admin {
        /// Where it was asked.
        address: SocketAddr,
        /// For what.
        path: &'static str,
        /// Why it failed, in words.
        problem: String,
    },
    /// What a command says can't be written.
    #[error("cannot write to standard output")]
    StandardOutput(#[source] std::io::Error),
    /// A kubeconfig.
    #[error("the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// There is no file to write into.
    #[error("--fix writes files, and there is none behind standard input; name files with -f")]
    FixStandardInput,
    /// A document could not be written.
    #[error("a document can't be written as YAML")]
    Yaml(#[from] Box<serde_saphyr::ser::Error>),
    /// A plugin that a sidecar would refuse.
    #[error("a sidecar would not run this plugin with these settings")]
    Plugin(#[from] ctrlmesh_proxy::harness::HarnessError),
    /// A file of cases for a plugin.
    #[error("{} {problem}", path.display())]
    Cases {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// No crate can have this name.
    #[error("{0:?} can't be the name of a plugin; use lower-case letters, digits and hyphens, a letter first")]
    PluginName(String),
    /// A new plugin does not replace anything.
    #[error("the folder {0:?} is there already; choose another name, or remove it")]
    FolderExists(String),
    /// `--sdk` names another folder.
    #[error("--sdk: {} is not the SDK; name the folder `sdk` of a checkout of ctrlmesh", .0.display())]
    NoSdk(PathBuf),
    /// JSON could not be read or written.
    #[error("the JSON is not what it should be")]
    Json(#[from] serde_json::Error),
}

impl Error {
    /// For `map_err` on what touches a file.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::File {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// For `map_err` on what a client does.
    pub(crate) fn client(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Client {
            doing,
            source: Box::new(source),
        }
    }
}
