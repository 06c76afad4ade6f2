use serde::Deserialize;

/// `triggerPolicy` of a `CircuitBreaker`'s rule: the condition that opens it, and thus the plugin that handles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum TriggerPolicy {
    /// The bucket and the results of requests open the breaker. For circuit-breaker, like the two below.
    Normal,
    /// The rule only limits, and opens nothing. For rate-limit.
    LimiterOnly,
    ForceOpened,
    ForceClosed,
}
