//! Renames in a watch, event by event, as the bytes come in.

use super::{Rename, RenameError, json, protobuf};
use crate::WatchEncoding;

/// Largest event, in bytes: an API server takes no object above 3 MiB, and JSON of a protobuf object can be larger.
pub const MAX_WATCH_EVENT_BYTES: usize = 8 * 1024 * 1024;

/// Largest buffer that is kept while no event is unfinished: watches of locks are idle for hours.
const MAX_IDLE_BYTES: usize = 8 * 1024;

/// Length of the big-endian number before each protobuf event.
const PREFIX_BYTES: usize = 4;

/// Takes the body of a watch in chunks of any size and gives whole events, renamed. Buffers at most one unfinished
/// event of [`MAX_WATCH_EVENT_BYTES`]; a finished one is never delayed.
#[derive(Debug)]
pub struct WatchRenamer {
    encoding: WatchEncoding,
    rename: Rename,
    pending: Vec<u8>,
    json: JsonFrames,
}

impl WatchRenamer {
    /// `rename` goes from the API server's name to the client's.
    #[must_use]
    pub fn new(encoding: WatchEncoding, rename: Rename) -> Self {
        Self {
            encoding,
            rename,
            pending: Vec::new(),
            json: JsonFrames::default(),
        }
    }

    /// Takes a chunk; gives the events that it completes, possibly none.
    ///
    /// # Errors
    /// When an event is broken or too large, or the encoding is CBOR. The watch has to end then.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Vec<u8>, RenameError> {
        self.push_seen(chunk, |_| {})
    }

    /// Does the same as [`Self::push`], and shows each event as it came, without the length before it.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_seen(&mut self, chunk: &[u8], mut see: impl FnMut(&[u8])) -> Result<Vec<u8>, RenameError> {
        self.pending.extend_from_slice(chunk);
        let mut out = Vec::with_capacity(chunk.len());
        let mut done = 0;
        while let Some(length) = self.frame_length(done)? {
            let frame = self.pending.get(done..done + length).unwrap_or_default();
            match self.encoding {
                WatchEncoding::Json => {
                    put_json(&mut out, frame, &self.rename)?;
                    see(frame);
                }
                _ => {
                    put_protobuf(&mut out, frame, &self.rename)?;
                    see(frame.get(PREFIX_BYTES..).unwrap_or_default());
                }
            }
            done += length;
        }
        self.pending.drain(..done);
        if self.pending.is_empty() {
            self.pending.shrink_to(MAX_IDLE_BYTES);
        }
        if self.pending.len() > PREFIX_BYTES + MAX_WATCH_EVENT_BYTES {
            Err(RenameError::EventTooLarge)
        } else {
            Ok(out)
        }
    }

    /// Whether an event is unfinished: the stream must not end here.
    #[must_use]
    pub fn is_mid_event(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Length of the complete frame that starts at `start`, if there is one.
    fn frame_length(&mut self, start: usize) -> Result<Option<usize>, RenameError> {
        let rest = self.pending.get(start..).unwrap_or_default();
        match self.encoding {
            WatchEncoding::Json => self.json.next(rest),
            WatchEncoding::Protobuf => protobuf_frame(rest),
            WatchEncoding::Cbor => Err(RenameError::Unsupported("application/cbor-seq".to_owned())),
        }
    }
}

fn protobuf_frame(rest: &[u8]) -> Result<Option<usize>, RenameError> {
    let Some(prefix) = rest.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
    if length > MAX_WATCH_EVENT_BYTES {
        return Err(RenameError::EventTooLarge);
    }
    Ok((rest.len() >= PREFIX_BYTES + length).then_some(PREFIX_BYTES + length))
}

fn put_json(out: &mut Vec<u8>, frame: &[u8], rename: &Rename) -> Result<(), RenameError> {
    let is_white_space = frame.first().is_some_and(u8::is_ascii_whitespace);
    let renamed = if is_white_space {
        None
    } else {
        json::rename_watch_event(frame, rename)?
    };
    out.extend_from_slice(renamed.as_deref().unwrap_or(frame));
    Ok(())
}

fn put_protobuf(out: &mut Vec<u8>, frame: &[u8], rename: &Rename) -> Result<(), RenameError> {
    let event = frame.get(PREFIX_BYTES..).unwrap_or_default();
    match protobuf::rename_watch_event(event, rename)? {
        Some(renamed) => {
            let length = u32::try_from(renamed.len()).map_err(|_| RenameError::EventTooLarge)?;
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&renamed);
        }
        None => out.extend_from_slice(frame),
    }
    Ok(())
}

/// Finds the ends of JSON events, looking at each byte once however the chunks are cut.
#[derive(Debug, Default)]
struct JsonFrames {
    scanned: usize,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
}

impl JsonFrames {
    /// Length of the object, or of the white space between two, at the start of `rest`.
    fn next(&mut self, rest: &[u8]) -> Result<Option<usize>, RenameError> {
        for (index, &byte) in rest.iter().enumerate().skip(self.scanned) {
            self.scanned = index + 1;
            if self.ends_frame(byte)? {
                self.scanned = 0;
                return Ok(Some(index + 1));
            }
        }
        Ok(None)
    }

    fn ends_frame(&mut self, byte: u8) -> Result<bool, RenameError> {
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return Ok(false);
        }
        match byte {
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth == 1 => {
                self.depth = 0;
                return Ok(true);
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b'"' if self.depth > 0 => self.is_in_string = true,
            _ if self.depth > 0 => {}
            // Clients that read by lines wait for the line feed, so it must not wait for the next event.
            _ if byte.is_ascii_whitespace() => return Ok(true),
            _ => {
                let problem = "something else than an object";
                return Err(RenameError::Malformed {
                    format: "JSON watch",
                    problem,
                    position: 0,
                });
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests;
