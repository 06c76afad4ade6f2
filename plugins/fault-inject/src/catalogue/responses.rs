//! Delayed responses, refusals, and lost responses.

use ctrlmesh_sdk::Reset;
use ctrlmesh_sdk::settings::Invalid;

use super::{BuiltFault, Context, error_code, one_of_words, required_param};
use crate::fault::{Act, Applicability};
use crate::params::{DelayParam, Params, checked_millis};
use crate::reply::Reply;
use crate::reply::generic::CustomRefusal;

/// Seconds that a real server sends when its store is unreachable (k8s.io/apiserver `pkg/storage/errors/storage.go`).
const STORE_RETRY: u32 = 2;
/// A day: more must be a mistake.
const MAX_RETRY: u32 = 86_400;

/// A wait, by the parameters that all waits share.
pub(super) fn parse_wait(params: &Params) -> Result<DelayParam, Invalid> {
    DelayParam::new(("for", params.length), params.min, params.mean, params.max)
}

/// `retryAfter`, bounded.
pub(super) fn parse_retry_after(params: &Params) -> Result<Option<u32>, Invalid> {
    match params.retry_after {
        Some(seconds) if seconds > MAX_RETRY => {
            Err(Invalid::new(format!("{seconds} seconds; at most {MAX_RETRY}")).field("retryAfter"))
        }
        seconds => Ok(seconds),
    }
}

pub(super) fn delay(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Delay(parse_wait(params)?),
        Applicability::Every,
    ))
}

pub(super) fn hold(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Hold(parse_wait(params)?),
        Applicability::Every,
    ))
}

pub(super) fn refuse(params: &Params, context: &Context) -> Result<BuiltFault, Invalid> {
    let plain = CustomRefusal {
        code: error_code(params.code.unwrap_or(503).into(), "code")?,
        reason: params.reason.clone(),
        message: params.message.clone(),
        retry_after: parse_retry_after(params)?,
        user: params.user.clone().unwrap_or_else(|| context.user.clone()),
    };
    check_reason(plain.reason.as_deref())?;
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Plain(plain)),
        Applicability::Every,
    ))
}

/// A reason is a single word for machines.
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

pub(super) fn timeout(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let after = required_param(params.after.as_ref(), "after", "60s (as long as the API server waits)")?;
    let ms = checked_millis(*after).map_err(|error| error.field("after"))?;
    Ok(BuiltFault::with_action(
        Act::Reply(ms, Reply::Timeout),
        Applicability::Every,
    ))
}

pub(super) fn lose_response(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let how = one_of_words(params.how.as_deref(), "how", &["reset", "hang", "error", "retry"])?;
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
        "error" => Act::LoseTo(lost_reply(params.code.unwrap_or(504))?),
        "retry" => Act::LoseTo(Reply::ServerTimeout(parse_retry_after(params)?.unwrap_or(STORE_RETRY))),
        // Go does not retry silently after INTERNAL_ERROR.
        _ => Act::LoseBy(Reset::InternalError),
    };
    Ok(BuiltFault::with_action(act, Applicability::Every))
}

fn lost_reply(code: u16) -> Result<Reply, Invalid> {
    match code {
        504 => Ok(Reply::Timeout),
        500 => Ok(Reply::StoreTimeout),
        code => {
            let message = format!("{code} is not what a server says after it has done something; write 504 or 500");
            Err(Invalid::new(message).field("code"))
        }
    }
}

pub(super) fn conflict(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Conflict),
        Applicability::Change,
    ))
}

pub(super) fn already_exists(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Exists),
        Applicability::Create,
    ))
}
