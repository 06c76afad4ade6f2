//! The settings as a person writes them: a FaultInjection (`ctrlmesh.kusionstack.io/v1alpha1`) in both shapes in use, plus the additions
//! of this plugin. An absent field and `null` are the same, as in Go.

use std::fmt;

use ctrlmesh_plugin_rules::{GoDuration, NonResourceRule, ResourceRule, RestRule};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::effective_time::EffectiveTime;
use crate::fault::Class;
use crate::params::FaultSpec;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Seed of random choices. Default: 0.
    pub(crate) seed: Option<u64>,
    /// The farthest class of faults that is allowed. Default: `legal`.
    pub(crate) class: Option<Class>,
    pub(crate) disabled: Option<bool>,
    pub(crate) faults: Option<Vec<FaultRule>>,
    /// The rules as the CRD calls them. They come after `faults`.
    pub(crate) http_fault: Option<Vec<FaultRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FaultRule {
    /// Default: its path, such as `httpFault[0]`.
    pub(crate) name: Option<String>,
    pub(crate) disabled: Option<bool>,
    #[serde(rename = "match")]
    pub(crate) matching: Option<Match>,
    pub(crate) effective_time: Option<EffectiveTime>,
    /// Before the request is forwarded or refused.
    pub(crate) delay: Option<Delay>,
    pub(crate) abort: Option<Abort>,
    /// A fault of the catalogue.
    #[serde(rename = "do")]
    pub(crate) fault: Option<FaultSpec>,
    /// Percentage of requests for `do`.
    pub(crate) percent: Option<Percent>,
    /// The third, every fifth, the first two of the matching requests.
    pub(crate) nth: Option<u32>,
    pub(crate) every: Option<u32>,
    pub(crate) first: Option<u32>,
    pub(crate) max_count: Option<u32>,
    /// Maximum time since the first match.
    pub(crate) max_duration: Option<GoDuration>,
    /// Maximum of concurrent requests with this fault.
    pub(crate) max_active: Option<u32>,
}

/// Selects requests. One matching element of one list is enough.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Match {
    /// The aliases are in widespread samples.
    #[serde(alias = "relateResources", alias = "relatedResources")]
    pub(crate) resources: Option<Vec<ResourceRule>>,
    /// Discovery, `/healthz`, `/metrics`.
    #[serde(alias = "nonResourceRules")]
    pub(crate) non_resources: Option<Vec<NonResourceRule>>,
    /// Calls to external services.
    pub(crate) http_match: Option<Vec<RestRule>>,
}

/// A delay before the request is forwarded.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Delay {
    pub(crate) fixed_delay: Option<GoDuration>,
    pub(crate) min: Option<GoDuration>,
    pub(crate) mean: Option<GoDuration>,
    pub(crate) max: Option<GoDuration>,
    pub(crate) percent: Option<Percent>,
}

/// A refusal; the request is not forwarded.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Abort {
    pub(crate) http_status: Option<i64>,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    /// Retry-After, in seconds.
    pub(crate) retry_after: Option<u32>,
    pub(crate) percent: Option<Percent>,
}

/// 0 is never, 100 always.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(crate) struct Percent(pub(crate) f64);

impl Percent {
    fn new<E: Error>(written: &dyn fmt::Display, value: Option<f64>) -> Result<Self, E> {
        match value {
            Some(value) if (0.0..=100.0).contains(&value) => Ok(Self(value)),
            _ => Err(E::custom(format!(
                "{written} is no percentage; write a number from 0 (never) to 100 (always)"
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PercentVisitor)
    }
}

/// The CRD has a text, most people write a number.
struct PercentVisitor;

impl Visitor<'_> for PercentVisitor {
    type Value = Percent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number from 0 to 100, or such a number as a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Percent, E> {
        let number = text.trim();
        Percent::new(
            &format_args!("{text:?}"),
            number.strip_suffix('%').unwrap_or(number).parse().ok(),
        )
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Percent, E> {
        Percent::new(&number, Some(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Percent, E> {
        Percent::new(&number, u32::try_from(number).ok().map(f64::from))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Percent, E> {
        Percent::new(&number, None)
    }
}
