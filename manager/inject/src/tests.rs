//! Pods before and after injection, and pods that are rejected.

mod brought;
mod defaults;
mod external;
mod golden;
mod past;
mod refused;
