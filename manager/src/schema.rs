//! Schemas of CustomResourceDefinitions, made fit for an API server.

mod tidy;

pub(crate) use tidy::tidy;
