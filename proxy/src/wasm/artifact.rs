//! Turns compiled code into a component: the one place that needs `unsafe`.
//!
//! wasmtime trusts a compiled artifact blindly, because it is machine code. So this file accepts only an [`Artifact`], which only our own
//! compiler (`compile.rs`) and our cache (`cache.rs`, after it has checked the seal) create, or a [`MappedArtifact`], which only
//! `precompiled.rs` creates, after it has checked who can change the file.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tracing::warn;
use wasmtime::component::Component;

use super::sealed_file::SealedFile;

/// Machine code of a component, made by our own compiler only, in a file that nobody can change.
///
/// The field is private to this module and its constructors are named for their guarantees, so that a reader can check the single caller of
/// each.
pub(crate) struct Artifact(SealedFile);

impl Artifact {
    /// Code that `precompile_component` has just returned, in this process or in a child that this process started.
    pub(crate) const fn just_compiled(code: SealedFile) -> Self {
        Self(code)
    }

    /// Code from the cache whose seal, which only this user's sidecars can make, was compared with the contents of this file.
    pub(crate) const fn seal_verified(code: SealedFile) -> Self {
        Self(code)
    }

    /// The code, for storing.
    pub(crate) const fn code(&self) -> &SealedFile {
        &self.0
    }

    /// Size of the code.
    pub(crate) const fn bytes(&self) -> usize {
        self.0.size()
    }

    /// Loads the component. Code is mapped, and copied only where that is denied. The component keeps the file open.
    ///
    /// # Errors
    /// The artifact was made for another version or configuration of the engine, or there is no memory for it.
    pub(crate) fn load(&self, engine: &wasmtime::Engine) -> wasmtime::Result<Component> {
        self.load_from(engine, self.0.path().as_deref())
    }

    /// `path` is that of the artifact's own file; only tests name one that cannot be opened.
    fn load_from(&self, engine: &wasmtime::Engine, path: Option<&Path>) -> wasmtime::Result<Component> {
        if let Some(path) = path {
            match deserialize_component(engine, Code::File(path)) {
                // A security policy may forbid to run code of such a file.
                Err(error) if is_denied(&error) => {
                    warn!(
                        error = format!("{error:#}"),
                        "failed to map a compiled artifact; copying it"
                    );
                }
                loaded => return loaded,
            }
        }
        deserialize_component(engine, Code::Memory(&self.0.bytes()?))
    }
}

/// Whether the kernel denied to open the file, to map it, or to run its code.
fn is_denied(error: &wasmtime::Error) -> bool {
    // wasmtime opens the file with std, and maps and protects it with rustix.
    let opening = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
    let errno = opening.or_else(|| error.downcast_ref::<Errno>().copied());
    errno.is_some_and(|errno| [Errno::ACCESS, Errno::PERM, Errno::NOENT].contains(&errno))
}

/// Machine code of a component in a file that nobody can change but those who can change the sidecar's program too.
///
/// The field is private to this module and its constructor is named for its guarantee.
pub(crate) struct MappedArtifact {
    path: PathBuf,
    bytes: usize,
}

impl MappedArtifact {
    /// A file of this size that belongs to root, as all directories above it do, and that neither other users nor this process can write to.
    pub(crate) const fn unchangeable_file(path: PathBuf, bytes: usize) -> Self {
        Self { path, bytes }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Loads the component. Code is mapped, so it takes memory only when it runs, and sidecars on a node share it.
    ///
    /// # Errors
    /// The artifact was made for another version or configuration of the engine, or for a processor with other instructions.
    pub(crate) fn load(&self, engine: &wasmtime::Engine) -> wasmtime::Result<Component> {
        deserialize_component(engine, Code::File(&self.path))
    }
}

enum Code<'a> {
    Memory(&'a [u8]),
    File(&'a Path),
}

#[expect(unsafe_code, reason = "wasmtime's only way to load a compiled component; see SAFETY")]
fn deserialize_component(engine: &wasmtime::Engine, code: Code<'_>) -> wasmtime::Result<Component> {
    // SAFETY: wasmtime asks that the code comes from `precompile_component` (or `serialize`) unmodified, and that a file does not change as
    // long as it is mapped. Both hold. An `Artifact` is what our own compiler has just returned, or was read from the cache and carried a
    // valid HMAC under a key that only this user can read. It is a `SealedFile`, which the kernel lets nobody write to, resize or unseal,
    // and the HMAC was computed after it was sealed; its path was compared with the open file just before. Where it can't be mapped, we
    // load a copy on our heap. What was just compiled is not checked after sealing, so a process of the same user that may open files in
    // `/proc/<pid>/fd` could change it before. We assume that there is none: injected sidecars have a user of their own, and such a process
    // could read the cache's key, too. The checksum of a `MappedArtifact` shows that `precompile` wrote it, and only root can change it;
    // root in the image, or on the node, can replace this program as well. Version and settings are checked by wasmtime itself.
    unsafe {
        match code {
            Code::Memory(bytes) => Component::deserialize(engine, bytes),
            Code::File(path) => Component::deserialize_file(engine, path),
        }
    }
}

#[cfg(test)]
mod tests;
