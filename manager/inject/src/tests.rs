//! Pods before and after, and pods that are refused.

mod brought;
mod defaults;
mod external;
mod golden;
mod past;
mod refused;
