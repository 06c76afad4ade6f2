//! A loaded plugin: compiled, checked against the world, ready to be instantiated on any thread.
//!
//! Leaves compiling to `compile.rs` and instances to `instance.rs`.

use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker};

use super::bindings::v0_1;
use super::error::Error;
use super::host::HostState;
use super::memory::Charge;
use super::world::{self, Version};
use super::{v0_1 as host_v0_1, wasi};

/// A plugin, shared by all entries and threads that run it.
pub struct Plugin {
    /// `sha256:<hex>` of the component's bytes.
    pub digest: String,
    pub(crate) pre: PreInstantiated,
    /// Memory of its machine code.
    charge: Charge,
}

/// A pre-instantiated component: imports and exports are resolved and checked. One variant for each interface version that this host
/// supports.
pub(crate) enum PreInstantiated {
    V0_1(v0_1::PluginPre<HostState>),
}

impl Plugin {
    /// `charge` is the memory of its machine code.
    pub(crate) fn new(
        engine: &wasmtime::Engine,
        component: &Component,
        charge: Charge,
        digest: String,
    ) -> Result<Self, Error> {
        let ty = component.component_type();
        // The types that a world takes from its interfaces are imports too, by their bare names; the linker checks them.
        let imports: Vec<&str> = ty
            .imports(engine)
            .filter(|(_, item)| !matches!(item.ty, ComponentItem::Type(_) | ComponentItem::Resource(_)))
            .map(|(name, _)| name)
            .collect();
        let exports: Vec<&str> = ty.exports(engine).map(|(name, _)| name).collect();
        let pre = match world::check(&imports, &exports, &digest)? {
            Version::V0_1 => pre_v0_1(engine, component),
        };
        // The names fit, so a type is wrong: a function with other parameters, or one that our version lacks.
        let pre = pre.map_err(|error| Error::WrongWorld {
            digest: digest.clone(),
            missing: format!("{error:#}"),
        })?;
        Ok(Self { digest, pre, charge })
    }

    /// Size of its machine code in bytes.
    pub(crate) const fn code_bytes(&self) -> usize {
        self.charge.bytes()
    }

    /// The interface version that this plugin was built against: `0.1`.
    #[must_use]
    pub const fn interface(&self) -> &'static str {
        match self.pre {
            PreInstantiated::V0_1(_) => "0.1",
        }
    }
}

fn pre_v0_1(engine: &wasmtime::Engine, component: &Component) -> wasmtime::Result<PreInstantiated> {
    let mut linker = Linker::new(engine);
    wasi::add_to_linker(&mut linker)?;
    host_v0_1::add_to_linker(&mut linker)?;
    Ok(PreInstantiated::V0_1(v0_1::PluginPre::new(
        linker.instantiate_pre(component)?,
    )?))
}
