//! Memory that plugins take from the process: linear memories, tables and machine code of all of them together, and their compiler.
//!
//! Guarantees: everything that is charged fits the plugins' limit. An instance that grows leaves others at least as much as it has itself,
//! so none can take the memory that small ones need. In a process with a limit, the rest is for the sidecar itself and for requests. Why:
//! docs/adr/0031-memory.md.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::lock::lock_unpoisoned;
use crate::memory_shares;

/// Plugins would need more memory than they may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "more memory than is left: plugins may use {} MiB of the sidecar's {} MiB; raise its memory limit (see --memory-limit)",
    plugin_limit_bytes >> 20,
    limit_bytes >> 20
)]
pub struct OverLimit {
    pub plugin_limit_bytes: usize,
    /// Limit of the process.
    pub limit_bytes: usize,
}

/// The memory that all plugins of the process may use and do use. Shared by all threads.
#[derive(Debug, Clone)]
pub struct GuestMemory(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// `None` means no limit.
    bounds: Option<OverLimit>,
    /// Locked when a guest's memory grows or is released, which is rare.
    used: Mutex<Used>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Used {
    plugins: usize,
    /// Memory reserved for the running compiler. Plugins cannot use it, but it does not count against their growth.
    compiler: usize,
}

impl GuestMemory {
    /// Memory without a limit, which is only counted.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::with_bounds(None)
    }

    /// The plugins' share of the memory that the process may use.
    #[must_use]
    pub fn within(limit_bytes: usize) -> Self {
        Self::with_bounds(Some(OverLimit {
            plugin_limit_bytes: memory_shares::plugin_memory(limit_bytes),
            limit_bytes,
        }))
    }

    fn with_bounds(bounds: Option<OverLimit>) -> Self {
        Self(Arc::new(Shared {
            bounds,
            used: Mutex::default(),
        }))
    }

    /// The limits of plugins and process; `None` if there is no limit.
    #[must_use]
    pub fn bounds(&self) -> Option<OverLimit> {
        self.0.bounds
    }

    /// Bytes that plugins use.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.used().plugins
    }

    /// Checks whether this many bytes would fit if nothing else was charged.
    ///
    /// # Errors
    /// The bytes would not fit.
    pub(crate) fn could_hold(&self, bytes: usize) -> Result<(), OverLimit> {
        match self.0.bounds {
            Some(bounds) if bytes > bounds.plugin_limit_bytes => Err(bounds),
            _ => Ok(()),
        }
    }

    /// An empty account for a plugin or an instance.
    pub(crate) fn account(&self) -> Charge {
        Charge {
            memory: self.clone(),
            bytes: 0,
        }
    }

    /// Reserves the memory that the compiler may use now; `None` if there is no limit.
    pub(crate) fn compiler_share(&self) -> Option<CompilerShare> {
        let bounds = self.0.bounds?;
        let mut used = self.used();
        let left = bounds.plugin_limit_bytes.saturating_sub(used.plugins + used.compiler);
        // A quarter is left for plugins that grow meanwhile.
        let bytes = left / 4 * 3;
        used.compiler += bytes;
        Some(CompilerShare {
            memory: self.clone(),
            bytes,
            is_contended: used.plugins > bounds.plugin_limit_bytes / 4,
        })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        lock_unpoisoned(&self.0.used)
    }
}

/// Memory of a plugin or an instance. Dropping it releases everything.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: GuestMemory,
    bytes: usize,
}

impl Charge {
    /// Charges memory that is needed initially.
    ///
    /// # Errors
    /// Not enough is left.
    pub(crate) fn take(&mut self, more: usize) -> Result<(), OverLimit> {
        self.add(more, false)
    }

    /// Charges growth. What remains for all others must be at least as much as this account then has.
    ///
    /// # Errors
    /// Not enough is left.
    pub(crate) fn grow(&mut self, more: usize) -> Result<(), OverLimit> {
        self.add(more, true)
    }

    fn add(&mut self, more: usize, is_growth: bool) -> Result<(), OverLimit> {
        let mut used = self.memory.used();
        let (own, plugins) = (self.bytes.saturating_add(more), used.plugins.saturating_add(more));
        if let Some(bounds) = self.memory.0.bounds {
            let is_there = plugins.saturating_add(used.compiler) <= bounds.plugin_limit_bytes;
            let left = bounds.plugin_limit_bytes.saturating_sub(plugins);
            if !is_there || (is_growth && own > left) {
                return Err(bounds);
            }
        }
        used.plugins = plugins;
        drop(used);
        self.bytes = own;
        Ok(())
    }

    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.memory.used().plugins -= less;
        self.bytes -= less;
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Memory for one run of the compiler: its process, and its result. Dropping it releases everything.
#[derive(Debug)]
pub(crate) struct CompilerShare {
    memory: GuestMemory,
    bytes: usize,
    is_contended: bool,
}

impl CompilerShare {
    /// Limit of the compiler's process.
    pub(crate) const fn process_bytes(&self) -> usize {
        self.bytes / 4 * 3
    }

