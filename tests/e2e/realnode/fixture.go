package realnode

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

// This file gives tests a node that ends with them.

// required, as a value of this variable, makes a node that can't run a failure.
const nodeVariable, required = "CTRLMESH_NODE", "required"

// NeedNode leaves a test out where no node can run, or fails it if one has to.
func NeedNode(t *testing.T) {
	t.Helper()
	reason := binaries.NodeUnavailable()
	if reason == "" {
		return
	}
	if os.Getenv(nodeVariable) == required {
		t.Fatal(reason)
	}
	t.Skip("left out: " + reason)
}

// StartForTest runs a node until the test ends, and fails the test if anything of it is left then but the logs of a failure. Such a
// test has the machine's namespaces for itself: it is not run in parallel.
func StartForTest(t *testing.T, options Options) *Node {
	t.Helper()
	NeedNode(t)
	before := recordLeftovers(t)
	dir := must(filepath.EvalSymlinks(must(os.MkdirTemp("", "ctrlmesh-node-"))(t)))(t)
	begin := time.Now()
	n, err := Start(t.Context(), dir, options)
	if err != nil {
		t.Errorf("%v", err)
		keepLogsOf(t, dir)
		t.FailNow()
	}
	t.Logf("the node was ready after %s", time.Since(begin).Round(10*time.Millisecond))
	mark := identityOf(t, n.pid1.Pid(), n.cgroup.name, n.Dir)
	t.Cleanup(func() {
		assertProcessesSeen(t, mark)
		begin := time.Now()
		if err := n.Stop(); err != nil {
			t.Error(err)
		}
		t.Logf("the node had ended after %s", time.Since(begin).Round(10*time.Millisecond))
		assertNothingLeft(t, before, mark)
		if t.Failed() {
			keepLogsOf(t, dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return n
}

// keepLogsOf a failed test are kept, and nothing else of its node: images and volumes are gigabytes.
func keepLogsOf(t *testing.T, dir string) {
	t.Helper()
	if logs, err := keepLogsOnly(dir); err != nil {
		t.Errorf("%v; everything is in %s", err, dir)
	} else {
		t.Logf("logs are in %s", logs)
	}
}

func waitForCondition(t *testing.T, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(pollInterval) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
