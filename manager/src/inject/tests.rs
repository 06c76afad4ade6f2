//! Pods before and after, and pods that are refused.

mod defaults;
mod golden;
mod past;
mod refused;
