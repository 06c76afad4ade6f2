package e2e

import (
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/manager"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file tests the leader election of managers.

// managerLease is the name of the lock, the same as that of KusionStack's manager.
const managerLease = "ctrlmesh-manager"

func TestOtherManagerLeadsWhenLeaderEnds(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	m.leaseSeconds = manager.LeastLeaseSeconds
	managers := []*manager.Manager{m.startManager(t, "manager-0"), m.startManager(t, "manager-1")}
	first := waitLeader(t, managers...)
	second := managers[0]
	if first == second {
		second = managers[1]
	}
	holder := func() string {
		got := must(m.client.CoordinationV1().Leases(manager.Namespace).Get(t.Context(), managerLease, meta.GetOptions{}))(t)
		if got.Spec.HolderIdentity == nil {
			return ""
		}
		return *got.Spec.HolderIdentity
	}
	if second.IsLeading(t.Context()) || holder() != first.Name {
		t.Errorf("%s leads, the lock is held by %q, and the other leads: %v", first.Name, holder(), second.IsLeading(t.Context()))
	}
	// A killed manager can't release the lock: the other one waits until it expires.
	first.Process.Kill()
	killed := time.Now()
	waitLeader(t, second)
	t.Logf("the standby leads after %s", time.Since(killed).Round(time.Millisecond))
	// A stopped manager releases the lock: the next one leads at once.
	third := m.startManager(t, "manager-2")
	if third.IsLeading(t.Context()) {
		t.Error("two managers lead")
	}
	check(t, second.Stop())
	if held := holder(); held == second.Name {
		t.Error("a stopped manager still holds the lock")
	}
	waitLeader(t, third)
}
