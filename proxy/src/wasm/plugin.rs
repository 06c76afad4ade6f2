//! A loaded plugin: compiled, checked against the world, ready to be instantiated on any thread.
//!
//! Leaves compiling to `compile.rs` and instances to `instance.rs`.

use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

use super::error::Error;
use super::exports::PreInstantiated;
use super::memory::Charge;
use super::world;

/// A plugin, shared by all entries and threads that run it.
pub struct Plugin {
    /// `sha256:<hex>` of the component's bytes.
    pub digest: String,
    pub(crate) pre: PreInstantiated,
    /// Memory of its machine code.
    charge: Charge,
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
        let pre = PreInstantiated::new(world::checked_version(&imports, &exports, &digest)?, engine, component);
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

    /// The interface version that this plugin was built against: `0.2`.
    #[must_use]
    pub const fn interface(&self) -> &'static str {
        self.pre.interface()
    }
}
