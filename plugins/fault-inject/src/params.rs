//! What a person writes behind `do`: the name of a fault and what it takes. One struct for all faults: most have one or two
//! parameters, many share them, and the error for a wrong one can then say what this fault takes.

use std::fmt;

use ctrlmesh_plugin_rules::GoDuration;
use ctrlmesh_sdk::settings::Invalid;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

macro_rules! parameters {
    ($($(#[$doc:meta])* $field:ident: $type:ty = $name:literal,)+) => {
        /// All parameters that faults have; which takes which stands in the catalogue.
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct Params {
            $($(#[$doc])* #[serde(default, rename = $name)] pub(crate) $field: Option<$type>,)+
        }

        impl Params {
            /// The names of those that are written.
            pub(crate) fn written(&self) -> impl Iterator<Item = &'static str> {
                [$(self.$field.is_some().then_some($name),)+].into_iter().flatten()
            }
        }
    };
}

parameters! {
    /// How long.
    length: GoDuration = "for",
    min: GoDuration = "min",
    max: GoDuration = "max",
    mean: GoDuration = "mean",
    /// How long until it happens.
    after: GoDuration = "after",
    how: String = "how",
    code: u16 = "code",
    reason: String = "reason",
    message: String = "message",
    /// Seconds.
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
pub(crate) struct Do {
    pub(crate) fault: String,
    pub(crate) params: Params,
}

impl<'de> Deserialize<'de> for Do {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DoVisitor)
    }
}

struct DoVisitor;

impl<'de> Visitor<'de> for DoVisitor {
    type Value = Do;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a fault, or its name with what it takes: {lose: {how: retry}}")
    }

    fn visit_str<E: Error>(self, fault: &str) -> Result<Do, E> {
        Ok(Do {
            fault: fault.to_owned(),
            params: Params::default(),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Do, A::Error> {
        let Some((fault, params)) = map.next_entry::<String, Option<Params>>()? else {
            return Err(A::Error::custom("no fault is named"));
        };
        if let Some(second) = map.next_key::<String>()? {
            let message = format!("one fault for each rule; write another rule for {second:?}");
            return Err(A::Error::custom(message));
        }
        Ok(Do {
            fault,
            params: params.unwrap_or_default(),
        })
    }
}

/// A time to wait, drawn for each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wait {
    Fixed(u32),
    /// Evenly between both.
    Between(u32, u32),
    /// Exponential around a mean, cut at a most.
    Exponential(f64, u32),
}

/// A longer wait is a mistake: clients and load balancers have given up long before.
const LONGEST: GoDuration = GoDuration(std::time::Duration::from_secs(3_600));

impl Wait {
    /// From one of `fixed`, `min` and `max`, `mean` and `max`.
    ///
    /// # Errors
    ///
    /// Names the field.
    pub(crate) fn new(
        (name, fixed): (&str, Option<GoDuration>),
        min: Option<GoDuration>,
        mean: Option<GoDuration>,
        max: Option<GoDuration>,
    ) -> Result<Self, Invalid> {
        let ms = |field: &str, value: GoDuration| milliseconds(value).map_err(|error| error.field(field));
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

    /// Milliseconds; `unit` is drawn from 0 up to, but not including, 1.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the numbers are positive and below an hour"
    )]
    pub(crate) fn sample(self, unit: f64) -> u32 {
        match self {
            Self::Fixed(ms) => ms,
            Self::Between(min, max) => min + (f64::from(max - min + 1) * unit) as u32,
            Self::Exponential(mean, max) => (-(1.0 - unit).ln() * mean).min(f64::from(max)) as u32,
        }
    }

    /// Whether it has to be drawn.
    pub(crate) fn is_random(self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// The longest that it can be, in milliseconds.
    pub(crate) fn longest(self) -> u32 {
        match self {
            Self::Fixed(ms) | Self::Between(_, ms) | Self::Exponential(_, ms) => ms,
        }
    }
}

/// Whole milliseconds of a wait.
///
/// # Errors
///
/// It is longer than an hour.
pub(crate) fn milliseconds(duration: GoDuration) -> Result<u32, Invalid> {
    if duration > LONGEST {
        return Err(Invalid::new("at most 1h"));
    }
    Ok(u32::try_from(duration.as_millis_ceil()).unwrap_or(u32::MAX))
}
