use super::*;

const V2: &str = "30 23 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec - cgroup2 cgroup rw,nsdelegate";
const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                  32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                  35 31 0:32 / /sys/fs/cgroup/memory rw shared:15 - cgroup cgroup rw,memory";
const NO_LIMIT_OF_V1: &str = "9223372036854771712\n";

fn limit_of_files(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> Option<u64> {
    let read = |path: &Path| {
        let file = files
            .iter()
            .find(|(name, _)| Path::new("/sys/fs/cgroup").join(name) == path);
        file.map(|(_, text)| (*text).to_owned())
    };
    of_groups(cgroup, mountinfo, read)
}

#[test]
fn limit_is_read_in_container_that_sees_its_group_as_root() {
    assert_eq!(
        limit_of_files("0::/\n", V2, &[("memory.max", "268435456\n")]),
        Some(256 << 20)
    );
    assert_eq!(limit_of_files("0::/\n", V2, &[("memory.max", "max\n")]), None);
    let v1 = [("memory/memory.limit_in_bytes", "268435456\n")];
    assert_eq!(limit_of_files("4:memory:/\n0::/\n", V1, &v1), Some(256 << 20));
    assert_eq!(
        limit_of_files("4:memory:/\n", V1, &[("memory/memory.limit_in_bytes", NO_LIMIT_OF_V1)]),
        None
    );
}

#[test]
fn smallest_limit_of_nested_groups_counts() {
    let files = |own, middle| {
        let root = ("memory.max", "max\n");
        limit_of_files(
            "0::/kubepods/pod1/sidecar\n",
            V2,
            &[
                root,
                ("kubepods/pod1/memory.max", middle),
                ("kubepods/pod1/sidecar/memory.max", own),
            ],
        )
    };
    assert_eq!(files("268435456\n", "max\n"), Some(256 << 20));
    assert_eq!(files("max\n", "134217728\n"), Some(128 << 20));
    assert_eq!(files("268435456\n", "134217728\n"), Some(128 << 20));
    let v1 = [
        ("memory/a/b/memory.limit_in_bytes", NO_LIMIT_OF_V1),
        ("memory/a/memory.limit_in_bytes", "268435456\n"),
    ];
    assert_eq!(
        limit_of_files("5:cpu,cpuacct:/x\n4:memory:/a/b\n", V1, &v1),
        Some(256 << 20)
    );
}

#[test]
fn container_that_sees_hierarchy_of_machine_finds_its_group() {
    let line = "35 31 0:32 /kubepods/pod1/sidecar /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
    let file = [("memory/memory.limit_in_bytes", "268435456\n")];
    assert_eq!(
        limit_of_files("4:memory:/kubepods/pod1/sidecar\n", line, &file),
        Some(256 << 20)
    );
    assert_eq!(
        limit_of_files("4:memory:/elsewhere\n", line, &file),
        Some(256 << 20),
        "the mounted group is the nearest that can be seen"
    );
    let prefix_alone = "35 31 0:32 /kubepods/pod1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
    assert_eq!(
        limit_of_files("4:memory:/kubepods/pod12\n", prefix_alone, &file),
        Some(256 << 20)
    );
}

#[test]
fn limit_of_hidden_parent_group_is_read_from_statistics() {
    let files = [
        ("memory/memory.limit_in_bytes", NO_LIMIT_OF_V1),
        (
            "memory/memory.stat",
            "cache 0\nhierarchical_memory_limit 134217728\nhierarchical_memsw_limit 1\n",
        ),
    ];
    assert_eq!(limit_of_files("4:memory:/\n", V1, &files), Some(128 << 20));
}

#[test]
fn memory_may_be_in_either_version_where_both_are_mounted() {
    let both = format!("{V1}\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw");
    let groups = "4:memory:/a\n0::/b\n";
    let v1 = ("memory/a/memory.limit_in_bytes", "268435456\n");
    let v2 = ("unified/b/memory.max", "134217728\n");
    assert_eq!(limit_of_files(groups, &both, &[v1]), Some(256 << 20));
    assert_eq!(limit_of_files(groups, &both, &[v2]), Some(128 << 20));
    assert_eq!(limit_of_files(groups, &both, &[v1, v2]), Some(128 << 20));
}

#[test]
fn unreadable_limits_are_no_limit() {
    for text in ["", "\n", "-1", "0", "12x", "99999999999999999999999"] {
        assert_eq!(limit_of_files("0::/\n", V2, &[("memory.max", text)]), None, "{text:?}");
    }
    assert_eq!(limit_of_files("0::/\n", V2, &[]), None);
    assert_eq!(limit_of_files("", "", &[("memory.max", "1000000000")]), None);
    for garbage in [
        "x",
        "0:/",
        " - cgroup2",
        "1 2 3 - cgroup2 x y",
        "a b c d e - cgroup",
        "\u{0} - ",
    ] {
        assert_eq!(limit_of_files(garbage, garbage, &[]), None, "{garbage:?}");
    }
}

#[test]
fn sizes_are_parsed_in_kubernetes_notation() {
    for (text, bytes) in [
        ("64Mi", 64 << 20),
        ("256Mi", 256 << 20),
        ("1Gi", 1 << 30),
        ("262144Ki", 256 << 20),
        ("268435456", 256 << 20),
    ] {
        assert_eq!(parse(text), Ok(bytes), "{text}");
    }
    for text in ["", "Mi", "256", "63Mi", "256MB", "256 Mi", "-1Gi", "1.5Gi", "256mi"] {
        assert!(parse(text).is_err(), "{text}");
    }
}

#[test]
fn configured_limit_can_only_be_lower_than_containers() {
    let (container, smallest) = (effective_limit(None), SMALLEST_LIMIT as u64);
    assert_eq!(
        effective_limit(Some(smallest)),
        Some(container.map_or(smallest, |limit| limit.min(smallest)))
    );
    assert_eq!(effective_limit(Some(u64::MAX)), container.or(Some(u64::MAX)));
}
