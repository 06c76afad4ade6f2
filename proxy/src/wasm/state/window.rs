//! A sliding window: a ring of slots, of which the oldest is dropped as time passes.

use super::StateError;

/// Maximum number of slots of a window.
const MAX_SLOTS: u32 = 64;

/// A sum over the last `length_ms`, in steps of one slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Window {
    length_ms: u32,
    /// One sum for each slot; slot number `n` of all time is at `n % len`.
    slots: Vec<u64>,
    /// Number of the newest slot.
    newest: u64,
}

impl Window {
    /// Refuses a window without length, or with other than 1 to [`MAX_SLOTS`] slots.
    pub(super) const fn check(length_ms: u32, slots: u32) -> Result<(), StateError> {
        if length_ms == 0 || slots == 0 || slots > MAX_SLOTS {
            Err(StateError::Invalid)
        } else {
            Ok(())
        }
    }

    /// An empty window of a shape that [`Window::check`] accepts.
    pub(super) fn new(length_ms: u32, slots: u32, now_ms: u64) -> Self {
        Self {
            length_ms,
            slots: vec![0; slots as usize],
            newest: slot_number(length_ms, slots, now_ms),
        }
    }

    /// Whether the window has this shape. A window that changes its shape starts empty, because sums of other slots are not comparable.
    pub(super) const fn has_shape(&self, length_ms: u32, slots: u32) -> bool {
        self.length_ms == length_ms && self.slots.len() == slots as usize
    }

    /// Adds to the current slot and returns the sum over the window, both saturating.
    pub(super) fn add(&mut self, amount: u64, now_ms: u64) -> u64 {
        self.advance_to(now_ms);
        let count = self.slots.len() as u64;
        let slot = self
            .newest
            .checked_rem(count)
            .and_then(|index| self.slots.get_mut(index as usize));
        if let Some(slot) = slot {
            *slot = slot.saturating_add(amount);
        }
        self.sum()
    }

    /// Whether the window is equal to an unused one.
    pub(super) fn is_empty(&mut self, now_ms: u64) -> bool {
        self.advance_to(now_ms);
        self.sum() == 0
    }

    fn sum(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(*slot))
    }

    /// Empties the slots that are older than the window.
    fn advance_to(&mut self, now_ms: u64) {
        let count = self.slots.len() as u64;
        let now = slot_number(self.length_ms, self.slots.len() as u32, now_ms);
        let passed = now.saturating_sub(self.newest).min(count);
        for step in 1..=passed {
            // The last `passed` slots up to `now`, wherever they are in the ring.
            let number = now - (passed - step);
            if let Some(slot) = number
                .checked_rem(count)
                .and_then(|index| self.slots.get_mut(index as usize))
            {
                *slot = 0;
            }
        }
        self.newest = self.newest.max(now);
    }
}

/// Slots are equal parts of the length even if it does not divide evenly, so they are counted by a fraction.
fn slot_number(length_ms: u32, slots: u32, now_ms: u64) -> u64 {
    let number = (u128::from(now_ms) * u128::from(slots))
        .checked_div(u128::from(length_ms))
        .unwrap_or(0);
    u64::try_from(number).unwrap_or(u64::MAX)
}
