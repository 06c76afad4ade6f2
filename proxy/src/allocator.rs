//! Gives memory back to the system that the allocator holds but does not use.
//!
//! mimalloc returns freed memory when a later call finds it unused for a second. An idle thread makes no later call, so what building a
//! chain needed would stay. Figures: docs/benchmarks.md, "Memory and start".

/// Keeps the kernel from backing this process, and the children that it starts, with huge pages. Each thread has pages for many sizes
/// of allocations, mostly empty; huge pages would make all of them resident.
///
/// # Errors
/// The kernel refuses. The process works, with more memory.
pub fn disable_huge_pages() -> std::io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
}

/// Gives back free memory of this thread, and of threads that have ended. Costs a system call for each free region, so it is for the end of
/// rare work such as building a chain, never for a request.
#[expect(unsafe_code, reason = "the allocator's only interface; see SAFETY")]
pub(crate) fn release_free_memory() {
    // SAFETY: `mi_collect` has no preconditions. It frees nothing that is allocated, and works on the heap of the calling thread. If another
    // allocator is in use, as in tests, that heap is empty.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_reports_disabled_huge_pages() {
        disable_huge_pages().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert!(status.contains("THP_enabled:\t0"), "{status}");
    }
}
