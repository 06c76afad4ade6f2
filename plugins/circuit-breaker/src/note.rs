//! What a request carries from its beginning to its end, in the one number that the host keeps with it: under which epoch
//! it was admitted, by which settings, and for which rules it is a probe.

/// Rules of an entry: each has a bit.
pub(crate) const MAX_RULES: usize = 24;

/// 32 bits of epoch, 8 of settings, 24 of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    /// Number of changes of state in this entry before the request came.
    pub(crate) epoch: u32,
    /// Which settings numbered the rules.
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
        self.probes |= bit(rule);
    }

    pub(crate) fn is_probe(self, rule: usize) -> bool {
        self.probes & bit(rule) != 0
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

fn bit(rule: usize) -> u32 {
    if rule < MAX_RULES { 1 << rule } else { 0 }
}

/// FNV-1a (Fowler, Noll, Vo): short, and the same in every build.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
