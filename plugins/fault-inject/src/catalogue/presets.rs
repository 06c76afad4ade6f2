//! Events of an API server's life as sequences in time. Each begins with the first request that its rule matches.

use ctrlmesh_plugin_rules::GoDuration;
use ctrlmesh_sdk::settings::Invalid;

use super::network::closed_ms;
use super::{Built, Context, Stage, Steps};
use crate::catalogue::answers::retry_after;
use crate::fault::{Act, Class, Suits};
use crate::params::{Params, Wait, milliseconds};
use crate::reply::Reply;

/// What share of the requests an overloaded server turns away, rising and falling, and at its worst.
const SOME: f64 = 30.0;
const MOST: f64 = 90.0;
/// How long it takes for those that it serves.
const SLOW: Wait = Wait::Between(200, 1_000);
const SLOWEST: Wait = Wait::Between(1_000, 5_000);

/// Stages in the making.
struct Line {
    stages: Vec<Stage>,
    end_ms: u32,
}

impl Line {
    fn new() -> Self {
        Self {
            stages: Vec::new(),
            end_ms: 0,
        }
    }

    /// One more stage; none if it takes no time.
    fn then(mut self, ms: u32, percent: f64, act: Act, suits: Suits, otherwise: Option<Act>) -> Self {
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

    fn build(self, params: &Params) -> Result<Built, Invalid> {
        if self.stages.is_empty() {
            return Err(Invalid::new("all its stages take no time: it would do nothing"));
        }
        let again_ms = match params.again {
            Some(again) => Some(milliseconds(again).map_err(|error| error.field("again"))?),
            None => None,
        };
        if again_ms.is_some_and(|again| again < self.end_ms) {
            let message = format!(
                "its stages take {}ms together: it can't begin again before",
                self.end_ms
            );
            return Err(Invalid::new(message).field("again"));
        }
        Ok(Built {
            steps: Steps::Stages {
                stages: self.stages,
                again_ms,
            },
            class: Class::Legal,
            own: None,
        })
    }
}

fn ms(field: &str, value: Option<GoDuration>, default: u32) -> Result<u32, Invalid> {
    match value {
        Some(value) => milliseconds(value).map_err(|error| error.field(field)),
        None => Ok(default),
    }
}

/// A rolling restart: GOAWAY; 429 while it drains; gone; then a watch cache that is being filled, and one that lags behind.
pub(super) fn restart_server(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let goaway = ms("goaway", params.goaway, 1_000)?;
    let drain = ms("drain", params.drain, 5_000)?;
    let down = ms("down", params.down, 3_000)?;
    let warm = ms("warm", params.warm, 4_000)?;
    let closed = if down > 0 { closed_ms(params, "down", down)? } else { 0 };
    let reply = |reply| Act::Reply(0, reply);
    Line::new()
        .then(goaway, 100.0, Act::CloseConnection, Suits::Every, None)
        .then(drain, 100.0, reply(Reply::ShuttingDown), Suits::Shutdown, None)
        .then(down, 100.0, Act::RefuseConnections(closed), Suits::Every, None)
        .then(warm / 2, 100.0, reply(Reply::CacheNotReady), Suits::ListOrWatch, None)
        .then(warm - warm / 2, 100.0, reply(Reply::TooNew), Suits::NotOlderThan, None)
        .build(params)
}

/// An overload and its end: 429 for some, for most, for some; slow answers for the others.
pub(super) fn overload(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let throttle = || -> Result<Act, Invalid> {
        let seconds = retry_after(params)?.unwrap_or(1);
        Ok(Act::Reply(0, Reply::Throttled(seconds)))
    };
    Line::new()
        .then(
            ms("rise", params.rise, 10_000)?,
            SOME,
            throttle()?,
            Suits::Every,
            Some(Act::Hold(SLOW)),
        )
        .then(
            ms("peak", params.peak, 20_000)?,
            MOST,
            throttle()?,
            Suits::Every,
            Some(Act::Hold(SLOWEST)),
        )
        .then(
            ms("fall", params.fall, 10_000)?,
            SOME,
            throttle()?,
            Suits::Every,
            Some(Act::Hold(SLOW)),
        )
        .build(params)
}
