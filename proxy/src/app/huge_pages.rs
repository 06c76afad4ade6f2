//! Pages of the allocator: small ones only. Figures: docs/benchmarks.md, "Memory and start".

/// Keeps the kernel from backing this process, and the children that it starts, with huge pages. Each thread has pages for many sizes
/// of allocations, mostly empty; huge pages would make all of them resident.
///
/// # Errors
/// The kernel refuses. The process works, with more memory.
pub fn disable_huge_pages() -> std::io::Result<()> {
    Ok(rustix::thread::disable_transparent_huge_pages(true)?)
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
