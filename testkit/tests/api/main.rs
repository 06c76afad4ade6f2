//! The API server as clients see it: kube-rs, its watcher and controller parts, and plain HTTP. One binary, so that the
//! clients are linked once.

// For clippy, which lets only test code panic, and takes a test binary for one only where it says so.
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
