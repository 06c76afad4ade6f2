//! Lists and resource versions.

use ctrlmesh_sdk::Reset;
use ctrlmesh_sdk::settings::Invalid;

use super::{Built, Context, word};
use crate::fault::{Act, Class, Suits};
use crate::params::Params;
use crate::reply::Reply;

pub(super) fn too_old(_: &Params, _: &Context) -> Result<Built, Invalid> {
    Ok(Built::legal(Act::Reply(0, Reply::TooOld), Suits::Aged))
}

pub(super) fn too_new(_: &Params, _: &Context) -> Result<Built, Invalid> {
    Ok(Built::legal(Act::Reply(0, Reply::TooNew), Suits::NotOlderThan))
}

pub(super) fn fail_page(params: &Params, _: &Context) -> Result<Built, Invalid> {
    let act = match word(params.how.as_deref(), "how", &["expired", "reset"])? {
        "reset" => Act::Reset(Reset::InternalError),
        _ => Act::Reply(0, Reply::PageExpired),
    };
    Ok(Built::legal(act, Suits::NextPage))
}

pub(super) fn no_watch_list(_: &Params, _: &Context) -> Result<Built, Invalid> {
    let act = Act::Reply(0, Reply::NoWatchList);
    Ok(Built::legal(act, Suits::WatchList).class(Class::Server))
}
