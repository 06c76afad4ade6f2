package realnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

// This file limits the memory of programs as kubelet limits that of containers.

// MemoryGroup is a control group with a memory limit.
type MemoryGroup struct {
	// Dir is the group's directory, whose file cgroup.procs lists its processes.
	Dir string
	// isV2 is the version of control groups.
	isV2 bool
}

// LimitMemory creates a control group that exists until the test ends; its processes must have ended by then. Without
// the privileges the test is skipped, or fails if a node is required.
func LimitMemory(t *testing.T, bytes int64) *MemoryGroup {
	t.Helper()
	binaries.NeedNode(t)
	group := must(newCgroup())(t)
	t.Cleanup(func() {
		if err := group.remove(); err != nil {
			t.Error(err)
		}
	})
	m := &MemoryGroup{}
	for _, dir := range group.dirs {
		for file, isV2 := range map[string]bool{"memory.max": true, "memory.limit_in_bytes": false} {
			if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
				m.Dir, m.isV2 = dir, isV2
			}
		}
	}
	settings := map[string]string{"memory.limit_in_bytes": strconv.FormatInt(bytes, 10)}
	if m.isV2 {
		// If one process runs out of memory, the kernel kills the whole group, as with kubelet.
		settings = map[string]string{"memory.max": strconv.FormatInt(bytes, 10), "memory.oom.group": "1"}
	}
	for file, value := range settings {
		if err := os.WriteFile(filepath.Join(m.Dir, file), []byte(value), 0o644); err != nil {
			t.Fatalf("limit memory: %v", err)
		}
	}
	return m
}

// Kills returns how many processes the kernel has killed because of the limit.
func (m *MemoryGroup) Kills() (int, error) {
	file := "memory.oom_control"
	if m.isV2 {
		file = "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(m.Dir, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if count, found := strings.CutPrefix(line, "oom_kill "); found {
			return strconv.Atoi(strings.TrimSpace(count))
		}
	}
	return 0, fmt.Errorf("%s does not count kills:\n%s", file, text)
}

// Anonymous returns the bytes that the group's processes hold and the kernel cannot reclaim by writing files back.
func (m *MemoryGroup) Anonymous() (int64, error) {
	name := "rss "
	if m.isV2 {
		name = "anon "
	}
	text, err := os.ReadFile(filepath.Join(m.Dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if bytes, found := strings.CutPrefix(line, name); found {
			return strconv.ParseInt(strings.TrimSpace(bytes), 10, 64)
		}
	}
	return 0, fmt.Errorf("memory.stat does not name %s:\n%s", name, text)
}
