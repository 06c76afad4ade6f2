//! One rule of breakers: its matches, when it opens, and how it closes.

use ctrlmesh_plugin_rules::{BucketRule, GoDuration, Key, Rules, TriggerPolicy, checked_name};
use ctrlmesh_sdk::Bucket;
use ctrlmesh_sdk::settings::Invalid;

use crate::judgement::FailureCriteria;
use crate::keys::RuleKeys;
use crate::settings::{RecoverPolicy, RecoverType, Rule, Trip};

/// Default window: long enough to see a trend, short enough to forget it.
const DEFAULT_WINDOW_MS: u32 = 30_000;
/// Default minimum of requests: with fewer, a ratio is a matter of chance.
const DEFAULT_MINIMUM: u32 = 20;
/// Maximum of concurrent probes.
const MAX_PROBES: u32 = 1000;

#[derive(Debug)]
pub(crate) struct BreakerRule {
    pub(crate) name: String,
    pub(crate) rules: Rules,
    pub(crate) key: Key,
    pub(crate) keys: RuleKeys,
    pub(crate) policy: Policy,
    pub(crate) bucket: Option<Bucket>,
    /// `None` if only a new `recover` value closes the breaker.
    pub(crate) sleeping: Option<SleepingWindow>,
    pub(crate) probes: u32,
    pub(crate) triggers: Triggers,
    pub(crate) judge: FailureCriteria,
    pub(crate) recover: Option<String>,
}

/// The policies that this plugin handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Normal,
    ForceOpened,
    ForceClosed,
}

/// How long a breaker stays open before it lets probes through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SleepingWindow {
    first_ms: u64,
    longest_ms: u64,
}

impl SleepingWindow {
    /// Length of the sleeping window after this many consecutive failed probes: it doubles each time.
    pub(crate) fn after_ms(self, failed_probes: u32) -> u64 {
        let factor = 1_u64.checked_shl(failed_probes).unwrap_or(u64::MAX);
        self.first_ms.saturating_mul(factor).min(self.longest_ms)
    }
}

/// Conditions under which the results of requests open a closed breaker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Triggers {
    pub(crate) window_ms: u32,
    pub(crate) minimum: u32,
    pub(crate) error_percent: Option<u32>,
    pub(crate) slow: Option<SlowCalls>,
    pub(crate) consecutive: Option<u32>,
}

/// Criterion for slow requests, and the percentage of them that opens the breaker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlowCalls {
    pub(crate) percent: u32,
    pub(crate) slower_than_us: u64,
}

impl BreakerRule {
    /// Returns `None` if the rule is for rate-limit.
    pub(crate) fn new(rule: &Rule) -> Result<Option<Self>, Invalid> {
        let policy = match rule.trigger_policy {
            TriggerPolicy::LimiterOnly => return Ok(None),
            TriggerPolicy::Normal => Policy::Normal,
            TriggerPolicy::ForceOpened => Policy::ForceOpened,
            TriggerPolicy::ForceClosed => Policy::ForceClosed,
        };
        if policy == Policy::Normal && rule.bucket.is_none() && rule.trip.is_none() {
            return Err(
                Invalid::new("missing; nothing opens this breaker: write a bucket, trip, or both").field("bucket"),
            );
        }
        let name = checked_name(&rule.name).map_err(|error| error.field("name"))?;
        let bucket = rule.bucket.as_ref().map(BucketRule::validate).transpose();
        let probes = rule.probes.unwrap_or(1);
        if probes == 0 || probes > MAX_PROBES {
            return Err(
                Invalid::new(format!("write 1 to {MAX_PROBES}; without a probe it never closes")).field("probes"),
            );
        }
        Ok(Some(Self {
            name: name.to_owned(),
            rules: Rules::required(
                rule.resource_rules.as_deref(),
                rule.non_resource_rules.as_deref(),
                rule.rest_rules.as_deref(),
            )?,
            key: rule.key,
            keys: RuleKeys::new(name),
            policy,
            bucket: bucket.map_err(|error| error.field("bucket"))?,
            sleeping: parse_sleeping_window(rule.recover_policy.as_ref())
                .map_err(|error| error.field("recoverPolicy"))?,
            probes,
            triggers: parse_triggers(rule.trip.as_ref()).map_err(|error| error.field("trip"))?,
            judge: FailureCriteria::new(rule.failures.as_ref()).map_err(|error| error.field("failures"))?,
            recover: rule.recover.clone(),
        }))
    }
}

fn parse_sleeping_window(policy: Option<&RecoverPolicy>) -> Result<Option<SleepingWindow>, Invalid> {
    let Some(policy) = policy.filter(|policy| policy.kind == RecoverType::SleepingWindow) else {
        return Ok(None);
    };
    let first_ms = policy.sleeping_window_size.map_or(0, GoDuration::as_millis_ceil);
    if first_ms == 0 {
        let message = "write how long the breaker stays open, such as 30s";
        return Err(Invalid::new(message).field("sleepingWindowSize"));
    }
    let longest_ms = policy
        .max_sleeping_window_size
        .map_or(first_ms, GoDuration::as_millis_ceil);
    if longest_ms < first_ms {
        let message = "shorter than sleepingWindowSize; write the longest that the breaker may stay open, such as 5m";
        return Err(Invalid::new(message).field("maxSleepingWindowSize"));
    }
    Ok(Some(SleepingWindow { first_ms, longest_ms }))
}

fn parse_triggers(trip: Option<&Trip>) -> Result<Triggers, Invalid> {
    let Some(trip) = trip else {
        return Ok(Triggers::default());
    };
    let window_ms = trip
        .window
        .map_or(u64::from(DEFAULT_WINDOW_MS), GoDuration::as_millis_ceil);
    let window_ms = u32::try_from(window_ms).ok().filter(|window_ms| *window_ms >= 10);
    let Some(window_ms) = window_ms else {
        return Err(Invalid::new("write 10ms to 1193h").field("window"));
    };
    let slow = match (parse_percent(trip.slow_percent, "slowPercent")?, trip.slower_than) {
        (None, None) => None,
        (Some(percent), Some(slower_than)) => Some(SlowCalls {
            percent,
            slower_than_us: slower_than.as_millis_ceil().saturating_mul(1000),
        }),
        (Some(_), None) => return Err(Invalid::new("missing; slowPercent needs it").field("slowerThan")),
        (None, Some(_)) => return Err(Invalid::new("missing; slowerThan needs it").field("slowPercent")),
    };
    let error_percent = parse_percent(trip.error_percent, "errorPercent")?;
    if trip.consecutive_failures == Some(0) {
        return Err(Invalid::new("write at least 1").field("consecutiveFailures"));
    }
    if error_percent.is_none() && slow.is_none() && trip.consecutive_failures.is_none() {
        let message =
            "nothing opens the breaker; write errorPercent, slowPercent with slowerThan, or consecutiveFailures";
        return Err(Invalid::new(message));
    }
    Ok(Triggers {
        window_ms,
        minimum: trip.minimum_requests.unwrap_or(DEFAULT_MINIMUM).max(1),
        error_percent,
        slow,
        consecutive: trip.consecutive_failures,
    })
}

fn parse_percent(written: Option<u32>, field: &str) -> Result<Option<u32>, Invalid> {
    match written {
        Some(percent) if percent == 0 || percent > 100 => Err(Invalid::new("write 1 to 100").field(field)),
        percent => Ok(percent),
    }
}
