package realnode

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
)

// This file is for tests: it tells whether a node leaves anything behind.

// traces is what a node could leave on the machine, but for processes.
type traces struct {
	mounts, interfaces, routes, tables, settings []string
	// cgroups are those of this process's nodes.
	cgroups []string
}

// settings of the machine that kubelet and nodes like to change.
var settings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/hostname",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward",
}

func takeTraces(t *testing.T) traces {
	found := traces{
		mounts: columns(t, "/proc/self/mountinfo", 4), // the mount points
		routes: columns(t, "/proc/net/route", 0, 1, 2, 7),
	}
	for _, at := range must(net.Interfaces())(t) {
		found.interfaces = append(found.interfaces, at.Name)
	}
	for _, table := range must(must(nftables.New())(t).ListTables())(t) {
		found.tables = append(found.tables, table.Name)
	}
	for _, name := range settings {
		text := must(os.ReadFile("/proc/sys/" + name))(t)
		found.settings = append(found.settings, name+" "+string(text))
	}
	own := fmt.Sprintf("%s%d-", cgroupPrefix, os.Getpid())
	// All of them, wherever the node's own code looks.
	check := func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), own) {
			found.cgroups = append(found.cgroups, path)
		}
		return nil // a group that vanishes meanwhile is no error
	}
	if err := filepath.WalkDir(cgroupMount, check); err != nil {
		t.Error(err)
	}
	return found
}

// columns are those of the lines of a file, sorted.
func columns(t *testing.T, file string, which ...int) []string {
	var found []string
	for line := range strings.Lines(string(must(os.ReadFile(file))(t))) {
		var kept []string
		for _, column := range which {
			if fields := strings.Fields(line); column < len(fields) {
				kept = append(kept, fields[column])
			}
		}
		found = append(found, strings.Join(kept, " "))
	}
	slices.Sort(found)
	return found
}

// mark tells a node's processes, also when it has ended.
type mark struct {
	// spaces are the names of its namespaces. Pods have others, and are told by the control group.
	spaces map[string]string
	cgroup string
}

func markOf(t *testing.T, pid1 int, cgroup string) mark {
	spaces := map[string]string{}
	for _, kind := range []string{"mnt", "net", "pid", "uts", "ipc"} {
		spaces[kind] = must(os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid1, kind)))(t)
	}
	return mark{spaces, "/" + cgroup}
}

// processes are the programs of all threads that are the node's, or in it: a thread of this process must not stay either.
func (m mark) processes() []string {
	var found []string
	threads, _ := filepath.Glob("/proc/[0-9]*/task/*") // the pattern is well-formed
	for _, thread := range threads {
		// A thread may end at any moment; then it is none.
		program, _ := os.Readlink(filepath.Join(thread, "exe"))
		group, _ := os.ReadFile(filepath.Join(thread, "cgroup"))
		belongs := strings.Contains(string(group), m.cgroup)
		for kind, name := range m.spaces {
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

// demandAll makes sure that a node's processes and groups are seen at all.
func demandAll(t *testing.T, m mark) {
	all := m.processes()
	for _, name := range append(built, "pid1", "workload") {
		if slices.Contains([]string{"kubectl", "ctr", "runc", "ptp", "host-local"}, name) {
			continue // they run for a moment
		}
		if !slices.ContainsFunc(all, func(program string) bool { return filepath.Base(program) == name }) {
			t.Errorf("%s was not among the node's processes: %q", name, all)
		}
	}
	if len(takeTraces(t).cgroups) == 0 {
		t.Error("the node had no control group")
	}
}

// leftNothing compares with what was there before. The kernel takes network namespaces down in its own time.
func leftNothing(t *testing.T, before traces, m mark) {
	eventually(t, 10*time.Second, "no process or thread of the node is there", func() bool { return len(m.processes()) == 0 })
	after := takeTraces(t)
	for what, pair := range map[string][2][]string{
		"mounts":         {before.mounts, after.mounts},
		"interfaces":     {before.interfaces, after.interfaces},
		"routes":         {before.routes, after.routes},
		"nftables":       {before.tables, after.tables},
		"settings":       {before.settings, after.settings},
		"control groups": {before.cgroups, after.cgroups},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s\nbefore: %q\nafter:  %q", what, pair[0], pair[1])
		}
	}
}
