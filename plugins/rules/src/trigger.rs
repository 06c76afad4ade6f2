use serde::Deserialize;

/// `triggerPolicy` of a CircuitBreaker's rule: what opens it, and so which plugin it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum TriggerPolicy {
    /// Its bucket and what comes back; for circuit-breaker, as those below.
    Normal,
    /// Nothing: it limits only. For rate-limit.
    LimiterOnly,
    /// A person: it is open.
    ForceOpened,
    /// Nothing: it is closed.
    ForceClosed,
}
