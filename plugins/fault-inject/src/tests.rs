//! Tests of all modules, by family of faults. A test is named after the id that it covers: FI-* are features of a FaultInjection, the
//! others are from the catalogue.

mod admission;
mod catalogue;
mod crd;
mod draw;
mod effective_time;
mod identity;
mod limits;
mod locks;
mod network;
mod presets;
mod reads;
mod responses;
mod reuse;
mod server;
mod settings;
mod support;
mod watches;
