//! The differences of `ctrlmesh:plugin@0.1` from 0.2: the verdict on a request has neither `reuse` nor `later` nor `outcomes`, and there is
//! no `on-crossed`. All else of 0.1 has the same shape in 0.2, so that the functions of 0.2 serve it under the names of 0.1.

use wasmtime::component::{HasSelf, Linker};

use super::bindings::types_v0_1;
use super::bindings::v0_2::ctrlmesh::plugin::types::{Phases, RequestVerdict, Reuse};
use super::bindings::v0_2::ctrlmesh::plugin::{clock, exchange, log, metrics, random, report, state};
use super::host_state::HostState;

impl From<types_v0_1::RequestVerdict> for RequestVerdict {
    fn from(verdict: types_v0_1::RequestVerdict) -> Self {
        Self {
            delay_ms: verdict.delay_ms,
            action: verdict.action,
            reuse: Reuse::Never,
            later: Phases::all(),
            outcomes: Vec::new(),
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
