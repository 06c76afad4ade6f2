//! Finds the memory limit of this process: the smallest limit of its control groups, version 1 or 2, or a smaller one from the settings.
//!
//! Depending on the runtime, a container sees its own group as the root of the hierarchy, or its path on the machine. Leaves using the
//! limit to others.

use std::fs;
use std::path::{Path, PathBuf};

use crate::memory_shares::SMALLEST_LIMIT;

/// Limits of this size and above count as no limit: version 1 writes the largest multiple of a page below 2^63.
const UNLIMITED: u64 = 1 << 60;

/// The limit in bytes: the smaller one of the container's and the configured one. `None` if there is neither.
pub(crate) fn effective_limit(configured: Option<u64>) -> Option<u64> {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let processes = |name: &str| read(&Path::new("/proc/self").join(name)).unwrap_or_default();
    let container = of_groups(&processes("cgroup"), &processes("mountinfo"), read);
    [configured, container].into_iter().flatten().min()
}

/// Parses a size as Kubernetes writes it: `256Mi`, or a number of bytes.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let (digits, unit) = text.split_at(digits.len());
    let shift = match unit {
        "" => 0,
        "Ki" => 10,
        "Mi" => 20,
        "Gi" => 30,
        unit => return Err(format!("{unit:?} is no unit; write 256Mi, 1Gi or a number of bytes")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "write a whole number with a unit, such as 256Mi".to_owned())?;
    let bytes = number.saturating_mul(1 << shift);
    if bytes < SMALLEST_LIMIT as u64 {
        return Err(format!(
            "a sidecar needs at least {}Mi; without a unit the number means bytes",
            SMALLEST_LIMIT >> 20
        ));
    }
    Ok(bytes)
}

/// The two versions of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// Whether a line of `/proc/self/cgroup` with these controllers describes the memory group.
    fn has_memory(self, controllers: &str) -> bool {
        match self {
            Self::V1 => controllers.split(',').any(|controller| controller == "memory"),
            Self::V2 => controllers.is_empty(),
        }
    }

    /// The limit in a group's directory.
    fn limit(self, directory: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        match self {
            Self::V2 => parse_bytes(&read(&directory.join("memory.max"))?),
            Self::V1 => {
                let own = read(&directory.join("memory.limit_in_bytes"));
                // This includes the limits of parent groups, which a container does not see.
                let stat = read(&directory.join("memory.stat")).unwrap_or_default();
                let mut lines = stat.lines();
                let all = lines.find_map(|line| parse_bytes(line.strip_prefix("hierarchical_memory_limit ")?));
                own.as_deref().and_then(parse_bytes).into_iter().chain(all).min()
            }
        }
    }
}

/// Parses a limit. `max`, its counterpart in version 1, and unreadable text mean no limit.
fn parse_bytes(text: &str) -> Option<u64> {
    let bytes = text.trim().parse().ok();
    bytes.filter(|bytes| (1..UNLIMITED).contains(bytes))
}

struct Mount<'a> {
    version: Version,
    /// The mounted group, as a path in the hierarchy.
    root: &'a str,
    point: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)). Returns `None` for other mounts.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, file_system) = line.split_once(" - ")?;
        let (mut mount, mut file_system) = (mount.split(' ').skip(3), file_system.split(' '));
        let version = match (file_system.next()?, file_system.nth(1)) {
            ("cgroup2", _) => Version::V2,
            ("cgroup", Some(options)) if Version::V1.has_memory(options) => Version::V1,
            _ => return None,
        };
        Some(Self {
            version,
            root: mount.next()?,
            point: mount.next()?,
        })
    }

    /// The directory of the group with this path. A group that is not below the mounted one is not visible; the mounted one is then the
    /// nearest that is.
    fn directory(&self, group: &str) -> PathBuf {
        let below = Path::new(group).strip_prefix(self.root).unwrap_or(Path::new(""));
        Path::new(self.point).join(below)
    }
}

/// The smallest limit of a process's groups and their parents, from its files `cgroup` and `mountinfo`.
fn of_groups(cgroup: &str, mountinfo: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let group_in = |version: Version| {
        cgroup.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            version.has_memory(controllers).then_some(path)
        })
    };
    let limits = mountinfo.lines().filter_map(Mount::parse).filter_map(|mount| {
        let own = mount.directory(group_in(mount.version)?);
        let groups = own.ancestors().take_while(|group| group.starts_with(mount.point));
        groups.filter_map(|group| mount.version.limit(group, &read)).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests;
