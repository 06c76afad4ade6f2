package realnode

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

// This file starts nodes for tests.

// StartForTest runs a node until the test ends, and fails the test if anything but the logs of a failure is left then.
// Such a test must not run in parallel, because it uses the machine's namespaces.
func StartForTest(t *testing.T, options Options) *Node {
	t.Helper()
	binaries.NeedNode(t)
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

// keepLogsOf keeps the logs of a failed test and removes the rest of its node: images and volumes are gigabytes.
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
