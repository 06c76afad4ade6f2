//! Shared by all measurements: the origin, the proxies in front of it, a folder for their files, and the report.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::chain::{Chain, SidecarFolder};
use crate::contestants::envoy::{Filter, find_program, start_envoy};
use crate::contestants::sidecar::Sidecar;
use crate::contestants::{BARE, Contestant, haproxy, nginx};
use crate::origin::OriginPort;
use crate::process::Process;
use crate::report::Report;
use crate::scale::Scale;
use crate::tls::TlsFolder;

/// The programs that are measured, where not the usual ones.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Programs {
    /// The sidecar's binary; default: beside this one
    #[arg(long, value_name = "PATH")]
    proxy: Option<PathBuf>,
    /// Envoy's binary; default: `envoy` on the PATH
    #[arg(long, value_name = "PATH")]
    envoy: Option<PathBuf>,
    /// A module of the proxy-wasm ABI; with it, Envoy is also measured with this filter
    #[arg(long, value_name = "FILE")]
    envoy_filter: Option<PathBuf>,
}

pub(crate) struct BenchEnv {
    pub(crate) scale: Scale,
    pub(crate) report: Report,
    /// The sidecar's binary.
    pub(crate) program: PathBuf,
    pub(crate) plain: OriginPort,
    /// HTTP/2 by ALPN, as a real API server.
    pub(crate) tls: OriginPort,
    envoy: Option<PathBuf>,
    envoy_filter: Option<PathBuf>,
    files: TempDir,
    /// Number of folders in `files`.
    folders: Cell<u32>,
    _origin: Process,
}

impl BenchEnv {
    pub(crate) fn start(programs: &Programs, scale: Scale) -> anyhow::Result<Self> {
        let program = match &programs.proxy {
            Some(program) => program.clone(),
            None => std::env::current_exe()?.with_file_name("ctrlmesh-proxy"),
        };
        ensure!(
            program.exists(),
            "{} is missing: run `make bench`, which builds it",
            program.display()
        );
        if let Some(filter) = &programs.envoy_filter {
            ensure!(filter.exists(), "{} is missing", filter.display());
        }
        let files = tempfile::tempdir()?;
        let tls = TlsFolder::create(files.path().join("tls"))?;
        let mut command = own_command()?;
        command.arg("origin").arg(tls.path());
        let (origin, addresses) = start_role(command)?;
        let port = |place: usize, ca| -> anyhow::Result<OriginPort> {
            let address = *addresses.get(place).context("the origin has too few ports")?;
            Ok(OriginPort { address, ca })
        };
        let env = Self {
            scale,
            report: Report::default(),
            program,
            plain: port(0, None)?,
            tls: port(1, Some(tls.ca_path()))?,
            envoy: find_program(programs.envoy.as_deref()),
            envoy_filter: programs.envoy_filter.clone(),
            files,
            folders: Cell::new(0),
            _origin: origin,
        };
        env.note_missing_programs(programs);
        Ok(env)
    }

    fn note_missing_programs(&self, programs: &Programs) {
        let note_unless = |is_there: bool, text: &str| {
            if !is_there {
                self.report.print_note(text);
            }
        };
        note_unless(
            nginx::is_installed(),
            "nginx is left out: there is no `nginx` on the PATH.",
        );
        if self.scale.all {
            let text = "haproxy is left out: there is no `haproxy` on the PATH.";
            note_unless(haproxy::is_installed(), text);
        }
        let needs_envoy_note = self.scale.all || programs.envoy.is_some() || programs.envoy_filter.is_some();
        if needs_envoy_note {
            let text = "Envoy is left out: there is no `envoy` on the PATH, and --envoy names none that starts.";
            note_unless(self.envoy.is_some(), text);
            let text = "Envoy with a Wasm filter is left out: there is no --envoy-filter.";
            note_unless(self.envoy.is_none() || self.envoy_filter.is_some(), text);
        }
    }

    /// The proxies that are not ours, the bare one first. Without `--all` only those that a budget compares with.
    pub(crate) fn start_others(&self, origin: &OriginPort) -> anyhow::Result<Vec<Contestant>> {
        let mut others = vec![self.start_bare_proxy(origin)?];
        if nginx::is_installed() {
            others.push(nginx::start_nginx(&self.new_folder("nginx"), origin)?);
        }
        if self.scale.all && haproxy::is_installed() {
            others.push(haproxy::start_haproxy(&self.new_folder("haproxy"), origin)?);
        }
        if let Some(program) = &self.envoy {
            let mut filters = Vec::new();
            if self.scale.all {
                filters.extend([Filter::Nothing, Filter::Lua]);
            }
            filters.extend(self.envoy_filter.as_deref().map(Filter::Wasm));
            for filter in filters {
                others.push(start_envoy(program, &self.new_folder("envoy"), origin, filter)?);
            }
        }
        Ok(others)
    }

    /// A bare hyper proxy in front of the origin.
    pub(crate) fn start_bare_proxy(&self, origin: &OriginPort) -> anyhow::Result<Contestant> {
        let mut command = own_command()?;
        command.arg("bare").arg(origin.address.to_string());
        if let Some(ca) = &origin.ca {
            command.arg("--ca").arg(ca);
        }
        let (process, addresses) = start_role(command)?;
        let address = *addresses.first().context("the bare proxy has no port")?;
        Ok(Contestant::new(BARE, process, address, origin.best_http()))
    }

    /// Creates a folder for a sidecar in front of the origin.
    pub(crate) fn create_folder(&self, origin: &OriginPort, chain: Chain) -> anyhow::Result<SidecarFolder> {
        SidecarFolder::create(self.new_folder("sidecar"), origin, chain)
    }

    /// Starts a sidecar in front of the origin, with a new folder.
    pub(crate) async fn start_sidecar(&self, origin: &OriginPort, chain: Chain) -> anyhow::Result<Sidecar> {
        Sidecar::start(&self.program, &self.create_folder(origin, chain)?).await
    }

    /// A path that no other part of this run uses.
    pub(crate) fn new_folder(&self, kind: &str) -> PathBuf {
        let number = self.folders.get();
        self.folders.set(number + 1);
        self.files.path().join(format!("{kind}-{number}"))
    }
}

/// This program, for another role.
fn own_command() -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe()?))
}

/// Starts this program in another role, as a separate process. Returns its addresses.
fn start_role(command: Command) -> anyhow::Result<(Process, Vec<SocketAddr>)> {
    let (process, line) = Process::start_and_listen(command)?;
    let addresses: Result<Vec<_>, _> = line.split(' ').map(str::parse::<SocketAddr>).collect();
    Ok((process, addresses.context("a role did not start")?))
}

/// Where the results go without `--output-dir`: `bench` in Cargo's target folder, which holds the folder of this binary.
pub(crate) fn default_output_directory() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent);
    Ok(target.context("this program has no folder")?.join("bench"))
}
