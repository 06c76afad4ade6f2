//! Unpacks a zstd stream, limited to the maximum size of a plugin.
//!
//! Leaves checking the digest to `directory.rs`.

use std::io::Read as _;
use std::path::Path;

use ctrlmesh_contract::plugin_file::MAX_PLUGIN_BYTES;
use ruzstd::decoding::StreamingDecoder;

use super::error::Error;

/// Unpacks one zstd frame. Memory stays bounded for any input: both the window that the stream may request and the output are limited to
/// the size of the largest plugin.
pub(crate) fn unpack(bytes: &[u8], path: &Path) -> Result<Vec<u8>, Error> {
    let packed = |problem: String| Error::PluginPacked {
        path: path.to_owned(),
        problem,
    };
    let decoder = StreamingDecoder::new_with_max_window_size(bytes, MAX_PLUGIN_BYTES as u64)
        .map_err(|error| packed(error.to_string()))?;
    let mut plugin = Vec::new();
    decoder
        .take(MAX_PLUGIN_BYTES as u64 + 1)
        .read_to_end(&mut plugin)
        .map_err(|error| packed(error.to_string()))?;
    if plugin.len() > MAX_PLUGIN_BYTES {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            limit: MAX_PLUGIN_BYTES,
        });
    }
    Ok(plugin)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn pack(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    #[test]
    fn packed_plugin_unpacks_to_the_same_bytes() {
        let bytes: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        assert_eq!(unpack(&pack(&bytes), Path::new("p")).unwrap(), bytes);
        let largest = vec![7; MAX_PLUGIN_BYTES];
        assert_eq!(unpack(&pack(&largest), Path::new("p")).unwrap().len(), MAX_PLUGIN_BYTES);
    }

    #[test]
    fn zstd_bomb_is_refused() {
        let bomb = pack(&vec![0; 64 * 1024 * 1024]);
        assert!(bomb.len() < 64 * 1024, "the bomb has {} bytes", bomb.len());
        let error = unpack(&bomb, Path::new("bomb.wasm.zst")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "bomb.wasm.zst is larger than the 16777216 bytes that it may have"
        );
    }

    /// RFC 8878 §3.1.1.1: magic, a descriptor for "no single segment, no size", and a window of 2 TiB.
    #[test]
    fn zstd_stream_with_huge_window_is_refused_before_allocation() {
        let error = unpack(&[0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xff, 1, 0, 0], Path::new("p")).unwrap_err();
        assert!(matches!(error, Error::PluginPacked { .. }), "{error}");
    }

    #[test]
    fn packed_plugin_is_refused_when_invalid_or_truncated() {
        let packed = pack(b"some bytes that are long enough to be cut");
        for bytes in [&b""[..], b"\0asm", &packed[..packed.len() / 2]] {
            let error = unpack(bytes, Path::new("x.wasm.zst")).unwrap_err();
            assert!(error.to_string().contains("is not a whole zstd stream"), "{error}");
        }
    }
}
