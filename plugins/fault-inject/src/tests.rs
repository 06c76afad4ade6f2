//! Tests of all modules, by family of faults. A test is named after the id of what it shows: FI-* of a FaultInjection's
//! features, the others of the catalogue.

mod admission;
mod answers;
mod catalogue;
mod crd;
mod draw;
mod identity;
mod kit;
mod limits;
mod locks;
mod network;
mod presets;
mod reads;
mod server;
mod settings;
mod watches;
mod window;
