//! Watches that end.

use ctrlmesh_sdk::BodyShape;
use ctrlmesh_sdk::settings::Invalid;

use super::{Built, Context};
use crate::fault::{Act, Suits};
use crate::params::{Params, milliseconds};

/// At once if it is not said.
fn after(params: &Params) -> Result<u32, Invalid> {
    milliseconds(params.after.unwrap_or_default()).map_err(|error| error.field("after"))
}

pub(super) fn expire(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let shape = BodyShape::default().expire_after_ms(after(params)?);
    Ok(Built::legal(Act::Shape(shape), Suits::Watch))
}

pub(super) fn close(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let shape = BodyShape::default().end_after_ms(after(params)?);
    Ok(Built::legal(Act::Shape(shape), Suits::Watch))
}
