//! The exports of a component, for each version of the plugin interface: the only file that asks which version a plugin was built against.
//! Arguments and results have the types of the newest version.

use wasmtime::component::{Component, Linker, Resource};
use wasmtime::{Engine, Store};

use super::bindings::v0_2::ctrlmesh::plugin::types::{
    Crossing, InstanceInfo, ObjectMetadata, Outcome, RequestVerdict, ResponseVerdict, Subscription,
};
use super::bindings::{v0_1, v0_2};
use super::host_state::HostState;
use super::world::Version;
use super::{v0_1 as host_v0_1, v0_2 as host_v0_2, wasi};

/// One request is current at a time, so its handle has a fixed number. So has the response's.
const REQUEST: u32 = 0;
const RESPONSE: u32 = 1;

/// A pre-instantiated component: imports and exports are resolved and checked.
pub(crate) enum PreInstantiated {
    V0_1(v0_1::PluginPre<HostState>),
    V0_2(v0_2::PluginPre<HostState>),
}

/// The exports of an instance.
pub(crate) enum Exports {
    V0_1(v0_1::Plugin),
    V0_2(v0_2::Plugin),
}

impl PreInstantiated {
    /// Resolves the imports of a component of this version. Fails if it does not have the types of that version.
    pub(crate) fn new(version: Version, engine: &Engine, component: &Component) -> wasmtime::Result<Self> {
        let mut linker = Linker::new(engine);
        wasi::add_to_linker(&mut linker)?;
        match version {
            Version::V0_1 => {
                host_v0_1::add_to_linker(&mut linker)?;
                v0_1::PluginPre::new(linker.instantiate_pre(component)?).map(Self::V0_1)
            }
            Version::V0_2 => {
                host_v0_2::add_to_linker(&mut linker)?;
                v0_2::PluginPre::new(linker.instantiate_pre(component)?).map(Self::V0_2)
            }
        }
    }

    pub(crate) fn instantiate(&self, store: &mut Store<HostState>) -> wasmtime::Result<Exports> {
        match self {
            Self::V0_1(pre) => pre.instantiate(store).map(Exports::V0_1),
            Self::V0_2(pre) => pre.instantiate(store).map(Exports::V0_2),
        }
    }

    /// The version without its patch number: `0.2`.
    pub(crate) const fn interface(&self) -> &'static str {
        match self {
            Self::V0_1(_) => "0.1",
            Self::V0_2(_) => "0.2",
        }
    }
}

impl Exports {
    pub(crate) fn configure(
        &self,
        store: &mut Store<HostState>,
        settings: &str,
        about: &InstanceInfo,
    ) -> wasmtime::Result<Result<Subscription, String>> {
        match self {
            Self::V0_1(guest) => guest.call_configure(store, settings, about),
            Self::V0_2(guest) => guest.call_configure(store, settings, about),
        }
    }

    pub(crate) fn on_request(&self, store: &mut Store<HostState>) -> wasmtime::Result<RequestVerdict> {
        let request = Resource::new_borrow(REQUEST);
        match self {
            Self::V0_1(guest) => guest.call_on_request(store, request).map(Into::into),
            Self::V0_2(guest) => guest.call_on_request(store, request),
        }
    }

    pub(crate) fn on_response(&self, store: &mut Store<HostState>) -> wasmtime::Result<ResponseVerdict> {
        let (request, response) = (Resource::new_borrow(REQUEST), Resource::new_borrow(RESPONSE));
        match self {
            Self::V0_1(guest) => guest.call_on_response(store, request, response),
            Self::V0_2(guest) => guest.call_on_response(store, request, response),
        }
    }

    pub(crate) fn on_objects(
        &self,
        store: &mut Store<HostState>,
        objects: &[ObjectMetadata],
    ) -> wasmtime::Result<Vec<bool>> {
        match self {
            // Verdicts of this version cannot ask about objects.
            Self::V0_1(_) => Ok(Vec::new()),
            Self::V0_2(guest) => guest.call_on_objects(store, Resource::new_borrow(REQUEST), objects),
        }
    }

    pub(crate) fn on_complete(&self, store: &mut Store<HostState>, outcome: Outcome) -> wasmtime::Result<()> {
        let request = Resource::new_borrow(REQUEST);
        match self {
            Self::V0_1(guest) => guest.call_on_complete(store, request, outcome),
            Self::V0_2(guest) => guest.call_on_complete(store, request, outcome),
        }
    }

    pub(crate) fn on_crossed(&self, store: &mut Store<HostState>, crossings: &[Crossing]) -> wasmtime::Result<()> {
        match self {
            // Verdicts of this version have no outcome rules.
            Self::V0_1(_) => Ok(()),
            Self::V0_2(guest) => guest.call_on_crossed(store, crossings),
        }
    }
}
