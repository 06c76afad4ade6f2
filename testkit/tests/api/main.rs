//! The API server as clients see it: kube-rs with its watcher and controller, and plain HTTP. One binary, so that the clients are linked
//! once.

// Clippy allows panics in test code only, and recognizes a test binary only by this attribute.
#![cfg(test)]

mod apply;
mod connections;
mod discovery;
mod faults;
mod kube_client;
mod lists;
mod objects;
mod outage;
mod patches;
mod protobuf;
mod refusals;
mod support;
mod upgrades;
mod watches;
