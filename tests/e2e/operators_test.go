package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/process"
)

// This file runs real operators (the operator package's program, written with controller-runtime, and
// ../kube-rs-operator) and reads their journals.

// operatorProcess is one replica.
type operatorProcess struct {
	id      string
	process *process.Process
	journal string
}

// record is a line of an operator's journal; see operator/main.go.
type record struct {
	Event, ID, Object, Step, Detail string
}

// startOperator runs a replica with a kubeconfig until the test ends.
func startOperator(t *testing.T, id, kubeconfig string, flags ...string) *operatorProcess {
	t.Helper()
	return runOperator(t, id, process.Spec{Path: shared.operatorBinary, Args: flags, Env: []string{"KUBECONFIG=" + kubeconfig}})
}

// runOperator runs a program as a replica until the test ends.
func runOperator(t *testing.T, id string, spec process.Spec) *operatorProcess {
	t.Helper()
	dir := newDir(t)
	op := &operatorProcess{id: id, journal: filepath.Join(dir, "journal")}
	out := must(os.Create(op.journal))(t)
	defer out.Close()
	spec.Name, spec.LogDir, spec.Stdout = "operator-"+id, dir, out
	spec.Args = append([]string{"--id=" + id}, spec.Args...)
	var err error
	op.process, err = process.Start(spec)
	check(t, err)
	t.Cleanup(func() {
		if err := op.process.Stop(process.StopGrace); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of %s:\n%s", op.process.LogPath, op.process.LogTail(2048))
		}
	})
	return op
}

// records returns the journal so far.
func (op *operatorProcess) records(t *testing.T) []record {
	t.Helper()
	file := must(os.Open(op.journal))(t)
	defer file.Close()
	found := []record{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			break // the last line is still being written
		}
		found = append(found, r)
	}
	check(t, lines.Err())
	return found
}

// countRecords counts records of a kind.
func (op *operatorProcess) countRecords(t *testing.T, event string) int {
	t.Helper()
	n := 0
	for _, r := range op.records(t) {
		if r.Event == event {
			n++
		}
	}
	return n
}

// assertNoFaults asserts that no request of the operator failed, and that it met no step that another replica had
// handled.
func (op *operatorProcess) assertNoFaults(t *testing.T) {
	t.Helper()
	for _, r := range op.records(t) {
		if r.Event == "failed" || r.Event == "twice" {
			t.Errorf("operator %s: %s %s %s: %s", op.id, r.Event, r.Object, r.Step, r.Detail)
		}
	}
	if !op.process.Alive() {
		t.Errorf("operator %s ended: %v", op.id, op.process.Err())
	}
}

// waitForgotten waits until the operator has seen the deletion of each object.
func (op *operatorProcess) waitForgotten(t *testing.T, objects []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("operator %s has forgotten %d objects", op.id, len(objects)), func() error {
		gone := map[string]bool{}
		for _, r := range op.records(t) {
			switch r.Event {
			case "gone":
				gone[r.Object] = true
			case "handled":
				delete(gone, r.Object)
			}
		}
		for _, object := range objects {
			if !gone[object] {
				return fmt.Errorf("the operator still caches %s", object)
			}
		}
		return nil
	})
}

// waitLeadingOperator waits until one of the operators leads.
func waitLeadingOperator(t *testing.T, operators ...*operatorProcess) *operatorProcess {
	t.Helper()
	var leader *operatorProcess
	eventually(t, "one of the operators leads", func() error {
		for _, op := range operators {
			if op.process.Alive() && op.countRecords(t, "leading") > 0 {
				leader = op
				return nil
			}
		}
		return fmt.Errorf("none of the %d operators leads", len(operators))
	})
	return leader
}
