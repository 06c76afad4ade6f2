//! Faults of authentication (401) and authorization (403).

use ctrlmesh_sdk::settings::Invalid;

use super::{BuiltFault, Context};
use crate::fault::{Act, Applicability};
use crate::params::Params;
use crate::reply::Reply;

pub(super) fn unauthorized(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Unauthorized),
        Applicability::Every,
    ))
}

pub(super) fn forbidden(params: &Params, context: &Context) -> Result<BuiltFault, Invalid> {
    let user = params.user.clone().unwrap_or_else(|| context.user.clone());
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::Forbidden(user)),
        Applicability::Every,
    ))
}
