//! Answers that come late, are refusals, or are lost.

use ctrlmesh_sdk::Reset;
use ctrlmesh_sdk::settings::Invalid;

use super::{Built, Context, error_code, required, word};
use crate::fault::{Act, Suits};
use crate::params::{Params, Wait, milliseconds};
use crate::reply::Reply;
use crate::reply::generic::Plain;

/// Seconds that a real server gives when its store could not be reached (k8s.io/apiserver `pkg/storage/errors/storage.go`).
const STORE_RETRY: u32 = 2;
/// A day: more is a mistake.
const MAX_RETRY: u32 = 86_400;

/// A wait by the parameters that all waits share.
pub(super) fn wait(params: &Params) -> Result<Wait, Invalid> {
    Wait::new(("for", params.length), params.min, params.mean, params.max)
}

/// `retryAfter`, within reason.
pub(super) fn retry_after(params: &Params) -> Result<Option<u32>, Invalid> {
    match params.retry_after {
        Some(seconds) if seconds > MAX_RETRY => {
            Err(Invalid::new(format!("{seconds} seconds; at most {MAX_RETRY}")).field("retryAfter"))
        }
        seconds => Ok(seconds),
    }
}

pub(super) fn delay(params: &Params, _: &Context) -> Result<Built, Invalid> {
    Ok(Built::legal(Act::Delay(wait(params)?), Suits::Every))
}

pub(super) fn hold(params: &Params, _: &Context) -> Result<Built, Invalid> {
    Ok(Built::legal(Act::Hold(wait(params)?), Suits::Every))
}

pub(super) fn refuse(params: &Params, context: &Context) -> Result<Built, Invalid> {
    let plain = Plain {
        code: error_code(params.code.unwrap_or(503).into(), "code")?,
        reason: params.reason.clone(),
        message: params.message.clone(),
        retry_after: retry_after(params)?,
        user: params.user.clone().unwrap_or_else(|| context.user.clone()),
    };
    check_reason(plain.reason.as_deref())?;
    Ok(Built::legal(Act::Reply(0, Reply::Plain(plain)), Suits::Every))
}

/// A reason is a word for machines.
pub(crate) fn check_reason(reason: Option<&str>) -> Result<(), Invalid> {
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match reason {
        Some(reason) if !is_word(reason) => {
            let message = format!("{reason:?} is not one word such as TooManyRequests; leave it out for the usual one");
            Err(Invalid::new(message).field("reason"))
        }
        _ => Ok(()),
    }
}

pub(super) fn timeout(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let after = required(params.after.as_ref(), "after", "60s (as long as the API server waits)")?;
    let ms = milliseconds(*after).map_err(|error| error.field("after"))?;
    Ok(Built::legal(Act::Reply(ms, Reply::Timeout), Suits::Every))
}

pub(super) fn lose(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let how = word(params.how.as_deref(), "how", &["reset", "hang", "error", "retry"])?;
    for (field, belongs_to, is_written) in [
        ("code", "error", params.code.is_some()),
        ("retryAfter", "retry", params.retry_after.is_some()),
    ] {
        if is_written && how != belongs_to {
            return Err(Invalid::new(format!("only with how: {belongs_to}")).field(field));
        }
    }
    let act = match how {
        "hang" => Act::LoseBy(Reset::Hang),
        "error" => Act::LoseTo(lost_to(params.code.unwrap_or(504))?),
        "retry" => Act::LoseTo(Reply::ServerTimeout(retry_after(params)?.unwrap_or(STORE_RETRY))),
        // Go repeats nothing silently after INTERNAL_ERROR.
        _ => Act::LoseBy(Reset::InternalError),
    };
    Ok(Built::legal(act, Suits::Every))
}

fn lost_to(code: u16) -> Result<Reply, Invalid> {
    match code {
        504 => Ok(Reply::Timeout),
        500 => Ok(Reply::StoreTimeout),
        code => {
            let message = format!("{code} is not what a server says after it has done something; write 504 or 500");
            Err(Invalid::new(message).field("code"))
        }
    }
}

pub(super) fn conflict(_: &Params, _: &Context) -> Result<Built, Invalid> {
    Ok(Built::legal(Act::Reply(0, Reply::Conflict), Suits::Change))
}

pub(super) fn exists(_: &Params, _: &Context) -> Result<Built, Invalid> {
    Ok(Built::legal(Act::Reply(0, Reply::Exists), Suits::Create))
}
