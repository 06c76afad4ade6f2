//! `do` as a person writes it: the name of a fault and its parameters. One struct for all faults: most have one or two parameters, many
//! share them, and the error for a wrong one can then name those that the fault takes.

use std::fmt;

use ctrlmesh_plugin_rules::GoDuration;
use ctrlmesh_sdk::settings::Invalid;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

macro_rules! parameters {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $name:literal,)+) => {
        /// All parameters of all faults; the catalogue says which fault takes which.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct Params {
            $($(#[$doc])* #[serde(default, rename = $name)] pub(crate) $field: Option<$type>,)+
        }

        impl Params {
            /// The names of the parameters that are set.
            pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
                [$(self.$field.is_some().then_some($name),)+].into_iter().flatten()
            }
        }
    };
}

parameters! {
    /// Duration of the effect.
    length: GoDuration = "for",
    min: GoDuration = "min",
    max: GoDuration = "max",
    mean: GoDuration = "mean",
    /// Delay before the effect.
    after: GoDuration = "after",
    how: String = "how",
    code: u16 = "code",
    reason: String = "reason",
    message: String = "message",
    /// Retry-After, in seconds.
    retry_after: u32 = "retryAfter",
    bytes_per_second: u32 = "bytesPerSecond",
    after_bytes: u64 = "afterBytes",
    content_type: String = "contentType",
    body: String = "body",
    group: String = "group",
    version: String = "version",
    user: String = "user",
    webhook: String = "webhook",
    url: String = "url",
    policy: String = "policy",
    binding: String = "binding",
    quota: String = "quota",
    requested: String = "requested",
    used: String = "used",
    limited: String = "limited",
    all_requests: bool = "allRequests",
    goaway: GoDuration = "goaway",
    drain: GoDuration = "drain",
    down: GoDuration = "down",
    warm: GoDuration = "warm",
    rise: GoDuration = "rise",
    peak: GoDuration = "peak",
    fall: GoDuration = "fall",
    again: GoDuration = "again",
}

/// `do: conflict`, or `do: {lose: {how: retry}}`.
#[derive(Clone, Debug)]
pub(crate) struct FaultSpec {
    pub(crate) fault: String,
    pub(crate) params: Params,
}

impl<'de> Deserialize<'de> for FaultSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FaultSpecVisitor)
    }
}

struct FaultSpecVisitor;

impl<'de> Visitor<'de> for FaultSpecVisitor {
    type Value = FaultSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a fault, or its name with what it takes: {lose: {how: retry}}")
    }

    fn visit_str<E: Error>(self, fault: &str) -> Result<FaultSpec, E> {
        Ok(FaultSpec {
            fault: fault.to_owned(),
            params: Params::default(),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FaultSpec, A::Error> {
        let Some((fault, params)) = map.next_entry::<String, Option<Params>>()? else {
            return Err(A::Error::custom("no fault is named"));
        };
        if let Some(second) = map.next_key::<String>()? {
            let message = format!("one fault for each rule; write another rule for {second:?}");
            return Err(A::Error::custom(message));
        }
        Ok(FaultSpec {
            fault,
            params: params.unwrap_or_default(),
        })
    }
}

/// A duration, drawn for each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DelayParam {
    Fixed(u32),
    /// Evenly distributed between both.
    Between(u32, u32),
    /// Exponentially distributed around a mean, cut at a maximum.
    Exponential(f64, u32),
}

/// A longer wait must be a mistake: clients and load balancers have given up long before.
const LONGEST: GoDuration = GoDuration(std::time::Duration::from_secs(3_600));

impl DelayParam {
    /// From one of `fixed`, `min` and `max`, `mean` and `max`.
    ///
    /// # Errors
    ///
    /// If the combination is invalid; names the field.
    pub(crate) fn new(
        (name, fixed): (&str, Option<GoDuration>),
        min: Option<GoDuration>,
        mean: Option<GoDuration>,
        max: Option<GoDuration>,
    ) -> Result<Self, Invalid> {
        let ms = |field: &str, value: GoDuration| checked_millis(value).map_err(|error| error.field(field));
        match (fixed, min, mean, max) {
            (Some(fixed), None, None, None) => Ok(Self::Fixed(ms(name, fixed)?)),
            (None, Some(min), None, Some(max)) if min <= max => Ok(Self::Between(ms("min", min)?, ms("max", max)?)),
            (None, Some(_), None, Some(_)) => Err(Invalid::new("it is less than min").field("max")),
            (None, None, Some(mean), Some(max)) => Ok(Self::Exponential(f64::from(ms("mean", mean)?), ms("max", max)?)),
            _ => {
                let message = format!("write {name}, or min and max, or mean and max (exponential)");
                Err(Invalid::new(message))
            }
        }
    }

    /// The wait in milliseconds; `unit` is a drawn number in [0, 1).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the numbers are positive and below an hour"
    )]
    pub(crate) fn sample_ms(self, unit: f64) -> u32 {
        match self {
            Self::Fixed(ms) => ms,
            Self::Between(min, max) => min + (f64::from(max - min + 1) * unit) as u32,
            Self::Exponential(mean, max) => (-(1.0 - unit).ln() * mean).min(f64::from(max)) as u32,
        }
    }

    pub(crate) fn is_random(self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// Maximum in milliseconds.
    pub(crate) fn longest_ms(self) -> u32 {
        match self {
            Self::Fixed(ms) | Self::Between(_, ms) | Self::Exponential(_, ms) => ms,
        }
    }
}

/// Whole milliseconds of a wait.
///
/// # Errors
///
/// If it is longer than an hour.
pub(crate) fn checked_millis(duration: GoDuration) -> Result<u32, Invalid> {
    if duration > LONGEST {
        return Err(Invalid::new("at most 1h"));
    }
    Ok(u32::try_from(duration.as_millis_ceil()).unwrap_or(u32::MAX))
}
