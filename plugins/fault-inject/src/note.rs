//! The decision made with a request for its response, encoded in the number that the host keeps with the request.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// Index of the rule, below 255.
    pub(crate) rule: u8,
    /// Distinguishes the rule from another one at the same index.
    pub(crate) mark: u16,
    /// Number of the act in the rule.
    pub(crate) act: u8,
    /// Milliseconds, if the act waits.
    pub(crate) drawn_ms: u32,
}

impl Note {
    /// From the lowest bits: 8 index (1 is the first; 0: no decision), 16 mark, 8 act, 32 milliseconds.
    pub(crate) fn encode(self) -> u64 {
        (u64::from(self.rule) + 1)
            | (u64::from(self.mark) << 8)
            | (u64::from(self.act) << 24)
            | (u64::from(self.drawn_ms) << 32)
    }

    /// Returns `None` if there was no decision.
    pub(crate) fn decode(note: u64) -> Option<Self> {
        let [place, mark_low, mark_high, act, ms @ ..] = note.to_le_bytes();
        Some(Self {
            rule: place.checked_sub(1)?,
            mark: u16::from_le_bytes([mark_low, mark_high]),
            act,
            drawn_ms: u32::from_le_bytes(ms),
        })
    }
}
