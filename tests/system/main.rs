//! The real sidecar process against the test kit: what a controller behind it sees.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod acknowledgement;
mod admin;
mod awaited;
mod bad_chain;
mod bad_clients;
mod breaking;
mod circuits;
mod circuits_control;
mod client_memory;
mod consistent_reads;
mod descriptors;
mod drain;
mod external;
mod external_api_server;
mod external_connections;
mod external_limits;
mod external_rules;
mod external_tunnels;
mod faults;
mod faults_choice;
mod faults_network;
mod faults_watches;
mod handover;
mod idle;
mod late_ends;
mod leading;
mod limits;
mod limits_reload;
mod limits_rules;
mod locks;
mod memory;
mod narrowing;
mod outcomes;
mod paths;
mod plugin_faults;
mod plugin_memory;
mod plugin_metrics;
mod reload;
mod restarts;
mod settings;
mod sharding;
mod status;
mod swaps;
mod tls;
mod touched;
mod transparency;
mod unread_bodies;
mod upgrades;
mod upstream;
mod verdicts;
mod watches;
