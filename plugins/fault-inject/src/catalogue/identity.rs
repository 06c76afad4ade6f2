//! Tokens and rights.

use ctrlmesh_sdk::settings::Invalid;

use super::{Built, Context};
use crate::fault::{Act, Suits};
use crate::params::Params;
use crate::reply::Reply;

pub(super) fn unauthorized(_: &Params, _: &Context) -> Result<Built, Invalid> {
    Ok(Built::legal(Act::Reply(0, Reply::Unauthorized), Suits::Every))
}

pub(super) fn forbidden(params: &Params, context: &Context) -> Result<Built, Invalid> {
    let user = params.user.clone().unwrap_or_else(|| context.user.clone());
    Ok(Built::legal(Act::Reply(0, Reply::Forbidden(user)), Suits::Every))
}
