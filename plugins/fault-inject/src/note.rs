//! What was decided with a request for its response, as the number that the host keeps with the request.

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// Its place among the rules, below 255.
    pub(crate) rule: u8,
    /// Tells it from another rule in that place.
    pub(crate) mark: u16,
    /// The act's number in the rule.
    pub(crate) act: u8,
    /// Milliseconds, if the act waits.
    pub(crate) drawn_ms: u32,
}

impl Note {
    /// From the lowest bits: 8 place (1 is the first; 0: nothing was decided), 16 mark, 8 act, 32 milliseconds.
    pub(crate) fn encode(self) -> u64 {
        (u64::from(self.rule) + 1)
            | (u64::from(self.mark) << 8)
            | (u64::from(self.act) << 24)
            | (u64::from(self.drawn_ms) << 32)
    }

    /// `None`: nothing was decided.
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
