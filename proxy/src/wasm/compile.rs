//! Turns the bytes of a component into a plugin: checks the format, looks into the cache, compiles if needed, checks the world.
//!
//! Blocking and slow (tens of milliseconds and more): never call it on a worker thread. Leaves the seals to `cache.rs`, the
//! child to `child.rs`, the world to `world.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ctrlmesh_contract::Digest;
use tracing::{debug, warn};
use wasmtime::component::Component;

use super::artifact::{Artifact, MappedArtifact};
use super::cache::{Cache, Lookup};
use super::child;
use super::component_bytes::{artifact_name, check_format, check_size, sha256_digest};
use super::engine::{self, Engine, Processor};
use super::error::Error;
use super::memory::Charge;
use super::plugin::Plugin;
use super::precompiled::{Precompiled, RefusedArtifact};
use super::sealed_file::SealedFile;

/// The process in which the compiler runs.
#[derive(Debug, Clone)]
pub enum CompileMode {
    /// A child process with limits, for processes that serve traffic.
    Child {
        /// This binary, or one that calls [`child::compile_child_main`] when its first argument is
        /// [`child::COMPILE_ARGUMENT`]; the second may be [`child::MEMORY_ARGUMENT`].
        program: PathBuf,
    },
    /// This process, for tests and for tools that compile what their user has just built.
    InProcess,
}

pub struct Compiler {
    mode: CompileMode,
    cache: Option<Cache>,
    precompiled: Precompiled,
    deadline: Duration,
}

impl Compiler {
    /// A compiler with a cache in `cache` (created with mode 0700 if it does not exist), or without one.
    ///
    /// # Errors
    /// The cache directory is unusable, above all because other users may write to it.
    pub fn new(mode: CompileMode, cache: Option<&Path>) -> Result<Self, Error> {
        let cache = cache.map(Cache::open).transpose()?;
        Ok(Self {
            mode,
            cache,
            precompiled: Precompiled::new(&[]),
            deadline: child::COMPILE_DEADLINE,
        })
    }

    /// Takes artifacts from these directories, if they have any, before compiling.
    #[must_use]
    pub fn with_precompiled(mut self, directories: &[PathBuf]) -> Self {
        self.precompiled = Precompiled::new(directories);
        self
    }

    /// Sets directories that are checked in another way.
    #[cfg(test)]
    pub(crate) fn replace_precompiled(&mut self, precompiled: Precompiled) {
        self.precompiled = precompiled;
    }

    /// Sets another deadline than a minute. Only for [`CompileMode::Child`]: a compile in this process cannot be stopped.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Loads a plugin from the bytes of a component. Blocks; loading the same bytes again is cheap.
    ///
    /// # Errors
    /// [`Error`] says what is wrong with the bytes, and how to fix it.
    pub fn load(&self, engine: &Arc<Engine>, wasm: &[u8]) -> Result<Arc<Plugin>, Error> {
        check_size(wasm)?;
        let digest = sha256_digest(wasm);
        if let Some(plugin) = engine.loaded_plugin(&digest) {
            return Ok(plugin);
        }
        check_format(wasm, &digest)?;
        let (component, charge) = self.load_component(engine, wasm, &digest)?;
        let plugin = Arc::new(Plugin::new(engine.wasmtime(), &component, charge, digest)?);
        engine.remember_plugin(&plugin);
        Ok(plugin)
    }

    /// Whether [`Compiler::load`] of this plugin would compile nothing, because the plugin is loaded, precompiled or in the cache. Artifacts
    /// pass all checks but wasmtime's own, so that an artifact which is refused does not count. `load` checks one of the cache again,
    /// because this user can change it.
    #[must_use]
    pub fn is_compiled(&self, engine: &Engine, plugin: &Digest) -> bool {
        let is_precompiled = || self.precompiled.has_artifact(engine.wasmtime(), &plugin.hex());
        let is_cached = || {
            let cache = self.cache.as_ref();
            cache.is_some_and(|cache| cache.has_artifact(&artifact_name(engine.wasmtime(), &plugin.hex())))
        };
        engine.loaded_plugin(&plugin.to_string()).is_some() || is_precompiled() || is_cached()
    }

    /// The first precompiled artifact that can be used.
    fn load_precompiled(&self, engine: &Engine, digest: &str) -> Result<Option<(Component, Charge)>, Error> {
        let hex = digest.trim_start_matches("sha256:");
        for artifact in self.precompiled.artifacts(engine.wasmtime(), hex) {
            let artifact = match artifact {
                Ok(artifact) => artifact,
                Err(RefusedArtifact { path, reason }) => {
                    let path = path.display();
                    warn!(
                        %digest, %path, reason,
                        "precompiled artifact refused; using another one, or compiling the plugin"
                    );
                    continue;
                }
            };
            let path = artifact.path().display();
            match load_mapped(engine, &artifact, digest) {
                Ok(loaded) => {
                    debug!(%digest, %path, "plugin loaded from a precompiled artifact");
                    return Ok(Some(loaded));
                }
                // Compiling would take more memory. The caller may make room, and try again.
                Err(error @ Error::CodeMemory { .. }) => return Err(error),
                Err(error) => warn!(
                    %digest, %path, %error,
                    "failed to load a precompiled artifact; using another one, or compiling the plugin"
                ),
            }
        }
        Ok(None)
    }

