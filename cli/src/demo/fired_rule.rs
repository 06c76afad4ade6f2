//! How often a fault rule fired, and how the controllers reacted.

use serde::Serialize;

/// A rule of `fault-inject.yaml`, and its effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FiredRule {
    pub(crate) rule: &'static str,
    /// Requests that the rule matched, by `/status` of the sidecars.
    pub(crate) matched: u64,
    /// How often the rule fired, by `/status` of the sidecars.
    pub(crate) fired: u64,
    /// How the controllers reacted.
    pub(crate) effect: String,
}
