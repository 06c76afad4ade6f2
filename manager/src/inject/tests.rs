//! Pods before and after, and pods that are refused.

mod golden;
mod refused;
