//! What the documents claim exists.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::too_many_lines,
    reason = "a test fails by panicking; its story is told in one piece"
)]

mod operating;
mod parity;
