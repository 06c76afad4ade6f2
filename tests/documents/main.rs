//! What the documents claim exists.

mod operating;
mod parity;
