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
mod attribution;
mod await_entry;
mod bad_chain;
mod bad_clients;
mod breakers;
mod breakers_control;
mod chain_swaps;
mod changed_shard;
mod client_memory;
mod collection_deletes;
mod combined_limits;
mod connection_verdicts;
mod consistent_reads;
mod descriptors;
mod drain;
mod dropped_fields;
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
mod hash_ranges;
mod idle;
mod idle_buffers;
mod in_flight_requests;
mod invalid_flags;
mod kept_lists;
mod kept_objects;
mod kept_objects_gzip;
mod kept_plugins;
mod kept_watches;
mod late_stream_ends;
mod leader_status;
mod limits;
mod limits_reload;
mod limits_rules;
mod list_pages;
mod locks;
mod objects_phase;
mod on_complete;
mod paths;
mod plugin_faults;
mod plugin_memory;
mod plugin_metrics;
mod plugin_state;
mod reload;
mod restarts;
mod reuse;
mod sharding;
mod status;
mod tls;
mod transparency;
mod unread_bodies;
mod upgrades;
mod upstream;
mod verdicts;
mod watches;
mod write_fence;
