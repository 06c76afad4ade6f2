//! The real sidecar process against the test kit: what a controller behind it sees.

mod admin;
mod bad_chain;
mod bad_clients;
mod drain;
mod locks;
mod outcomes;
mod plugin_faults;
mod reload;
mod sharding;
mod tls;
mod transparency;
mod upgrades;
mod upstream;
mod verdicts;
mod watches;
