//! The differences of `ctrlmesh:plugin@0.1` from 0.2: the verdict on a request has neither `reuse` nor `later` nor `outcomes`, its edits
//! have none of those that 0.2 adds (`keep-objects` to `require-object-match`), and there is neither `on-objects` nor `on-crossed`. All else of
//! 0.1 has the same shape in 0.2, so that the functions of 0.2 serve it under the names of 0.1.

use wasmtime::component::{HasSelf, Linker};

use super::bindings::types_v0_1;
use super::bindings::v0_2::ctrlmesh::plugin::types::{Phases, RequestAction, RequestEdit, RequestVerdict, Reuse};
use super::bindings::v0_2::ctrlmesh::plugin::{clock, exchange, log, metrics, random, report, state};
use super::host_state::HostState;

impl From<types_v0_1::RequestVerdict> for RequestVerdict {
    fn from(verdict: types_v0_1::RequestVerdict) -> Self {
        Self {
            delay_ms: verdict.delay_ms,
            action: verdict.action.into(),
            reuse: Reuse::Never,
            later: Phases::all(),
            outcomes: Vec::new(),
        }
    }
}

impl From<types_v0_1::RequestAction> for RequestAction {
    fn from(action: types_v0_1::RequestAction) -> Self {
        match action {
            types_v0_1::RequestAction::Proceed(edits) => Self::Proceed(edits.into_iter().map(Into::into).collect()),
            types_v0_1::RequestAction::Refuse(refusal) => Self::Refuse(refusal),
            types_v0_1::RequestAction::Reset(reset) => Self::Reset(reset),
            types_v0_1::RequestAction::Answer(answer) => Self::Answer(answer),
            types_v0_1::RequestAction::RefuseConnections(milliseconds) => Self::RefuseConnections(milliseconds),
        }
    }
}

impl From<types_v0_1::RequestEdit> for RequestEdit {
    fn from(edit: types_v0_1::RequestEdit) -> Self {
        match edit {
            types_v0_1::RequestEdit::AndLabelSelector(selector) => Self::AndLabelSelector(selector),
            types_v0_1::RequestEdit::AndFieldSelector(selector) => Self::AndFieldSelector(selector),
            types_v0_1::RequestEdit::SetQuery(field) => Self::SetQuery(field),
            types_v0_1::RequestEdit::RemoveQuery(name) => Self::RemoveQuery(name),
            types_v0_1::RequestEdit::SetHeader(field) => Self::SetHeader(field),
            types_v0_1::RequestEdit::RemoveHeader(name) => Self::RemoveHeader(name),
            types_v0_1::RequestEdit::RenameObject(rename) => Self::RenameObject(rename),
        }
    }
}

/// Adds the imports of the plugin's world to the linker.
pub(crate) fn add_to_linker(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    type Host = HasSelf<HostState>;
    clock::add_to_linker_instance::<_, Host>(&mut linker.instance("ctrlmesh:plugin/clock@0.1.1")?, |host| host)?;
    random::add_to_linker_instance::<_, Host>(&mut linker.instance("ctrlmesh:plugin/random@0.1.1")?, |host| host)?;
    log::add_to_linker_instance::<_, Host>(&mut linker.instance("ctrlmesh:plugin/log@0.1.1")?, |host| host)?;
    metrics::add_to_linker_instance::<_, Host>(&mut linker.instance("ctrlmesh:plugin/metrics@0.1.1")?, |host| host)?;
    state::add_to_linker_instance::<_, Host>(&mut linker.instance("ctrlmesh:plugin/state@0.1.1")?, |host| host)?;
    report::add_to_linker_instance::<_, Host>(&mut linker.instance("ctrlmesh:plugin/report@0.1.1")?, |host| host)?;
    exchange::add_to_linker_instance::<_, Host>(&mut linker.instance("ctrlmesh:plugin/exchange@0.1.1")?, |host| host)
}
