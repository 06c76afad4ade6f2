//! The template that a new plugin starts from: compiled here as it is, with its own tests.

#[path = "../template/src/lib.rs"]
mod template;
