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

// This file is for tests: it tells whether a node leaves anything behind. Others may be at work on the machine, so only that counts which is
// a node's by its name, its addresses or its directory.

// leftovers is what nodes could leave on the machine, but for processes and mounts, which are told by the node's own names.
type leftovers struct {
	interfaces, routes, tables, settings []string
	// cgroups are those of this process's nodes.
	cgroups []string
}

// machineSettings of the machine that kubelet and nodes like to change.
var machineSettings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/hostname",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward",
}

var (
	// ownLinks are what realnode/pid1 makes.
	ownLinks = []string{"uplink", "nowhere"}
	// ownTables are the node's, and those of the pods that redirect.
	ownTables = []string{"services", "redirect", "ctrlmesh"}
	// ownNetworks are those of pods, Services and the node itself.
	ownNetworks = []netip.Prefix{netip.MustParsePrefix(podCIDR), netip.MustParsePrefix(cluster.ServiceCIDR), netip.MustParsePrefix(IP + "/32")}
)

func recordLeftovers(t *testing.T) leftovers {
	var found leftovers
	for _, at := range must(net.Interfaces())(t) {
		addresses, _ := at.Addrs() // it may be gone already
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

// isOwnRoute reads a line of /proc/net/route: the interface, and the destination as the hexadecimal number that its bytes are here.
func isOwnRoute(line string) bool {
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return false
	}
	destination, err := strconv.ParseUint(fields[1], 16, 32)
	if err != nil {
		return false // the heading
	}
	var bytes [4]byte
	binary.NativeEndian.PutUint32(bytes[:], uint32(destination))
	return slices.Contains(ownLinks, fields[0]) || isOwn(netip.AddrFrom4(bytes))
}

// ownCgroups are all of this process's nodes, wherever their own code looks.
func ownCgroups(t *testing.T) []string {
	own := fmt.Sprintf("%s%d-", cgroupPrefix, os.Getpid())
	var found []string
	check := func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), own) {
			found = append(found, path)
		}
		return nil // a group that vanishes meanwhile is no error
	}
	if err := filepath.WalkDir(cgroupMount, check); err != nil {
		t.Error(err)
	}
	return found
}

// mountsWith are the machine's mounts in whose description one of these names is.
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

// nodeIdentity tells a node's processes, also when it has ended.
type nodeIdentity struct {
	// spaces are the names of its namespaces. Pods have others, and are told by the control group.
	spaces map[string]string
	cgroup string
	// dir is where all of its files are.
	dir string
}

func identityOf(t *testing.T, pid1 int, cgroup, dir string) nodeIdentity {
	spaces := map[string]string{}
	for _, kind := range []string{"mnt", "net", "pid", "uts", "ipc"} {
		spaces[kind] = must(os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid1, kind)))(t)
	}
	return nodeIdentity{spaces, "/" + cgroup, dir}
}

// processes are the programs of all threads that are the node's, or in it: a thread of this process must not stay either.
func (id nodeIdentity) processes() []string {
	var found []string
	threads, _ := filepath.Glob("/proc/[0-9]*/task/*") // the pattern is well-formed
	for _, thread := range threads {
		// A thread may end at any moment; then it is none.
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

// assertProcessesSeen makes sure that a node's processes and groups are seen at all.
func assertProcessesSeen(t *testing.T, id nodeIdentity) {
	all := id.processes()
	for _, name := range append(cachedPrograms, "pid1", "workload") {
		if slices.Contains([]string{"kubectl", "ctr", "runc", "ptp", "host-local"}, name) {
			continue // they run for a moment
		}
		if !slices.ContainsFunc(all, func(program string) bool { return filepath.Base(program) == name }) {
			t.Errorf("%s was not among the node's processes: %q", name, all)
		}
	}
	if len(ownCgroups(t)) == 0 {
		t.Error("the node had no control group")
	}
}

// mounts are the node's that the machine sees: in its directory, of its control group, or of one of its namespaces.
func (id nodeIdentity) mounts() ([]string, error) {
	return mountsWith(slices.Concat([]string{id.dir + "/", id.cgroup}, slices.Collect(maps.Values(id.spaces)))...)
}

// assertNothingLeft compares with what was there before. The kernel takes network namespaces down in its own time.
func assertNothingLeft(t *testing.T, before leftovers, id nodeIdentity) {
	waitForCondition(t, 10*time.Second, "no process or thread of the node is there", func() bool { return len(id.processes()) == 0 })
	if left := must(id.mounts())(t); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	for _, difference := range before.newLeftovers(recordLeftovers(t)) {
		t.Error(difference)
	}
}

// newLeftovers that a node may have made.
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
