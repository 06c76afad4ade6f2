//! Compares the documents with the code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod dependencies;
mod filtering_cases;
mod glossary;
mod interface;
mod logs;
mod messages;
mod objects;
mod operating;
mod parity;
mod paths;
mod reasons;
mod reference;
mod rooms;
mod tables;
mod workflows;
