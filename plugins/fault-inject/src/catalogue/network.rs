//! Faults of a network or a load balancer.

use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{Answer, BodyShape, Field, Reset};

use super::{BuiltFault, Context, required_param};
use crate::fault::{self, Act, Applicability, Class};
use crate::params::{Params, checked_millis};
use crate::reply::Reply;

/// The host keeps its port closed no longer (`wit/types.wit`).
const LONGEST_REFUSAL_MS: u32 = 60_000;
/// The host sends no larger response of a plugin.
const MAX_BODY: usize = 60 * 1024;

/// Milliseconds for which the port is closed. The settings must confirm that all requests are meant.
pub(super) fn check_closed_ms(params: &Params, field: &str, ms: u32) -> Result<u32, Invalid> {
    if ms > LONGEST_REFUSAL_MS {
        return Err(Invalid::new("at most 60s").field(field));
    }
    if params.all_requests != Some(true) {
        let message = "the sidecar's port is closed for every request, the renewals of the controller's own lock \
                       included, whatever the rule matches; write allRequests: true if that is meant";
        return Err(Invalid::new(message).field("allRequests"));
    }
    Ok(ms)
}

pub(super) fn refuse_connections(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let length = required_param(params.length.as_ref(), "for", "5s")?;
    let ms = checked_millis(*length).map_err(|error| error.field("for"))?;
    let act = Act::RefuseConnections(check_closed_ms(params, "for", ms)?);
    Ok(BuiltFault::with_action(act, Applicability::Every))
}

pub(super) fn reset(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let how = fault::parse_reset(params.how.as_deref())?;
    Ok(BuiltFault::with_action(Act::Reset(how), Applicability::Every))
}

pub(super) fn black_hole(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Reset(Reset::BlackHole),
        Applicability::Every,
    ))
}

pub(super) fn slow_body(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let pace = *required_param(params.bytes_per_second.as_ref(), "bytesPerSecond", "1024")?;
    if pace == 0 {
        return Err(Invalid::new("at least 1; blackHole sends nothing at all").field("bytesPerSecond"));
    }
    Ok(BuiltFault::with_action(
        Act::Shape(BodyShape::default().pace(pace)),
        Applicability::Every,
    ))
}

pub(super) fn cut_body(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let bytes = *required_param(params.after_bytes.as_ref(), "afterBytes", "100")?;
    let how = fault::parse_reset(params.how.as_deref())?;
    let shape = BodyShape::default().cut_after(bytes, how);
    Ok(BuiltFault::with_action(Act::Shape(shape), Applicability::Every))
}

pub(super) fn goaway(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(Act::CloseConnection, Applicability::Every))
}

pub(super) fn answer(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let code = *required_param(params.code.as_ref(), "code", "502")?;
    if !(200..=599).contains(&code) {
        return Err(Invalid::new(format!("{code} is not the status of a response; write 200 to 599")).field("code"));
    }
    let body = params.body.clone().unwrap_or_default().into_bytes();
    if body.len() > MAX_BODY {
        return Err(Invalid::new(format!("{} bytes; at most {MAX_BODY}", body.len())).field("body"));
    }
    let content_type = params.content_type.as_deref().unwrap_or("text/html");
    if content_type.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(Invalid::new("a control character is in it").field("contentType"));
    }
    let mut answer = Answer {
        code,
        headers: vec![Field::new("content-type", content_type)],
        body,
        close_connection: false,
    };
    if let Some(seconds) = params.retry_after {
        answer = answer.header("retry-after", seconds.to_string());
    }
    // A load balancer may refuse in its own words; only the API server may say that something was done.
    let class = if code < 400 { Class::Illegal } else { Class::Legal };
    Ok(BuiltFault::with_action(Act::Reply(0, Reply::Foreign(answer)), Applicability::Every).with_class(class))
}
