//! One rule: what it matches, and what it asks of the host for a request.

use ctrlmesh_plugin_rules::{Key, Lists, Rules};
use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{Ask, Bucket, Claim, Facts, Place, Request, Verb};

use crate::settings::{BucketRule, Rule};

/// Longest name: it is part of every key of the host's state, of a metric's label, and of answers.
const MAX_NAME_BYTES: usize = 128;
/// Longest wait that the host allows for (`wit/host.wit`).
const MAX_QUEUE_MS: u64 = 60_000;
/// Subresources whose requests last as long as the client likes (kube-apiserver, `--max-requests-inflight` exempts them).
const LONG_RUNNING: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// A rule, checked.
#[derive(Debug)]
pub(crate) struct Limiter {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    key: Key,
    bucket: Option<Bucket>,
    max_in_flight: Option<u32>,
    queue_ms: u32,
}

/// Where a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// By the rule's key.
    Own,
    /// Together with all that the host had no room for.
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
        Ok(Self {
            name: name(&rule.name).map_err(|error| error.field("name"))?,
            rules: rules(rule)?,
            key: rule.key,
            bucket: rule
                .bucket
                .as_ref()
                .map(bucket)
                .transpose()
                .map_err(|error| error.field("bucket"))?,
            max_in_flight: rule.max_in_flight,
            queue_ms: queue_ms(rule).map_err(|error| error.field("queue"))?,
        })
    }

    /// Whether requests may wait for a token.
    pub(crate) fn has_queue(&self) -> bool {
        self.queue_ms > 0
    }

    /// The token that this request costs.
    pub(crate) fn ask(&self, req: &dyn Request, share: Share) -> Option<Ask> {
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

    /// The place that this request holds until it is over. A watch holds none: a controller's open watches would leave no
    /// place for anything else.
    pub(crate) fn place(&self, req: &dyn Request, share: Share) -> Option<Place> {
        let max = self.max_in_flight.filter(|_| !is_long_running(req.facts()))?;
        Some(Place {
            key: self.state_key("places", req, share),
            max,
        })
    }

    /// Why a place was not free.
    pub(crate) fn max_in_flight(&self) -> u32 {
        self.max_in_flight.unwrap_or_default()
    }

    /// By the rule's name and not by its place in the list, so that an edit of another rule changes nothing. A name has no
    /// line break, so no two rules can mean the same key.
    fn state_key(&self, kind: &str, req: &dyn Request, share: Share) -> String {
        match share {
            Share::Own => format!("{kind}\n{}\n{:?}\n{}", self.name, self.key, self.key.value(req)),
            Share::Overflow => format!("{kind}\n{}", self.name),
        }
    }
}

fn is_long_running(facts: &Facts) -> bool {
    matches!(facts.verb, Verb::Watch | Verb::Proxy) || LONG_RUNNING.contains(&facts.subresource.as_str())
}

fn name(name: &str) -> Result<String, Invalid> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
        let message = format!("{name:?} is no name; write 1 to {MAX_NAME_BYTES} characters without line breaks");
        return Err(Invalid::new(message));
    }
    Ok(name.to_owned())
}

fn rules(rule: &Rule) -> Result<Rules, Invalid> {
    let mut rules = Rules::default();
    let resources = rule.resource_rules.as_deref().unwrap_or_default();
    let added = rules.add_resources(resources, Lists::Required);
    added.map_err(|error| error.field("resourceRules"))?;
    let non_resources = rule.non_resource_rules.as_deref().unwrap_or_default();
    let added = rules.add_non_resources(non_resources, Lists::Required);
    added.map_err(|error| error.field("nonResourceRules"))?;
    let added = rules.add_rests(rule.rest_rules.as_deref().unwrap_or_default(), Lists::Required);
    added.map_err(|error| error.field("restRules"))?;
    Ok(rules)
}

fn bucket(written: &BucketRule) -> Result<Bucket, Invalid> {
    if written.limit == 0 {
        let message = "0 brings no token back, ever; write 1 with a long interval, or use circuit-breaker with \
                       triggerPolicy ForceOpened";
        return Err(Invalid::new(message).field("limit"));
    }
    if written.burst == 0 {
        return Err(Invalid::new("0 would refuse everything; write at least 1").field("burst"));
    }
    let duration = written.interval.0;
    let is_whole = duration.subsec_nanos().is_multiple_of(1_000_000) && !duration.is_zero();
    let interval_ms = u32::try_from(duration.as_millis()).ok().filter(|_| is_whole);
    let Some(interval_ms) = interval_ms else {
        return Err(Invalid::new("write whole milliseconds, from 1ms to 1193h").field("interval"));
    };
    Ok(Bucket {
        limit: written.limit,
        interval_ms,
        burst: written.burst,
    })
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
