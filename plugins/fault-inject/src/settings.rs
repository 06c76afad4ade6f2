//! What a person writes: a FaultInjection (`ctrlmesh.kusionstack.io/v1alpha1`), in both shapes that are in the wild, and what
//! this plugin adds to each of its rules. An absent field and `null` are the same, as they are to Go.

use std::fmt;

use ctrlmesh_plugin_rules::{GoDuration, NonResourceRule, ResourceRule, RestRule};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

use crate::fault::Class;
use crate::params::Do;
use crate::window::EffectiveTime;

/// The settings of an entry.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Random choices follow from it; 0 if unset.
    pub(crate) seed: Option<u64>,
    /// The farthest from a healthy server that a fault may be; `legal` if unset.
    pub(crate) class: Option<Class>,
    /// Nothing happens.
    pub(crate) disabled: Option<bool>,
    /// Rules.
    pub(crate) faults: Option<Vec<FaultRule>>,
    /// Rules, as the CRD calls them. They come after `faults`.
    pub(crate) http_fault: Option<Vec<FaultRule>>,
}

/// One rule: which requests, when, how many of them, and what happens to them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FaultRule {
    /// Unset: its place, such as `httpFault[0]`.
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
    pub(crate) fault: Option<Do>,
    /// For `do`: how many of the requests.
    pub(crate) percent: Option<Percent>,
    /// The third, every fifth, the first two of the requests that match.
    pub(crate) nth: Option<u32>,
    pub(crate) every: Option<u32>,
    pub(crate) first: Option<u32>,
    /// Fires no more often.
    pub(crate) max_count: Option<u32>,
    /// Fires no longer, from the first match on.
    pub(crate) max_duration: Option<GoDuration>,
    /// Has no more requests in hand at a time.
    pub(crate) max_active: Option<u32>,
}

/// Which requests. One element of one list is enough.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Match {
    /// The other spellings are in samples that people have copied.
    #[serde(alias = "relateResources", alias = "relatedResources")]
    pub(crate) resources: Option<Vec<ResourceRule>>,
    /// Discovery, `/healthz`, `/metrics`.
    #[serde(alias = "nonResourceRules")]
    pub(crate) non_resources: Option<Vec<NonResourceRule>>,
    /// Calls to other services.
    pub(crate) http_match: Option<Vec<RestRule>>,
}

/// A wait before the request goes on.
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
    /// Seconds.
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
