//! One rule: what it matches, and what it claims from the host for a request.

use ctrlmesh_plugin_rules::{BucketRule, Key, Rules, checked_name, is_long_running};
use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{Ask, Bucket, Claim, Place, Request};

use crate::settings::Rule;

/// Longest wait that the host allows for (`wit/host.wit`).
const MAX_QUEUE_MS: u64 = 60_000;
#[derive(Debug)]
pub(crate) struct Limiter {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    key: Key,
    bucket: Option<Bucket>,
    max_in_flight: Option<u32>,
    queue_ms: u32,
}

/// The counter in which a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// The counter of the rule's key.
    Own,
    /// The counter that all keys share for which the host has no room.
    Overflow,
}

impl Limiter {
    pub(crate) fn new(rule: &Rule) -> Result<Self, Invalid> {
        if rule.bucket.is_none() && rule.max_in_flight.is_none() {
            return Err(Invalid::new("missing; a limit is a bucket, maxInFlight, or both").field("bucket"));
        }
        if rule.max_in_flight == Some(0) {
            let message = "0 would refuse everything; to do so, use circuit-breaker with triggerPolicy ForceOpened";
            return Err(Invalid::new(message).field("maxInFlight"));
        }
        let rules = Rules::required(
            rule.resource_rules.as_deref(),
            rule.non_resource_rules.as_deref(),
            rule.rest_rules.as_deref(),
        )?;
        let bucket = rule.bucket.as_ref().map(BucketRule::validate).transpose();
        let name = checked_name(&rule.name).map_err(|error| error.field("name"))?;
        Ok(Self {
            name: name.to_owned(),
            rules,
            key: rule.key,
            bucket: bucket.map_err(|error| error.field("bucket"))?,
            max_in_flight: rule.max_in_flight,
            queue_ms: queue_ms(rule).map_err(|error| error.field("queue"))?,
        })
    }

    pub(crate) fn has_queue(&self) -> bool {
        self.queue_ms > 0
    }

    /// The token that this request takes.
    pub(crate) fn token_request(&self, req: &dyn Request, share: Share) -> Option<Ask> {
        let bucket = self.bucket?;
        let claim = Claim {
            key: self.state_key("tokens", req, share),
            bucket,
            tokens: 1,
        };
        Some(Ask {
            claim,
            max_wait_ms: self.queue_ms,
        })
    }

    /// The place that this request holds until it is over. A watch holds none: a controller's open watches would leave no place for other
    /// requests.
    pub(crate) fn in_flight_place(&self, req: &dyn Request, share: Share) -> Option<Place> {
        let max = self.max_in_flight.filter(|_| !is_long_running(req))?;
        Some(Place {
            key: self.state_key("places", req, share),
            max,
        })
    }

    pub(crate) fn max_in_flight(&self) -> u32 {
        self.max_in_flight.unwrap_or_default()
    }

    /// Builds a state key from the rule's name instead of its index, so that an edit of another rule changes nothing. A name has no line
    /// break, so that no two rules share a key.
    fn state_key(&self, kind: &str, req: &dyn Request, share: Share) -> String {
        match share {
            Share::Own => format!("{kind}\n{}\n{:?}\n{}", self.name, self.key, self.key.value(req)),
            Share::Overflow => format!("{kind}\n{}", self.name),
        }
    }
}

fn queue_ms(rule: &Rule) -> Result<u32, Invalid> {
    let Some(queue) = rule.queue else {
        return Ok(0);
    };
    if rule.bucket.is_none() {
        let message = "requests wait for tokens of a bucket, and this rule has none: nobody knows when a place of \
                       maxInFlight is free; remove this, or add a bucket";
        return Err(Invalid::new(message));
    }
    let queue_ms = queue.as_millis_ceil();
    if queue_ms > MAX_QUEUE_MS {
        return Err(Invalid::new("at most 60s: clients give up before"));
    }
    Ok(u32::try_from(queue_ms).unwrap_or_default())
}
