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

// This file runs real operators (the operator package's program, written with controller-runtime, and ../kube-rs-operator) and
// reads what they say they did.

// operator is one replica, in a process of its own.
type operator struct {
	id      string
	process *process.Process
	journal string
}

// record is a line of an operator's journal; see operator/main.go.
type record struct {
	Event, ID, Object, Step, Detail string
}

// startOperator runs a replica behind the API that the kubeconfig names, until the test ends.
func startOperator(t *testing.T, id, kubeconfig string, flags ...string) *operator {
	t.Helper()
	return runOperator(t, id, process.Spec{Path: shared.operator, Args: flags, Env: []string{"KUBECONFIG=" + kubeconfig}})
}

// runOperator runs a program as a replica, until the test ends.
func runOperator(t *testing.T, id string, spec process.Spec) *operator {
	t.Helper()
	dir := newDir(t)
	o := &operator{id: id, journal: filepath.Join(dir, "journal")}
	out := must(os.Create(o.journal))(t)
	defer out.Close()
	spec.Name, spec.LogDir, spec.Stdout = "operator-"+id, dir, out
	spec.Args = append([]string{"--id=" + id}, spec.Args...)
	var err error
	o.process, err = process.Start(spec)
	check(t, err)
	t.Cleanup(func() {
		if err := o.process.Stop(process.StopGrace); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of %s:\n%s", o.process.LogPath, o.process.LogTail(2048))
		}
	})
	return o
}

// records is the journal up to now.
func (o *operator) records(t *testing.T) []record {
	t.Helper()
	file := must(os.Open(o.journal))(t)
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

// count of records of a kind.
func (o *operator) count(t *testing.T, event string) int {
	t.Helper()
	n := 0
	for _, r := range o.records(t) {
		if r.Event == event {
			n++
		}
	}
	return n
}

// faultless demands that the operator never saw a request fail and never met a step that another replica had handled.
func (o *operator) faultless(t *testing.T) {
	t.Helper()
	for _, r := range o.records(t) {
		if r.Event == "failed" || r.Event == "twice" {
			t.Errorf("operator %s: %s %s %s: %s", o.id, r.Event, r.Object, r.Step, r.Detail)
		}
	}
	if !o.process.Alive() {
		t.Errorf("operator %s ended: %v", o.id, o.process.Err())
	}
}

// forgotten waits until the operator has seen each object go from its cache.
func (o *operator) forgotten(t *testing.T, objects []string) {
	t.Helper()
	eventually(t, fmt.Sprintf("operator %s has forgotten %d objects", o.id, len(objects)), func() error {
		gone := map[string]bool{}
		for _, r := range o.records(t) {
			switch r.Event {
			case "gone":
				gone[r.Object] = true
			case "handled":
				delete(gone, r.Object)
			}
		}
		for _, object := range objects {
			if !gone[object] {
				return fmt.Errorf("it still knows %s", object)
			}
		}
		return nil
	})
}

// leading waits until one of the operators leads, and returns it.
func leading(t *testing.T, operators ...*operator) *operator {
	t.Helper()
	var leader *operator
	eventually(t, "one of the operators leads", func() error {
		for _, o := range operators {
			if o.process.Alive() && o.count(t, "leading") > 0 {
				leader = o
				return nil
			}
		}
		return fmt.Errorf("none of %d does", len(operators))
	})
	return leader
}
