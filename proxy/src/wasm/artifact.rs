//! Turns compiled code into a component: the one place that needs `unsafe`.
//!
//! wasmtime trusts a compiled artifact blindly, because it is machine code. So this file accepts only an [`Artifact`], which only our own
//! compiler (`compile.rs`) and our cache (`cache.rs`, after it has checked the seal) create, or a [`MappedArtifact`], which only
//! `precompiled.rs` creates, after it has checked who can change the file.

use std::path::{Path, PathBuf};

use wasmtime::component::Component;

/// Machine code of a component, made by our own compiler only.
///
/// The field is private to this module and its constructors are named for their guarantees, so that a reader can check the single caller of
/// each.
pub(crate) struct Artifact(Vec<u8>);

impl Artifact {
    /// Bytes that `precompile_component` has just returned, in this process or in a child that this process started.
    pub(crate) const fn just_compiled(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Bytes from the cache with a valid seal, which only this user's sidecars can make.
    pub(crate) const fn seal_verified(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, for storing.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Loads the component.
    ///
    /// # Errors
    /// The artifact was made for another version or configuration of the engine.
    pub(crate) fn load(&self, engine: &wasmtime::Engine) -> wasmtime::Result<Component> {
        deserialize_component(engine, Code::Memory(&self.0))
    }
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
    // valid HMAC under a key that only this user can read; it lives in our memory, so nobody can change it after the check. The checksum of
    // a `MappedArtifact` shows that `precompile` wrote it, and only root can change it; root in the image, or on the node, can replace
    // this program as well. Version and settings are checked by wasmtime itself.
    unsafe {
        match code {
            Code::Memory(bytes) => Component::deserialize(engine, bytes),
            Code::File(path) => Component::deserialize_file(engine, path),
        }
    }
}
