//! Parses the frames of an HTTP/2 client just far enough to know whether a header block has begun and not ended (RFC 9113 §4.1, §6.2,
//! §6.10). Until it ends no request is visible, and `h2` holds the bytes that have arrived.
//!
//! `h2` decodes blocks as long as there are bytes to read, before any request is handled. A byte of a block may become a field of a hundred
//! bytes, so blocks are read in portions, and the requests of one are handled before the next is read.

const PREFACE_LENGTH: usize = 24;
const HEADERS: u8 = 0x1;
const CONTINUATION: u8 = 0x9;
const END_HEADERS: u8 = 0x4;

/// Bytes of header blocks that are read before their requests are handled.
const PORTION: usize = 4 << 10;

/// Position of the client in the stream of frames.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    /// Bytes left of the preface or of a payload.
    left: usize,
    /// The head of the next frame, and how many of its bytes have arrived.
    head: [u8; 9],
    has: usize,
    /// Bytes of the open block that have arrived; `None` if no block is open.
    block: Option<usize>,
    /// Whether the current frame is the last of its block.
    is_last: bool,
    /// Bytes of blocks that were read since the last portion.
    portion: usize,
}

impl HeaderBlock {
    pub(super) const fn new() -> Self {
        Self {
            left: PREFACE_LENGTH,
            head: [0; 9],
            has: 0,
            block: None,
            is_last: false,
            portion: 0,
        }
    }

    /// Whether a portion has been read since the last one. Then the requests in it must be handled before more is read.
    pub(super) fn ends_portion(&mut self) -> bool {
        let is_full = self.portion >= PORTION;
        if is_full {
            self.portion = 0;
        }
        is_full
    }

    /// Parses bytes as they arrive. Returns the size of the block that is open after them, if any.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<usize> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let passed = self.left.min(bytes.len());
                bytes = bytes.get(passed..).unwrap_or_default();
                self.left -= passed;
                if let Some(block) = &mut self.block {
                    *block += passed;
                    self.portion += passed;
                }
                self.end_frame();
                continue;
            }
            if let Some(byte) = self.head.get_mut(self.has) {
                *byte = *first;
            }
            bytes = rest;
            self.has += 1;
            if self.has == self.head.len() {
                self.begin_frame();
            }
        }
        self.block
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.has = 0;
        self.left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if matches!(kind, HEADERS | CONTINUATION) {
            self.block.get_or_insert(0);
            self.is_last = flags & END_HEADERS != 0;
        }
        self.end_frame();
    }

    /// Within a block no other frames are allowed.
    fn end_frame(&mut self) {
        if self.left == 0 && self.is_last {
            self.block = None;
            self.is_last = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame_bytes(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let [.., high, middle, low] = length.to_be_bytes();
        let mut frame = vec![high, middle, low, kind, flags, 0, 0, 0, 1];
        frame.resize(9 + length, kind);
        frame
    }

    fn open_block_after(frames: &[Vec<u8>]) -> Option<usize> {
        let mut block = HeaderBlock::new();
        block.read(&[0; PREFACE_LENGTH]);
        block.read(&frames.concat())
    }

    #[test]
    fn block_is_open_until_its_last_frame_is_whole() {
        let (data, ping) = (frame_bytes(0, 1, 100), frame_bytes(6, 0, 8));
        assert_eq!(open_block_after(&[data.clone(), ping.clone()]), None);
        assert_eq!(
            open_block_after(&[frame_bytes(HEADERS, END_HEADERS, 50), data.clone()]),
            None
        );
        assert_eq!(open_block_after(&[data.clone(), frame_bytes(HEADERS, 0, 50)]), Some(50));
        assert_eq!(
            open_block_after(&[frame_bytes(HEADERS, 0, 50), frame_bytes(CONTINUATION, 0, 70)]),
            Some(120)
        );
        assert_eq!(
            open_block_after(&[frame_bytes(HEADERS, 0, 50), frame_bytes(CONTINUATION, END_HEADERS, 0)]),
            None
        );
        let mut cut = frame_bytes(HEADERS, END_HEADERS, 50);
        cut.truncate(20);
        assert_eq!(open_block_after(&[ping, cut]), Some(11));
    }

    #[test]
    fn portion_ends_after_blocks_of_its_size() {
        let mut block = HeaderBlock::new();
        block.read(&[0; PREFACE_LENGTH]);
        block.read(&frame_bytes(0, 1, 4 * PORTION));
        assert!(!block.ends_portion(), "bodies do not count");
        for _ in 0..2 {
            block.read(&frame_bytes(HEADERS, END_HEADERS, PORTION / 2));
            assert!(!block.ends_portion());
            block.read(&frame_bytes(HEADERS, 0, PORTION / 2));
            block.read(&frame_bytes(CONTINUATION, END_HEADERS, 0));
            assert!(block.ends_portion() && !block.ends_portion());
        }
    }

    proptest! {
        #[test]
        fn header_block_is_tracked_regardless_of_fragmentation(cuts in proptest::collection::vec(1_usize..40, 0..60), last in 0_u8..2) {
            let frames = [
                vec![0; PREFACE_LENGTH], frame_bytes(4, 0, 12), frame_bytes(HEADERS, END_HEADERS, 30),
                frame_bytes(0, 1, 300), frame_bytes(HEADERS, 0, 40), frame_bytes(CONTINUATION, last * END_HEADERS, 20),
            ];
            let all = frames.concat();
            let mut block = HeaderBlock::new();
            let mut rest = &all[..];
            for cut in cuts {
                let (piece, left) = rest.split_at(cut.min(rest.len()));
                block.read(piece);
                rest = left;
            }
            let open = block.read(rest);
            prop_assert_eq!(open, (last == 0).then_some(60));
        }
    }
}