    /// Limit of the artifact. This process holds it; without memory files, in a growing buffer of up to twice its size.
    pub(crate) const fn artifact_bytes(&self) -> usize {
        self.bytes / 8
    }

    /// Whether the limit may be higher another time, because plugins used much memory.
    pub(crate) const fn is_contended(&self) -> bool {
        self.is_contended
    }
}

impl Drop for CompilerShare {
    fn drop(&mut self) {
        self.memory.used().compiler -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn charged(memory: &GuestMemory, bytes: usize) -> Charge {
        let mut charge = memory.account();
        charge.take(bytes).unwrap();
        charge
    }

    #[test]
    fn sidecar_reserves_part_of_limit() {
        for (limit, plugin_limit) in [(64, 28), (128, 80), (256, 160), (512, 416), (4096, 4000)] {
            let bounds = GuestMemory::within(limit * MIB).bounds().unwrap();
            assert_eq!(
                (bounds.plugin_limit_bytes, bounds.limit_bytes),
                (plugin_limit * MIB, limit * MIB)
            );
        }
        assert_eq!(GuestMemory::unlimited().bounds(), None);
    }

    #[test]
    fn plugin_limit_is_shared_and_reusable_after_drop() {
        let memory = GuestMemory::within(256 * MIB);
        let first = charged(&memory, 100 * MIB);
        let mut second = charged(&memory, 60 * MIB);
        assert_eq!(second.take(1), Err(memory.bounds().unwrap()));
        assert_eq!(memory.used_bytes(), 160 * MIB, "a refusal takes nothing");
        drop(first);
        second.take(100 * MIB).unwrap();
        second.shrink_to(MIB);
        assert_eq!((memory.used_bytes(), second.bytes()), (MIB, MIB));
        drop(second);
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn growing_instance_leaves_at_least_its_own_size() {
        let memory = GuestMemory::within(256 * MIB);
        let mut hoarders = [memory.account(), memory.account(), memory.account()];
        for _ in 0..160 {
            for hoarder in &mut hoarders {
                // An instance that has enough is denied more.
                let _ = hoarder.grow(MIB);
            }
        }
        assert_eq!(hoarders.each_ref().map(Charge::bytes), [40 * MIB; 3]);
        let mut small = charged(&memory, MIB);
        small.grow(15 * MIB).unwrap();
    }

    #[test]
    fn eight_instances_at_default_cap_fit_default_limit_and_reload_beside_them() {
        let memory = GuestMemory::within(256 * MIB);
        let grown = || {
            let mut instance = charged(&memory, MIB);
            instance.grow(15 * MIB).unwrap();
            instance
        };
        let old: Vec<_> = (0..8).map(|_| grown()).collect();
        let new: Vec<_> = (0..8).map(|_| charged(&memory, 2 * MIB)).collect();
        drop((old, new));
        assert_eq!(memory.used_bytes(), 0);
    }

    #[test]
    fn compiler_gets_most_of_what_is_left_and_plugins_may_still_grow() {
        let memory = GuestMemory::within(256 * MIB);
        let mut plugin = charged(&memory, 20 * MIB);
        let share = memory.compiler_share().unwrap();
        assert_eq!(share.process_bytes(), 140 * MIB / 16 * 9);
        assert!(share.process_bytes() + 2 * share.artifact_bytes() <= 105 * MIB);
        assert!(!share.is_contended());
        plugin.grow(35 * MIB).unwrap();
        assert!(plugin.grow(1).is_err(), "the rest is the compiler's");
        assert!(
            memory
                .compiler_share()
                .is_some_and(|second| second.process_bytes() == 0)
        );
        drop(share);
        plugin.grow(20 * MIB).unwrap();
        assert!(memory.compiler_share().unwrap().is_contended());
        assert!(GuestMemory::unlimited().compiler_share().is_none());
    }

    #[test]
    fn memory_without_limit_is_counted_and_never_refused() {
        let memory = GuestMemory::unlimited();
        let mut charge = charged(&memory, 1 << 40);
        charge.grow(1 << 40).unwrap();
        memory.could_hold(usize::MAX).unwrap();
        assert_eq!(memory.used_bytes(), 2 << 40);
    }
}
