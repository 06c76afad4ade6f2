//! Faults that end watches.

use ctrlmesh_sdk::BodyShape;
use ctrlmesh_sdk::settings::Invalid;

use super::{BuiltFault, Context};
use crate::fault::{Act, Applicability};
use crate::params::{Params, checked_millis};

/// Default: at once.
fn after_ms(params: &Params) -> Result<u32, Invalid> {
    checked_millis(params.after.unwrap_or_default()).map_err(|error| error.field("after"))
}

pub(super) fn expire_watch(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let shape = BodyShape::default().expire_after_ms(after_ms(params)?);
    Ok(BuiltFault::with_action(Act::Shape(shape), Applicability::Watch))
}

pub(super) fn close(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let shape = BodyShape::default().end_after_ms(after_ms(params)?);
    Ok(BuiltFault::with_action(Act::Shape(shape), Applicability::Watch))
}
