use serde::Deserialize;

/// `triggerPolicy` of a CircuitBreaker's rule: what opens it, and thus which plugin it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum TriggerPolicy {
    /// Its bucket and the results of requests. For circuit-breaker, like the two below.
    Normal,
    /// Nothing: it only limits. For rate-limit.
    LimiterOnly,
    /// Always open.
    ForceOpened,
    /// Always closed.
    ForceClosed,
}
