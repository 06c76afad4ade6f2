//! Pods before and after injection, and pods that are rejected.

mod bypass;
mod defaults;
mod external;
mod golden;
mod preset_fields;
mod refused;
mod rejections;
