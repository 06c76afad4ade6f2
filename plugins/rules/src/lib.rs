//! The matches of a rule of rate-limit, circuit-breaker, fault-inject and trim-objects: requests to the Kubernetes API by resource or by
//! path, and calls to external services by URL, host, path, method and headers. The fields are those of the CRDs `CircuitBreaker` and
//! `FaultInjection` (`ctrlmesh.kusionstack.io/v1alpha1`), in both shapes of the latter.
//!
//! | file | holds |
//! |---|---|
//! | `subscription` | the subscription of all rules of a plugin |
//! | `rules` | the compiled matches of one rule |
//! | `resource` | matches of requests by resource |
//! | `non_resource` | matches of requests by path |
//! | `rest` | matches of calls to external services |
//! | `url` | patterns for URLs |
//! | `pattern` | patterns with `*` at one end, and absent lists |
//! | `endpoint` | hosts and ports |
//! | `limit` | fields of a CircuitBreaker's rule besides its matches |
//! | `duration` | durations as Go writes them |
//!
//! Flow: a plugin parses its settings into [`ResourceRule`], [`NonResourceRule`] and [`RestRule`], compiles them once into
//! [`Rules`], one for each rule of its own, subscribes to [`match_rules`] of all of them, and asks [`Rules::matches`] for each
//! request.
//!
//! Guarantees:
//! - Every rule is evaluated independently; a specific rule never hides a general one.
//! - The subscription includes everything that matches, and keeps the interface's bounds.
//! - A request for a leader-election lock matches only if a rule names its resource; a wildcard does not match it.
//!
//! Assumptions: names in `facts` are as the host parsed them; host names are in lower case.

mod duration;
mod endpoint;
mod limit;
mod non_resource;
mod pattern;
mod resource;
mod rest;
mod rules;
mod subscription;
#[cfg(test)]
mod tests;
mod url;

pub use duration::GoDuration;
pub use endpoint::HostPattern;
pub use limit::{BucketRule, Key, TriggerPolicy};
pub use non_resource::NonResourceRule;
pub use pattern::{Lists, TextPatterns};
pub use resource::{ResourceRule, is_long_running, verb_name};
pub use rest::{HeaderRule, OneOrMany, RestRule, TextRule};
pub use rules::{Rules, checked_name};
pub use subscription::match_rules;
