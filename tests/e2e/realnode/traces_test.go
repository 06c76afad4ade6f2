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

// traces is what a node could leave on the machine.
type traces struct {
	mounts, interfaces, routes, tables, settings []string
	// processes and cgroups are a node's own, told by names that only they have.
	processes, cgroups []string
}

// settings of the machine that kubelet and nodes like to change.
var settings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/hostname",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "net/ipv4/ip_forward",
}

func takeTraces(t *testing.T, n *Node) traces {
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
	found.processes = processes(n)
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

// processes are those in a node's control group, and those in other namespaces that run its programs.
func processes(n *Node) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well-formed
	own, _ := os.Readlink("/proc/self/ns/pid")
	for _, dir := range dirs {
		// A process may end at any moment; then it is none.
		space, _ := os.Readlink(filepath.Join(dir, "ns/pid"))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		program, _ := os.Readlink(filepath.Join(dir, "exe"))
		if space == "" || space == own {
			continue
		}
		if strings.Contains(string(group), "/"+cgroupPrefix) || n != nil && n.runs(program) {
			found = append(found, program)
		}
	}
	slices.Sort(found)
	return found
}

func (n *Node) runs(program string) bool {
	return strings.HasPrefix(program, n.Dir) || slices.Contains(n.programs.dirs(), filepath.Dir(program))
}

// demand makes sure that traces can be seen at all.
func (during traces) demand(t *testing.T) {
	all := strings.Join(during.processes, " ")
	for _, name := range []string{"pid1", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "containerd", "kubelet"} {
		if !strings.Contains(all, "/"+name) {
			t.Errorf("%s was not among the node's processes: %s", name, all)
		}
	}
	if len(during.cgroups) == 0 {
		t.Error("the node had no control group")
	}
}

// leftNothing compares with what was there before. The kernel takes network namespaces down in its own time.
func leftNothing(t *testing.T, n *Node, before traces, spaces map[string]string) {
	after := takeTraces(t, n)
	for what, pair := range map[string][2][]string{
		"mounts":         {before.mounts, after.mounts},
		"interfaces":     {before.interfaces, after.interfaces},
		"routes":         {before.routes, after.routes},
		"nftables":       {before.tables, after.tables},
		"settings":       {before.settings, after.settings},
		"processes":      {before.processes, after.processes},
		"control groups": {before.cgroups, after.cgroups},
	} {
		if !slices.Equal(pair[0], pair[1]) {
			t.Errorf("%s\nbefore: %q\nafter:  %q", what, pair[0], pair[1])
		}
	}
	eventually(t, 10*time.Second, "no thread is in a namespace of the node", func() bool { return !entered(spaces) })
}

func namespacesOf(t *testing.T, pid int) map[string]string {
	spaces := map[string]string{}
	for _, kind := range []string{"mnt", "net", "pid", "uts", "ipc"} {
		spaces[kind] = must(os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind)))(t)
	}
	return spaces
}

func entered(spaces map[string]string) bool {
	threads, _ := filepath.Glob("/proc/[0-9]*/task/*") // the pattern is well-formed
	for _, thread := range threads {
		for kind, name := range spaces {
			if in, err := os.Readlink(filepath.Join(thread, "ns", kind)); err == nil && in == name {
				return true
			}
		}
	}
	return false
}
