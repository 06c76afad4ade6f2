//! The environment of the whole-system tests: an API server of the test kit, a chain directory that changes like one mounted by kubelet,
//! the real `ctrlmesh-proxy` process between them, and a plain HTTP client.
//!
//! All waits are for conditions, with one deadline; nothing sleeps.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

pub mod chain_dir;
pub mod client;
pub mod expensive_plugins;
pub mod path_cleaning_proxy;
pub mod sidecar;
pub mod target;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use ctrlmesh_testkit::ApiServer;
use serde_json::{Value, json};

pub use chain_dir::{ChainDir, EntrySpec};
pub use client::{Client, ReceivedResponse};
pub use sidecar::{Sidecar, binary_path};
pub use target::Target;

/// Timeout of every wait; a condition that is not met by then fails the test.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Namespace of the sidecar's pod.
pub const NAMESPACE: &str = "operator";

/// The root of the checkout.
#[must_use]
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// API server, chain directory and sidecar.
pub struct TestEnv {
    pub api: ApiServer,
    pub chain: ChainDir,
    pub sidecar: Sidecar,
    flags: Vec<String>,
    _files: tempfile::TempDir,
}

impl TestEnv {
    /// Starts an environment whose first chain has these entries.
    ///
    /// # Errors
    /// If something did not start; the text says what.
    pub async fn start(entries: Vec<EntrySpec>) -> anyhow::Result<Self> {
        Self::start_with(entries, &[]).await
    }

    /// Like [`Self::start`], with more flags for the sidecar.
    ///
    /// # Errors
    /// If something did not start; the text says what.
    pub async fn start_with(entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<Self> {
        let api = ApiServer::builder().start().await?;
        Self::start_around(api, entries, flags).await
    }

    /// Starts the rest around a running API server.
    ///
    /// # Errors
    /// If something did not start; the text says what.
    pub async fn start_around(api: ApiServer, entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<Self> {
        let env = Self::start_unready(api, entries, flags).await?;
        env.sidecar.wait_ready().await?;
        Ok(env)
    }

    /// Like [`Self::start_around`], without waiting until the sidecar is ready.
    ///
    /// # Errors
    /// If something did not start; the text says what.
    pub async fn start_unready(api: ApiServer, entries: Vec<EntrySpec>, flags: &[&str]) -> anyhow::Result<Self> {
        let kubeconfig = api.kubeconfig();
        Self::start_with_kubeconfig(api, entries, flags, &kubeconfig).await
    }

    /// Starts an environment whose sidecar reaches its API server by another address, such as a proxy's.
    ///
    /// # Errors
    /// If something did not start; the text says what.
    pub async fn start_behind(api: ApiServer, entries: Vec<EntrySpec>, kubeconfig: &str) -> anyhow::Result<Self> {
        let env = Self::start_with_kubeconfig(api, entries, &[], kubeconfig).await?;
        env.sidecar.wait_ready().await?;
        Ok(env)
    }

    async fn start_with_kubeconfig(
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

    /// Kills the sidecar and restarts it in the same pod, like kubelet. `meanwhile` runs while there is no sidecar.
    ///
    /// # Errors
    /// If it does not start again; the text says why.
    pub async fn restart_sidecar(
        &mut self,
        meanwhile: impl FnOnce(&mut ChainDir) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.sidecar.kill().await?;
        meanwhile(&mut self.chain)?;
        self.sidecar = Sidecar::start(&self.flags).await?;
        self.sidecar.wait_ready().await
    }

    /// Starts the sidecar again after killing the previous one, without waiting until it is ready.
    ///
    /// # Errors
    /// If it does not start; the text says why.
    pub async fn start_sidecar_again(&mut self) -> anyhow::Result<()> {
        self.sidecar.kill().await?;
        self.sidecar = Sidecar::start(&self.flags).await?;
        Ok(())
    }

    /// A client that connects to the sidecar.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::http1(self.sidecar.api_address())
    }

    /// Publishes a chain and waits until it is in force.
    ///
    /// # Errors
    /// If it does not come into force; the text says why.
    pub async fn publish(&mut self, entries: Vec<EntrySpec>) -> anyhow::Result<()> {
        let generation = self.chain.publish(entries)?;
        self.sidecar.wait_generation(generation).await
    }

    /// Stores config maps `<namespace>/c<n>` with the label `shard` in the API server.
    ///
    /// # Errors
    /// If the test kit refuses.
    pub fn seed_config_maps(&self, namespace: &str, shard: &str, count: usize) -> anyhow::Result<()> {
        for number in 0..count {
            self.api
                .store()
                .put(config_map(namespace, &format!("{shard}{number}"), shard))?;
        }
        Ok(())
    }
}

/// The cache of compiled plugins, shared by all environments: compiling once is enough. It lies beside the test binary, so that it is
/// removed with the build.
fn cache_dir() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.with_file_name("plugin-cache")
}

/// A config map with the label `shard`.
#[must_use]
pub fn config_map(namespace: &str, name: &str, shard: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace, "labels": { "shard": shard } },
        "data": { "k": "v" },
    })
}

/// The shard entry of most tests: config maps with `shard=<name>`, lock `lock`.
#[must_use]
pub fn shard_entry(name: &str) -> EntrySpec {
    let settings = json!({
        "shard": name,
        "leaderElectionName": "lock",
        "limits": [{
            "relateResources": [{ "apiGroups": [""], "resources": ["configmaps"] }],
            "selector": { "matchLabels": { "shard": name } },
        }],
    });
    EntrySpec::new("shard-selector/test", ctrlmesh_plugins_builtin::SHARD_SELECTOR).with_settings(settings)
}

/// An entry with a test guest and its settings.
///
/// # Panics
/// If there is no such guest.
#[must_use]
pub fn guest_entry(name: &str, settings: Value) -> EntrySpec {
    let bytes = ctrlmesh_plugins_builtin::guests::get(name);
    #[expect(
        clippy::expect_used,
        reason = "a test that names a guest that is not there must fail"
    )]
    let bytes = bytes.expect("tests/guests has it");
    EntrySpec::new(&format!("{}/test", name.replace('_', "-")), bytes).with_settings(settings)
}

/// Polls until the condition holds.
///
/// # Errors
/// If it does not hold before the deadline; the text names it.
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
