//! Checks of a component's bytes before they are compiled: size, format and digest; and the names of their artifacts. Pure.

use aws_lc_rs::digest;
use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;

use super::engine;
use super::error::Error;

/// Name of an artifact, from the plugin's digest (SHA-256 in hex) and the engine.
pub(crate) fn artifact_name(engine: &wasmtime::Engine, plugin: &str) -> String {
    format!("{plugin}-{}", engine::compatibility_key(engine))
}

/// Checks size and format, and returns the digest (`sha256:<hex>`).
pub(crate) fn check_component(wasm: &[u8]) -> Result<String, Error> {
    check_size(wasm)?;
    let digest = sha256_digest(wasm);
    check_format(wasm, &digest)?;
    Ok(digest)
}

/// `sha256:<hex>` of the bytes.
pub(crate) fn sha256_digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest::digest(&digest::SHA256, bytes)))
}

pub(crate) const fn check_size(wasm: &[u8]) -> Result<(), Error> {
    match wasm.len() {
        0 => Err(Error::Empty),
        1..=MAX_PLUGIN_BYTES => Ok(()),
        bytes => Err(Error::TooLarge { bytes }),
    }
}

/// The first eight bytes show the format: magic, version, and the layer that a component's preamble adds to a module's.
pub(crate) fn check_format(wasm: &[u8], digest: &str) -> Result<(), Error> {
    let digest = || digest.to_owned();
    match wasm {
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => Err(Error::CoreModule { digest: digest() }),
        [0, b'a', b's', b'm', _, _, _, _, ..] => Ok(()),
        [0, b'a', b's', b'm', ..] => Err(Error::Compile {
            digest: digest(),
            detail: "it is truncated".into(),
        }),
        _ => Err(Error::NotWasm { digest: digest() }),
    }
}
