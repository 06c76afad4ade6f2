//! Paths in the sidecar's container that a pod's own volumes must not change.

use ctrlmesh_contract::names::pod;

/// The sidecar's volume for files that it writes.
pub(super) const DATA_DIR: &str = "/var/lib/ctrlmesh";

/// Paths whose content the sidecar relies on: its program and precompiled plugins, its volumes, and the kernel's file systems. A
/// mount above or below one of these paths could replace the content.
const OWN_PATHS: [&str; 8] = [
    pod::PROGRAM,
    "/usr/lib/ctrlmesh",
    "/etc/ctrlmesh",
    DATA_DIR,
    "/var/run/secrets",
    "/run/secrets",
    "/proc",
    "/sys",
];

/// Whether a mount at this path would change what the sidecar finds.
pub(super) fn is_of_sidecar(path: &str) -> bool {
    let parts = |path: &str| -> Vec<String> {
        let mut parts = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part.to_owned()),
            }
        }
        parts
    };
    let path = parts(path);
    OWN_PATHS
        .into_iter()
        .map(parts)
        .any(|own| path.starts_with(&own) || own.starts_with(&path))
}
