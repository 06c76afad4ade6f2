//! Fields of a CircuitBreaker's rule besides its matches: trigger policy, token bucket and key.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{Bucket, Request, Traffic};
use serde::Deserialize;

use crate::GoDuration;

/// Maximum length of a key's value. Longer ones are cut, and those with the same beginning share a key. The host's keys have at most 640
/// bytes.
const MAX_KEY_BYTES: usize = 256;

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

/// A token bucket as a person writes it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BucketRule {
    /// Tokens that are refilled every interval.
    pub limit: u32,
    /// Refill interval, in whole milliseconds.
    pub interval: GoDuration,
    /// Maximum number of tokens.
    pub burst: u32,
}

impl BucketRule {
    /// Validates the bucket for the host.
    ///
    /// # Errors
    ///
    /// If a field is invalid. A limit of 0, which the CRD's validation accepts, is an error as well: such a bucket grants its burst and
    /// then never again.
    pub fn validate(&self) -> Result<Bucket, Invalid> {
        if self.limit == 0 {
            let message = "0 brings no token back, ever; write 1 with a long interval, or use circuit-breaker with \
                           triggerPolicy ForceOpened";
            return Err(Invalid::new(message).field("limit"));
        }
        if self.burst == 0 {
            return Err(Invalid::new("0 would refuse everything; write at least 1").field("burst"));
        }
        let duration = self.interval.0;
        let is_whole = duration.subsec_nanos().is_multiple_of(1_000_000) && !duration.is_zero();
        let interval_ms = u32::try_from(duration.as_millis()).ok().filter(|_| is_whole);
        let Some(interval_ms) = interval_ms else {
            return Err(Invalid::new("write whole milliseconds, from 1ms to 1193h").field("interval"));
        };
        Ok(Bucket {
            limit: self.limit,
            interval_ms,
            burst: self.burst,
        })
    }
}

/// The key of a rule: one limit or breaker for each namespace, resource, host or user agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Key {
    /// No key: one limit or breaker for the whole sidecar.
    #[default]
    Sidecar,
    /// By namespace. Cluster scope and lists over all namespaces share one value; calls to external services share another.
    Namespace,
    /// By group and resource, without subresource; for calls to external services like `Host`.
    Resource,
    /// By host and port. All requests to the API server share one value.
    Host,
    /// By the `User-Agent` header, which clients choose: no protection against one that lies.
    UserAgent,
}

impl Key {
    /// The value for this request; at most 256 bytes.
    #[must_use]
    pub fn value(self, req: &dyn Request) -> String {
        let is_external = || req.traffic() == Traffic::External;
        let mut value = match self {
            Self::Sidecar => String::new(),
            Self::Namespace => req.namespace().to_owned(),
            Self::Resource if !is_external() => format!("{}/{}", req.group(), req.resource()),
            Self::Host if !is_external() => String::new(),
            Self::Resource | Self::Host => format!("{}:{}", req.host(), req.port()),
            Self::UserAgent => req.user_agent(),
        };
        let end = value.floor_char_boundary(MAX_KEY_BYTES);
        value.truncate(end);
        value
    }
}
