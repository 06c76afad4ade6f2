package realnode

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

// victimVariable makes this test the process that is killed; its value is the node's directory.
const victimVariable = "CTRLMESH_NODE_VICTIM"

// TestNodeDiesWithKilledTest: a test that is killed takes its node along. Empty control groups stay, and the next node
// removes them.
func TestNodeDiesWithKilledTest(t *testing.T) {
	if dir := os.Getenv(victimVariable); dir != "" {
		startNodeAndWait(t, dir)
	}
	binaries.NeedNode(t)
	command := exec.Command(os.Args[0], "-test.run=^TestNodeDiesWithKilledTest$")
	dir := t.TempDir()
	command.Env = append(os.Environ(), victimVariable+"="+dir)
	output := must(command.StdoutPipe())(t)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line := must(bufio.NewReader(output).ReadString('\n'))(t)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("expected a process id, got %q", line)
	}
	mark := identityOf(t, pid, fmt.Sprintf("%s%d-", cgroupPrefix, command.Process.Pid), dir)
	groups := must(filepath.Glob(fmt.Sprintf("%s/*/%s%d-*", cgroupMount, cgroupPrefix, command.Process.Pid)))(t)
	unified := must(filepath.Glob(fmt.Sprintf("%s/%s%d-*", cgroupMount, cgroupPrefix, command.Process.Pid)))(t)
	if groups = append(groups, unified...); len(groups) == 0 {
		t.Error("the node has no control group")
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // the process was killed
	waitForCondition(t, 10*time.Second, "the node's processes and namespaces have ended", func() bool { return len(mark.processes()) == 0 })
	if left := must(mark.mounts())(t); len(left) > 0 {
		t.Errorf("mounts are left: %q", left)
	}
	next := must(newCgroup())(t)
	if err := next.remove(); err != nil {
		t.Error(err)
	}
	for _, group := range groups {
		if _, err := os.Stat(group); err == nil {
			t.Errorf("%s still exists", group)
		}
	}
}

// startNodeAndWait starts the processes of a node, which have several parents, prints the first one's id, and waits to
// be killed.
func startNodeAndWait(t *testing.T, dir string) {
	n := &Node{Dir: dir, Name: "victim"}
	n.programs = must(findPrograms(t.Context(), n.path("bin")))(t)
	n.cgroup = must(newCgroup())(t)
	for _, step := range []func() error{n.writeFiles, n.startPid1, n.startContainerd} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println(n.pid1.Pid())
	select {}
}
