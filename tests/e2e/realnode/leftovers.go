package realnode

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"github.com/google/nftables"
)

// This file checks that a node leaves nothing behind. Other programs may be at work on the machine, so only what
// belongs to a node by its name, its addresses or its directory counts.

// leftovers are things that nodes could leave on the machine, except for processes and mounts, which are found by the
// node's identity.
type leftovers struct {
	interfaces, routes, tables, settings []string
	// cgroups are those of this process's nodes.
	cgroups []string
}

// machineSettings are sysctls that kubelet and nodes would change.
var machineSettings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/hostname",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward",
}

var (
	// ownLinks are created by realnode/pid1.
	ownLinks = []string{"uplink", "nowhere"}
	// ownTables are the node's, and those of the pods that redirect traffic.
	ownTables = []string{"services", "redirect", "ctrlmesh"}
	// ownNetworks are those of pods, Services and the node itself.
	ownNetworks = []netip.Prefix{netip.MustParsePrefix(podCIDR), netip.MustParsePrefix(cluster.ServiceCIDR), netip.MustParsePrefix(IP + "/32")}
)

func recordLeftovers(t *testing.T) leftovers {
	var found leftovers
	for _, at := range must(net.Interfaces())(t) {
		addresses, _ := at.Addrs() // the interface may be gone already
		if slices.Contains(ownLinks, at.Name) || slices.ContainsFunc(addresses, isOwnAddress) {
			found.interfaces = append(found.interfaces, at.Name)
		}
	}
	for line := range strings.Lines(string(must(os.ReadFile("/proc/thread-self/net/route"))(t))) {
		if isOwnRoute(line) {
			found.routes = append(found.routes, strings.Join(strings.Fields(line), " "))
		}
	}
	for _, table := range must(must(nftables.New())(t).ListTables())(t) {
		if slices.Contains(ownTables, table.Name) {
			found.tables = append(found.tables, table.Name)
		}
	}
	for _, name := range machineSettings {
		text := must(os.ReadFile("/proc/sys/" + name))(t)
		found.settings = append(found.settings, name+" "+string(text))
	}
	found.cgroups = ownCgroups(t)
	return found
}

func isOwnAddress(address net.Addr) bool {
	prefix, err := netip.ParsePrefix(address.String())
	return err == nil && isOwn(prefix.Addr())
}

func isOwn(address netip.Addr) bool {
	return slices.ContainsFunc(ownNetworks, func(network netip.Prefix) bool { return network.Contains(address.Unmap()) })
}

// isOwnRoute parses a line of /proc/net/route: the interface, and the destination as a hexadecimal number in the
// machine's byte order.
func isOwnRoute(line string) bool {
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return false
	}
	destination, err := strconv.ParseUint(fields[1], 16, 32)
	if err != nil {
		return false // the table's header
	}
	var bytes [4]byte
	binary.NativeEndian.PutUint32(bytes[:], uint32(destination))
	return slices.Contains(ownLinks, fields[0]) || isOwn(netip.AddrFrom4(bytes))
}

// ownCgroups finds all control groups of this process's nodes, independent of the node's own code.
func ownCgroups(t *testing.T) []string {
	own := fmt.Sprintf("%s%d-", cgroupPrefix, os.Getpid())
	var found []string
	check := func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), own) {
			found = append(found, path)
		}
		return nil // a group may vanish meanwhile
	}
	if err := filepath.WalkDir(cgroupMount, check); err != nil {
		t.Error(err)
	}
	return found
}

// mountsWith returns the machine's mounts that mention one of these names.
func mountsWith(names ...string) ([]string, error) {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(string(mounts)) {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(line, name) }) {
			found = append(found, line)
		}
	}
	return found, nil
}

// nodeIdentity recognizes a node's processes and mounts, also when the node has ended.
type nodeIdentity struct {
	// spaces are the names of its namespaces. Pods have others, and are recognized by the control group.
	spaces map[string]string
	cgroup string
	// dir contains all of its files.
	dir string
}

func identityOf(t *testing.T, pid1 int, cgroup, dir string) nodeIdentity {
	spaces := map[string]string{}
	for _, kind := range []string{"mnt", "net", "pid", "uts", "ipc"} {
		spaces[kind] = must(os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid1, kind)))(t)
	}
	return nodeIdentity{spaces, "/" + cgroup, dir}
}

// processes returns the programs of all threads that belong to the node or are in its namespaces: threads of this
// process count too.
func (id nodeIdentity) processes() []string {
	var found []string
	threads, _ := filepath.Glob("/proc/[0-9]*/task/*") // the pattern is valid
	for _, thread := range threads {
		// A thread may end at any time; then it is skipped.
		program, _ := os.Readlink(filepath.Join(thread, "exe"))
		group, _ := os.ReadFile(filepath.Join(thread, "cgroup"))
		belongs := strings.Contains(string(group), id.cgroup)
		for kind, name := range id.spaces {
			in, _ := os.Readlink(filepath.Join(thread, "ns", kind))
			belongs = belongs || in == name
		}
		if belongs {
			found = append(found, program)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// assertProcessesSeen checks the check itself: a running node's processes and groups must be found.
func assertProcessesSeen(t *testing.T, id nodeIdentity) {
	all := id.processes()
	for _, name := range append(cachedPrograms, "pid1", "workload") {
		if slices.Contains([]string{"kubectl", "ctr", "runc", "ptp", "host-local"}, name) {
			continue // these run only for a moment
		}
		if !slices.ContainsFunc(all, func(program string) bool { return filepath.Base(program) == name }) {
			t.Errorf("%s was not found among the node's processes: %q", name, all)
		}
	}
	if len(ownCgroups(t)) == 0 {
		t.Error("the node had no control group")
	}
}

// mounts returns the node's mounts that the machine sees: in its directory, of its control group, or of one of its
// namespaces.
func (id nodeIdentity) mounts() ([]string, error) {
	return mountsWith(slices.Concat([]string{id.dir + "/", id.cgroup}, slices.Collect(maps.Values(id.spaces)))...)
}

// assertNothingLeft compares with the state before the node. The kernel removes network namespaces asynchronously.
func assertNothingLeft(t *testing.T, before leftovers, id nodeIdentity) {
	waitForCondition(t, 10*time.Second, "no process or thread of the node is left", func() bool { return len(id.processes()) == 0 })
	if left := must(id.mounts())(t); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	for _, difference := range before.newLeftovers(recordLeftovers(t)) {
		t.Error(difference)
	}
}

// newLeftovers describes the differences that a node may have made.
func (before leftovers) newLeftovers(after leftovers) []string {
	var found []string
	for what, pair := range map[string][2][]string{
		"interfaces":     {before.interfaces, after.interfaces},
		"routes":         {before.routes, after.routes},
		"nftables":       {before.tables, after.tables},
		"settings":       {before.settings, after.settings},
		"control groups": {before.cgroups, after.cgroups},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			found = append(found, fmt.Sprintf("%s\nbefore: %q\nafter:  %q", what, pair[0], pair[1]))
		}
	}
	return found
}
