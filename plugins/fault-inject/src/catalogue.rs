//! Every fault by its name: its parameters, its ids in fault catalogues, and its builder. Submodules have the families.
//!
//! Ids: N network, A late responses, B refusals, L lost responses, W writes, R reads, E watch events, S server, I identity, D
//! admission.

mod admission;
mod identity;
mod network;
mod presets;
mod reads;
mod responses;
mod server;
mod watches;

use ctrlmesh_plugin_rules::Rules;
use ctrlmesh_sdk::settings::Invalid;
pub(crate) use responses::check_reason;

use crate::fault::{Act, Applicability, Class};
use crate::params::{FaultSpec, Params};

pub(crate) struct Entry {
    /// Name in the settings.
    pub(crate) name: &'static str,
    /// Ids in fault catalogues, for the tests that compare README and catalogue.
    #[cfg(test)]
    pub(crate) ids: &'static [&'static str],
    /// Names of its parameters.
    takes: &'static [&'static str],
    build: fn(&Params, &Context) -> Result<BuiltFault, Invalid>,
}

/// Values that builders need besides the parameters.
pub(crate) struct Context {
    /// The user in a 403, unless the rule names one.
    pub(crate) user: String,
}

#[derive(Clone, Debug)]
pub(crate) struct BuiltFault {
    pub(crate) steps: Steps,
    pub(crate) class: Class,
    /// The requests that the fault matches if the rule has no match.
    pub(crate) own: Option<Rules>,
}

/// The acts of a fault over time.
#[derive(Clone, Debug)]
pub(crate) enum Steps {
    /// The same act all the time.
    Always(Act, Applicability),
    /// One stage after another from the first match on; repeated if the settings say so.
    Stages { stages: Vec<Stage>, again_ms: Option<u32> },
}

#[derive(Clone, Debug)]
pub(crate) struct Stage {
    /// Milliseconds since the first match.
    pub(crate) until_ms: u32,
    pub(crate) act: Act,
    pub(crate) suits: Applicability,
    pub(crate) percent: f64,
    /// For the remaining requests.
    pub(crate) otherwise: Option<Act>,
}

impl BuiltFault {
    fn with_action(act: Act, suits: Applicability) -> Self {
        Self {
            steps: Steps::Always(act, suits),
            class: Class::Legal,
            own: None,
        }
    }

    fn with_class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    fn with_rules(mut self, own: Rules) -> Self {
        self.own = Some(own);
        self
    }
}

macro_rules! catalogue {
    ($($name:literal [$($id:literal)+] $build:path, $($takes:literal)*;)+) => {
        /// All faults, by name.
        pub(crate) const CATALOGUE: &[Entry] = &[$(Entry {
            name: $name,
            #[cfg(test)]
            ids: &[$($id),+],
            takes: &[$($takes),*],
            build: $build,
        },)+];
    };
}

catalogue! {
    "refuseConnections" ["N1"] network::refuse_connections, "for" "allRequests";
    "reset" ["N2"] network::reset, "how";
    "blackHole" ["N4"] network::black_hole,;
    "slowBody" ["N5"] network::slow_body, "bytesPerSecond";
    "cutBody" ["N6"] network::cut_body, "afterBytes" "how";
    "goaway" ["N7"] network::goaway,;
    "answer" ["N8"] network::answer, "code" "contentType" "body" "retryAfter";
    "delay" ["S3"] responses::delay, "for" "min" "mean" "max";
    "hold" ["A1" "E1" "E2"] responses::hold, "for" "min" "mean" "max";
    "refuse" ["B1" "B2" "E7"] responses::refuse, "code" "reason" "message" "retryAfter" "user";
    "timeout" ["B3"] responses::timeout, "after";
    "lose" ["L1" "L2" "N3"] responses::lose_response, "how" "code" "retryAfter";
    "conflict" ["W1"] responses::conflict,;
    "exists" ["W3"] responses::already_exists,;
    "tooOld" ["B4"] reads::too_old,;
    "tooNew" ["B4"] reads::too_new,;
    "failPage" ["R3"] reads::fail_page, "how";
    "noWatchList" ["R5"] reads::no_watch_list,;
    "expire" ["E5"] watches::expire_watch, "after";
    "close" ["E6"] watches::close, "after";
    "throttle" ["S2"] server::throttle, "retryAfter";
    "groupDown" ["S4"] server::group_down, "group" "version";
    "discoveryDown" ["S5"] server::discovery_down, "code";
    "restartServer" ["S1"] presets::restart_server, "goaway" "drain" "down" "warm" "again" "allRequests";
    "overload" ["S2"] presets::overload, "rise" "peak" "fall" "again" "retryAfter";
    "unauthorized" ["I1"] identity::unauthorized,;
    "forbidden" ["I2"] identity::forbidden, "user";
    "deny" ["D1"] admission::deny, "webhook" "policy" "binding" "message" "code";
    "quota" ["D2"] admission::quota, "quota" "requested" "used" "limited" "how";
    "webhookDown" ["D3"] admission::webhook_down, "webhook" "url" "after";
    "webhookSlow" ["D4"] admission::webhook_slow, "for" "min" "mean" "max";
    "namespaceTerminating" ["D5"] admission::namespace_terminating,;
}

/// Builds the fault that `written` names.
///
/// # Errors
///
/// If fault or parameters are invalid; the message names them.
pub(crate) fn build_fault(written: &FaultSpec, context: &Context) -> Result<BuiltFault, Invalid> {
    let Some(entry) = CATALOGUE.iter().find(|entry| entry.name == written.fault) else {
        let names: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
        let message = format!("unknown fault {:?}; use one of {}", written.fault, names.join(", "));
        return Err(Invalid::new(message));
    };
    let at = |error: Invalid| error.field(entry.name);
    if let Some(other) = written.params.names().find(|name| !entry.takes.contains(name)) {
        let takes = match entry.takes {
            [] => "nothing".to_owned(),
            takes => takes.join(", "),
        };
        return Err(at(
            Invalid::new(format!("not for {}, which takes {takes}", entry.name)).field(other)
        ));
    }
    (entry.build)(&written.params, context).map_err(at)
}

fn required_param<'a, T>(value: Option<&'a T>, field: &str, example: &str) -> Result<&'a T, Invalid> {
    value.ok_or_else(|| Invalid::new(format!("missing; write for instance {example}")).field(field))
}

/// One of several words; the first is the default.
fn one_of_words<'a>(value: Option<&'a str>, field: &str, words: &[&'a str]) -> Result<&'a str, Invalid> {
    let written = value.or_else(|| words.first().copied()).unwrap_or_default();
    match words.iter().find(|word| **word == written) {
        Some(word) => Ok(word),
        None => Err(Invalid::new(format!("{written:?} is not known; write one of {}", words.join(", "))).field(field)),
    }
}

/// A status code for a refusal.
pub(crate) fn error_code(code: i64, field: &str) -> Result<u16, Invalid> {
    match u16::try_from(code) {
        Ok(code @ 400..=599) => Ok(code),
        _ => Err(Invalid::new(format!("{code} is no refusal; write 400 to 599")).field(field)),
    }
}