    fn load_component(&self, engine: &Arc<Engine>, wasm: &[u8], digest: &str) -> Result<(Component, Charge), Error> {
        if let Some(loaded) = self.load_precompiled(engine, digest)? {
            return Ok(loaded);
        }
        let hex = digest.trim_start_matches("sha256:");
        let Some(cache) = &self.cache else {
            let artifact = self.compile(engine, wasm, digest)?;
            let charge = code_charge(engine, artifact.bytes(), digest)?;
            return load_artifact(engine, &artifact, charge, digest);
        };
        let name = artifact_name(engine.wasmtime(), hex);
        let charge = code_charge(engine, cache.size(&name), digest)?;
        match cache.read(&name) {
            Lookup::Hit(artifact) => match load_artifact(engine, &artifact, charge, digest) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => warn!(%digest, %error, "failed to load a cached artifact; compiling the plugin again"),
            },
            Lookup::Refused(reason) => warn!(%digest, reason, "cached artifact refused; compiling the plugin again"),
            Lookup::Miss => {}
        }
        cache.remove(&name);
        let artifact = self.compile(engine, wasm, digest)?;
        let charge = code_charge(engine, artifact.bytes(), digest)?;
        let loaded = load_artifact(engine, &artifact, charge, digest)?;
        if let Err(error) = cache.write(&name, &artifact) {
            // Loading works without the cache; only the next start is slower.
            warn!(%digest, %error, "failed to cache a compiled plugin");
        }
        Ok(loaded)
    }

    fn compile(&self, engine: &Arc<Engine>, wasm: &[u8], digest: &str) -> Result<Artifact, Error> {
        let refused = |detail: String| Error::Compile {
            digest: digest.to_owned(),
            detail,
        };
        let code = match &self.mode {
            CompileMode::InProcess => {
                let bytes = engine::compiling_engine(Processor::Native)?
                    .precompile_component(wasm)
                    .map_err(|error| refused(format!("{error:#}")))?;
                SealedFile::copy_of(&bytes).map_err(|error| refused(child::unkept_artifact(&error, "")))?
            }
            CompileMode::Child { program } => {
                let share = engine.memory().compiler_share();
                child::compile_in_child(program, wasm, self.deadline, share.as_ref()).map_err(
                    |failure| match failure {
                        child::Failure::Refused(detail) => refused(detail),
                        child::Failure::Deadline => Error::CompileDeadline {
                            digest: digest.to_owned(),
                            limit: self.deadline,
                        },
                        child::Failure::Memory {
                            limit_bytes,
                            is_contended,
                        } => Error::CompileMemory {
                            digest: digest.to_owned(),
                            limit_bytes,
                            is_contended,
                        },
                    },
                )?
            }
        };
        Ok(Artifact::just_compiled(code))
    }
}

/// Reserves memory for an artifact of this size, and for the two copies that exist while it is loaded, if it can't be mapped: ours and
/// wasmtime's.
fn code_charge(engine: &Engine, artifact_bytes: usize, digest: &str) -> Result<Charge, Error> {
    let mut charge = engine.memory().account();
    let taken = charge.take(artifact_bytes.saturating_mul(3));
    taken.map_err(|over| Error::CodeMemory {
        digest: digest.to_owned(),
        over,
    })?;
    Ok(charge)
}

fn load_artifact(
    engine: &Engine,
    artifact: &Artifact,
    mut charge: Charge,
    digest: &str,
) -> Result<(Component, Charge), Error> {
    let component = artifact
        .load(engine.wasmtime())
        .map_err(|error| load_error(&error, digest))?;
    charge.shrink_to(artifact.bytes());
    Ok((component, charge))
}

/// The code of the artifact is mapped, so there is one copy.
fn load_mapped(engine: &Engine, artifact: &MappedArtifact, digest: &str) -> Result<(Component, Charge), Error> {
    let mut charge = engine.memory().account();
    charge.take(artifact.bytes()).map_err(|over| Error::CodeMemory {
        digest: digest.to_owned(),
        over,
    })?;
    let component = artifact
        .load(engine.wasmtime())
        .map_err(|error| load_error(&error, digest))?;
    Ok((component, charge))
}

fn load_error(error: &wasmtime::Error, digest: &str) -> Error {
    Error::Compile {
        digest: digest.to_owned(),
        detail: format!("the compiled artifact does not load: {error:#}"),
    }
}
