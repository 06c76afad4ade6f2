//! The note of a request, from start to end, in the one number that the host keeps with it: the epoch and the settings under which it was
//! admitted, and the rules for which it is a probe.

/// Maximum of rules in an entry: each needs a bit.
pub(crate) const MAX_RULES: usize = 24;

/// Packed into 32 bits of epoch, 8 of settings, 24 of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// Number of state changes in this entry before the request.
    pub(crate) epoch: u32,
    /// Identifies the settings that numbered the rules.
    pub(crate) settings: u8,
    probes: u32,
}

impl Note {
    pub(crate) fn new(epoch: u32, settings: u8) -> Self {
        Self {
            epoch,
            settings,
            probes: 0,
        }
    }

    pub(crate) fn mark_probe(&mut self, rule: usize) {
        self.probes |= probe_bit(rule);
    }

    pub(crate) fn is_probe(self, rule: usize) -> bool {
        self.probes & probe_bit(rule) != 0
    }

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(self.settings) << 24 | u64::from(self.probes)
    }

    pub(crate) fn unpack(note: u64) -> Self {
        let [.., settings, a, b, c] = note.to_be_bytes();
        Self {
            epoch: (note >> 32) as u32,
            settings,
            probes: u32::from_be_bytes([0, a, b, c]),
        }
    }
}

fn probe_bit(rule: usize) -> u32 {
    if rule < MAX_RULES { 1 << rule } else { 0 }
}

/// FNV-1a (Fowler, Noll, Vo): short, and the same in every build.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
