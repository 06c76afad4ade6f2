//! Events in the life of an API server, as sequences in time. Each begins with the first request that its rule matches.

use ctrlmesh_plugin_rules::GoDuration;
use ctrlmesh_sdk::settings::Invalid;

use super::network::check_closed_ms;
use super::{BuiltFault, Context, Stage, Steps};
use crate::catalogue::responses::parse_retry_after;
use crate::fault::{Act, Applicability, Class};
use crate::params::{DelayParam, Params, checked_millis};
use crate::reply::Reply;

/// Percentage of requests that an overloaded server refuses: while the load rises and falls, and at its peak.
const SOME: f64 = 30.0;
const MOST: f64 = 90.0;
/// Delay of the requests that it serves.
const SLOW: DelayParam = DelayParam::Between(200, 1_000);
const SLOWEST: DelayParam = DelayParam::Between(1_000, 5_000);

struct StageList {
    stages: Vec<Stage>,
    end_ms: u32,
}

impl StageList {
    fn new() -> Self {
        Self {
            stages: Vec::new(),
            end_ms: 0,
        }
    }

    /// Adds a stage, unless it takes no time.
    fn add_stage(mut self, ms: u32, percent: f64, act: Act, suits: Applicability, otherwise: Option<Act>) -> Self {
        self.end_ms = self.end_ms.saturating_add(ms);
        if ms > 0 {
            self.stages.push(Stage {
                until_ms: self.end_ms,
                act,
                suits,
                percent,
                otherwise,
            });
        }
        self
    }

    fn build_preset(self, params: &Params) -> Result<BuiltFault, Invalid> {
        if self.stages.is_empty() {
            return Err(Invalid::new("all its stages take no time: it would do nothing"));
        }
        let again_ms = match params.again {
            Some(again) => Some(checked_millis(again).map_err(|error| error.field("again"))?),
            None => None,
        };
        if again_ms.is_some_and(|again| again < self.end_ms) {
            let message = format!(
                "its stages take {}ms together: it can't begin again before",
                self.end_ms
            );
            return Err(Invalid::new(message).field("again"));
        }
        Ok(BuiltFault {
            steps: Steps::Stages {
                stages: self.stages,
                again_ms,
            },
            class: Class::Legal,
            own: None,
        })
    }
}

fn parse_ms(field: &str, value: Option<GoDuration>, default: u32) -> Result<u32, Invalid> {
    match value {
        Some(value) => checked_millis(value).map_err(|error| error.field(field)),
        None => Ok(default),
    }
}

/// A rolling restart: GOAWAY, 429 while draining, closed port, then a watch cache that is filled, and one that lags.
pub(super) fn restart_server(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let goaway = parse_ms("goaway", params.goaway, 1_000)?;
    let drain = parse_ms("drain", params.drain, 5_000)?;
    let down = parse_ms("down", params.down, 3_000)?;
    let warm = parse_ms("warm", params.warm, 4_000)?;
    let closed = if down > 0 {
        check_closed_ms(params, "down", down)?
    } else {
        0
    };
    let reply = |reply| Act::Reply(0, reply);
    StageList::new()
        .add_stage(goaway, 100.0, Act::CloseConnection, Applicability::Every, None)
        .add_stage(drain, 100.0, reply(Reply::ShuttingDown), Applicability::Shutdown, None)
        .add_stage(down, 100.0, Act::RefuseConnections(closed), Applicability::Every, None)
        .add_stage(
            warm / 2,
            100.0,
            reply(Reply::CacheNotReady),
            Applicability::ListOrWatch,
            None,
        )
        .add_stage(
            warm - warm / 2,
            100.0,
            reply(Reply::TooNew),
            Applicability::NotOlderThan,
            None,
        )
        .build_preset(params)
}

/// An overload: 429 for some requests, for most, for some; slow responses for the others.
pub(super) fn overload(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let throttle = || -> Result<Act, Invalid> {
        let seconds = parse_retry_after(params)?.unwrap_or(1);
        Ok(Act::Reply(0, Reply::Throttled(seconds)))
    };
    StageList::new()
        .add_stage(
            parse_ms("rise", params.rise, 10_000)?,
            SOME,
            throttle()?,
            Applicability::Every,
            Some(Act::Hold(SLOW)),
        )
        .add_stage(
            parse_ms("peak", params.peak, 20_000)?,
            MOST,
            throttle()?,
            Applicability::Every,
            Some(Act::Hold(SLOWEST)),
        )
        .add_stage(
            parse_ms("fall", params.fall, 10_000)?,
            SOME,
            throttle()?,
            Applicability::Every,
            Some(Act::Hold(SLOW)),
        )
        .build_preset(params)
}
