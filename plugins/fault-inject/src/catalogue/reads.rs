//! Lists and resource versions.

use ctrlmesh_sdk::Reset;
use ctrlmesh_sdk::settings::Invalid;

use super::{BuiltFault, Context, one_of_words};
use crate::fault::{Act, Applicability, Class};
use crate::params::Params;
use crate::reply::Reply;

pub(super) fn too_old(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::TooOld),
        Applicability::Aged,
    ))
}

pub(super) fn too_new(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    Ok(BuiltFault::with_action(
        Act::Reply(0, Reply::TooNew),
        Applicability::NotOlderThan,
    ))
}

pub(super) fn fail_page(params: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let act = match one_of_words(params.how.as_deref(), "how", &["expired", "reset"])? {
        "reset" => Act::Reset(Reset::InternalError),
        _ => Act::Reply(0, Reply::PageExpired),
    };
    Ok(BuiltFault::with_action(act, Applicability::NextPage))
}

pub(super) fn no_watch_list(_: &Params, _: &Context) -> Result<BuiltFault, Invalid> {
    let act = Act::Reply(0, Reply::NoWatchList);
    Ok(BuiltFault::with_action(act, Applicability::WatchList).with_class(Class::Server))
}
