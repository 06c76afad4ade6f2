//! The stand of the whole-system tests: an API server of the test kit, a chain directory that changes as kubelet changes
//! one, the real `ctrlmesh-proxy` process between them, and a client that speaks plain HTTP.
//!
//! Everything waits for conditions, with one deadline; nothing sleeps.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

pub mod chain_dir;
pub mod client;
pub mod heavy;
pub mod hop;
pub mod sidecar;
pub mod smuggling;
pub mod target;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use ctrlmesh_testkit::ApiServer;
use serde_json::{Value, json};

pub use chain_dir::{ChainDir, EntrySpec};
pub use client::{Answer, Client};
pub use sidecar::{Sidecar, binary};
pub use target::Target;

/// The longest that anything here may take; a condition that is not met by then fails the test.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Namespace of the sidecar's pod.
pub const NAMESPACE: &str = "operator";

/// The checkout.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// API server, chain and sidecar.
pub struct Stand {
    /// The API server.
    pub api: ApiServer,
    /// The chain's directory.
    pub chain: ChainDir,
    /// The sidecar.
    pub sidecar: Sidecar,
    flags: Vec<String>,
    _files: tempfile::TempDir,
}

impl Stand {
    /// A stand whose first chain has these entries.
    ///
    /// # Errors
    /// Something did not come up; the text says what.
    pub async fn start(entries: Vec<EntrySpec>) -> anyhow::Result<Self> {
        Self::start_with(entries, &[]).await
    }

    /// The same, with more flags for the sidecar.
    ///
    /// # Errors
    /// Something did not come up; the text says what.
    pub async fn start_with(entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<Self> {
        let api = ApiServer::builder().start().await?;
        Self::around(api, entries, flags).await
    }

    /// A stand around an API server that is up.
    ///
    /// # Errors
    /// Something did not come up; the text says what.
    pub async fn around(api: ApiServer, entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<Self> {
        let stand = Self::unready(api, entries, flags).await?;
        stand.sidecar.wait_ready().await?;
        Ok(stand)
    }

    /// The same, whose sidecar need not be ready yet.
    ///
    /// # Errors
    /// Something did not come up; the text says what.
    pub async fn unready(api: ApiServer, entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<Self> {
        let kubeconfig = api.kubeconfig();
        Self::with_kubeconfig(api, entries, flags, &kubeconfig).await
    }

    /// A stand whose sidecar reaches its API server by another way, such as a server in front of it.
    ///
    /// # Errors
    /// Something did not come up; the text says what.
    pub async fn behind(api: ApiServer, entries: Vec<EntrySpec>, kubeconfig: &str) -> anyhow::Result<Self> {
        let stand = Self::with_kubeconfig(api, entries, &[], kubeconfig).await?;
        stand.sidecar.wait_ready().await?;
        Ok(stand)
    }

    async fn with_kubeconfig(
        api: ApiServer,
        entries: Vec<EntrySpec>,
        flags: &[&str],
        config: &str,
    ) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        let mut chain = ChainDir::create(files.path().join("chain"))?;
        chain.publish(entries)?;
        let kubeconfig = files.path().join("kubeconfig");
        std::fs::write(&kubeconfig, config)?;
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut path = |flag: &str, path: PathBuf| flags.extend([flag.to_owned(), path.display().to_string()]);
        path("--kubeconfig", kubeconfig);
        path("--chain-dir", chain.path().to_owned());
        path("--labels-file", chain.labels_file());
        path("--cache-dir", cache_dir());
        path("--state-dir", files.path().join("state"));
        let sidecar = Sidecar::start(&flags).await?;
        Ok(Self {
            api,
            chain,
            sidecar,
            flags,
            _files: files,
        })
    }

    /// Kills the sidecar and starts it again in the same pod, as kubelet does. `meanwhile`: what happens while there is none.
    ///
    /// # Errors
    /// It does not come up again; the text says why.
    pub async fn restart_sidecar(
        &mut self,
        meanwhile: impl FnOnce(&mut ChainDir) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.sidecar.kill().await?;
        meanwhile(&mut self.chain)?;
        self.sidecar = Sidecar::start(&self.flags).await?;
        self.sidecar.wait_ready().await
    }

    /// Starts the sidecar once more; the one before is killed. It need not be ready yet.
    ///
    /// # Errors
    /// It does not come up; the text says why.
    pub async fn start_again(&mut self) -> anyhow::Result<()> {
        self.sidecar.kill().await?;
        self.sidecar = Sidecar::start(&self.flags).await?;
        Ok(())
    }

    /// A client of the sidecar.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::http1(self.sidecar.api())
    }

    /// Publishes a chain and waits until it is in force.
    ///
    /// # Errors
    /// It does not come into force; the text says why.
    pub async fn publish(&mut self, entries: Vec<EntrySpec>) -> anyhow::Result<()> {
        let generation = self.chain.publish(entries)?;
        self.sidecar.wait_generation(generation).await
    }

    /// Puts config maps `<namespace>/c<n>` with label `shard` into the API server.
    ///
    /// # Errors
    /// The test kit refuses.
    pub fn seed(&self, namespace: &str, shard: &str, count: usize) -> anyhow::Result<()> {
        for number in 0..count {
            self.api
                .store()
                .put(config_map(namespace, &format!("{shard}{number}"), shard))?;
        }
        Ok(())
    }
}

/// Compiled plugins are shared by all stands, as a sidecar's cache survives its restarts: compiling once is enough. Beside the test's
/// program, so that it goes with what was built.
fn cache_dir() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.with_file_name("plugin-cache")
}

/// A config map of a shard.
#[must_use]
pub fn config_map(namespace: &str, name: &str, shard: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace, "labels": { "shard": shard } },
        "data": { "k": "v" },
    })
}

/// The shard rule of most tests: config maps with `shard=<name>`, lock `lock`.
#[must_use]
pub fn shard(name: &str) -> EntrySpec {
    let settings = json!({
        "shard": name,
        "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "selector": { "matchLabels": { "shard": name } },
        }],
    });
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR).settings(settings)
}

/// A test guest by name, with settings.
///
/// # Panics
/// There is no such guest.
#[must_use]
pub fn guest(name: &str, settings: Value) -> EntrySpec {
    let bytes = ctrlmesh_plugins_builtin::guests::get(name);
    #[expect(
        clippy::expect_used,
        reason = "a test that names a guest that is not there must fail"
    )]
    let bytes = bytes.expect("tests/guests has it");
    EntrySpec::new(&format!("{}/test", name.replace('_', "-")), bytes).settings(settings)
}

/// Asks again until the answer is yes.
///
/// # Errors
/// Not before the deadline; the text names what was waited for.
pub async fn wait_until<F>(what: &str, mut condition: impl FnMut() -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<bool>>,
{
    let wait = async {
        let mut turn = tokio::time::interval(Duration::from_millis(10));
        loop {
            turn.tick().await;
            if condition().await? {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(DEADLINE, wait)
        .await
        .with_context(|| format!("not within {DEADLINE:?}: {what}"))?
}
