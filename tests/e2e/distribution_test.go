package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file follows objects from `kubectl apply` to all sidecars, and back into their status.

const (
	// enforceLimit is the time that sidecars may take once their volumes are synced.
	enforceLimit = 2 * time.Second
	// The pods of two shards: twenty sidecars.
	leftPodCount, rightPodCount = 12, 8
)

// enforcement is a mesh with two shards and their running pods.
type enforcement struct {
	*mesh
	*nodePods
	left, right []string
}

func (e *enforcement) allPods() []string { return slices.Concat(e.left, e.right) }

// newEnforcement runs the pods of two shards, each with the objects of one value. A zero sync period means kubelet's
// default.
func newEnforcement(t *testing.T, m *mesh, left, right int, syncPeriod time.Duration) *enforcement {
	t.Helper()
	namespace := m.newNamespace(t)
	m.apply(t, namespace, shardConfig("left", "a"))
	m.apply(t, namespace, shardConfig("right", "b"))
	for _, name := range []string{"left", "right"} {
		m.waitCondition(t, "ShardingConfig", namespace, name, "Distributed", meta.ConditionTrue)
	}
	e := &enforcement{mesh: m, nodePods: startPods(t, m.controlPlane, namespace, podOptions{publicKey: m.waitPublicKey(t), syncPeriod: syncPeriod})}
	for i := range left {
		e.left = append(e.left, fmt.Sprintf("left-%d", i))
	}
	for i := range right {
		e.right = append(e.right, fmt.Sprintf("right-%d", i))
	}
	for _, name := range e.left {
		e.create(t, name, map[string]string{"app": "operator", "shard": "left"})
	}
	for _, name := range e.right {
		e.create(t, name, map[string]string{"app": "operator", "shard": "right"})
	}
	for _, name := range e.allPods() {
		e.waitReady(t, name)
	}
	return e
}

// waitEntries waits until the sidecars run exactly these entries.
func (e *enforcement) waitEntries(t *testing.T, names []string, want ...string) {
	t.Helper()
	for _, name := range names {
		s := e.sidecar(name)
		check(t, s.WaitStatus(t.Context(), fmt.Sprint("entries ", want), func(status sidecar.Status) bool { return hasEntries(status, want) }))
	}
}

// lastVolumeSync returns when the last volume got its current content.
func (e *enforcement) lastVolumeSync() time.Time {
	var last time.Time
	for _, name := range e.allPods() {
		if swap := e.kubelet.SyncState(e.nodePods.namespace, name).Last; swap.After(last) {
			last = swap
		}
	}
	return last
}

// hasEntries returns whether exactly these entries run.
func hasEntries(status sidecar.Status, want []string) bool {
	found := []string{}
	for _, entry := range status.Chain.Entries {
		if entry.State == "Active" {
			found = append(found, entry.Name)
		}
	}
	slices.Sort(found)
	slices.Sort(want)
	return slices.Equal(found, want)
}

// TestObjectsAreDistributedAndReported runs its parts on one pair of managers. The first part runs alone, because it
// measures time.
func TestObjectsAreDistributedAndReported(t *testing.T) {
	m := newMesh(t, "--rest-config-qps=500", "--rest-config-burst=500")
	m.setLabelledKinds(t, "")
	waitLeader(t, m.startManager(t, "manager-0"), m.startManager(t, "manager-1"))
	t.Run("objects_are_enforced_in_twenty_sidecars", func(t *testing.T) { testEnforcement(t, m) })
	t.Run("foreign_changes_are_undone", func(t *testing.T) {
		t.Parallel()
		testRepair(t, m)
	})
	t.Run("many_objects_are_one_write", func(t *testing.T) {
		t.Parallel()
		testManyObjects(t, m)
	})
}

func testEnforcement(t *testing.T, m *mesh) {
	m.warmCompileCache(t)
	e := newEnforcement(t, m, leftPodCount, rightPodCount, 0)
	namespace := e.nodePods.namespace
	for name, count := range map[string]string{"left": "12/12", "right": "8/8"} {
		if got := m.waitCondition(t, "ShardingConfig", namespace, name, "Enforced", meta.ConditionTrue); got.Enforced != count {
			t.Errorf("%s is enforced in %s", name, got.Enforced)
		}
	}

	applied := time.Now()
	m.apply(t, namespace, breakerConfig("breakers"))
	m.apply(t, namespace, faultConfig("faults", "left"))
	e.waitEntries(t, e.left, "circuit-breaker/breakers", "fault-inject/faults", "shard-selector/left")
	e.waitEntries(t, e.right, "circuit-breaker/breakers", "shard-selector/right")
	took := time.Since(e.lastVolumeSync())
	t.Logf("enforced by all sidecars %s after apply, %s after the volumes were synced", time.Since(applied).Round(time.Millisecond), took.Round(time.Millisecond))
	if took > enforceLimit {
		t.Errorf("20 sidecars took %s from the sync of their volumes", took)
	}
	e.assertObjectStatus(t, namespace)
	t.Run("operators_are_sharded", func(t *testing.T) { e.testShardedOperators(t) })

	check(t, m.resource("FaultInjection", namespace).Delete(t.Context(), "faults", meta.DeleteOptions{}))
	e.waitEntries(t, e.left, "circuit-breaker/breakers", "shard-selector/left")
}

// warmCompileCache lets one sidecar compile every plugin first. The others share its cache of compiled plugins, as
// sidecars of a node do: the time of twenty concurrent compilations is not what is measured.
func (m *mesh) warmCompileCache(t *testing.T) {
	t.Helper()
	e := newEnforcement(t, m, 1, 0, 0)
	m.apply(t, e.nodePods.namespace, breakerConfig("breakers"))
	m.apply(t, e.nodePods.namespace, faultConfig("faults", "left"))
	e.waitEntries(t, e.left, "circuit-breaker/breakers", "fault-inject/faults", "shard-selector/left")
}

// assertObjectStatus compares the status of the objects with what the sidecars run.
func (e *enforcement) assertObjectStatus(t *testing.T, namespace string) {
	t.Helper()
	breakers := e.waitCondition(t, "CircuitBreaker", namespace, "breakers", "Enforced", meta.ConditionTrue)
	faults := e.waitCondition(t, "FaultInjection", namespace, "faults", "Enforced", meta.ConditionTrue)
	for _, got := range []objectStatus{breakers, faults} {
		for _, condition := range []string{"Accepted", "Distributed"} {
			if got.condition(condition).Status != meta.ConditionTrue {
				t.Errorf("the conditions are %s", describeConditions(got.Conditions))
			}
		}
	}
	e.assertTargetStatus(t, breakers, e.allPods())
	e.assertTargetStatus(t, faults, e.left)
	for _, target := range breakers.TargetStatus {
		states := map[string]string{}
		for _, snapshot := range target.LimitingSnapshots {
			states[fmt.Sprint(snapshot["name"])] = fmt.Sprint(snapshot["state"])
		}
		if len(states) != 2 || states["secrets"] != "Closed" || states["nodes"] != "Opened" {
			t.Errorf("the breakers of %s in the status are %v", target.PodName, target.LimitingSnapshots)
		}
	}
	e.assertKubectlOutput(t, namespace)
}

// assertTargetStatus asserts one target for each pod, which has acknowledged the current spec.
func (e *enforcement) assertTargetStatus(t *testing.T, got objectStatus, pods []string) {
	t.Helper()
	names := []string{}
	for _, target := range got.TargetStatus {
		names = append(names, target.PodName)
		s := e.sidecar(target.PodName)
		if s == nil || target.PodIP+":"+kubelet.AdminPort != s.Admin || target.ConfigHash == "" || target.ConfigHash != got.CurrentSpecHash || target.Message != "" {
			t.Errorf("target %+v does not have the hash %q", target, got.CurrentSpecHash)
		}
	}
	slices.Sort(names)
	if want := slices.Sorted(slices.Values(pods)); !slices.Equal(names, want) {
		t.Errorf("the targets are %v, want %v", names, want)
	}
	if want := fmt.Sprintf("%d/%d", len(pods), len(pods)); got.Enforced != want {
		t.Errorf("enforced in %s, want %s", got.Enforced, want)
	}
}

// assertKubectlOutput checks the columns of `kubectl get` and the Events.
func (e *enforcement) assertKubectlOutput(t *testing.T, namespace string) {
	t.Helper()
	for kind, want := range map[string]string{
		"shard": "left lock True Distributed 12/12", "cbk": "breakers True Distributed 20/20", "faultinjection": "True Distributed 12/12",
	} {
		table := runKubectl(t, e.mesh.kubeconfig, "", "get", kind, "-n", namespace)
		if !strings.Contains(strings.Join(strings.Fields(table), " "), want) {
			t.Errorf("kubectl get %s prints %s", kind, table)
		}
	}
	text := runKubectl(t, e.mesh.kubeconfig, "", "describe", "shard", "left", "-n", namespace)
	for _, want := range []string{"Enforced", "Distributed", "Accepted", "12/12"} {
		if !strings.Contains(text, want) {
			t.Errorf("kubectl describe does not contain %s: %s", want, text)
		}
	}
}

// testShardedOperators runs a real operator behind a sidecar of each shard.
func (e *enforcement) testShardedOperators(t *testing.T) {
	set := newObjectSet(t, e.mesh.controlPlane, "ConfigMap", 2, 5, "a", "b")
	flags := []string{"--app=" + set.app, "--lock=" + lockName, "--lock-namespace=" + e.nodePods.namespace}
	left := startOperator(t, uniqueName("left"), sidecarKubeconfig(t, e.sidecar("left-0")), flags...)
	right := startOperator(t, uniqueName("right"), sidecarKubeconfig(t, e.sidecar("right-0")), flags...)
	waitLeadingOperator(t, left)
	waitLeadingOperator(t, right)
	e.waitLeaderStatus(t, "left", "left-0")
	e.waitLeaderStatus(t, "right", "right-0")
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": left, "b": right})
	left.assertNoFaults(t)
	right.assertNoFaults(t)
	// A killed operator does not renew its lock.
	left.process.Kill()
	e.waitLeaderStatus(t, "left", "")
	e.waitLeaderStatus(t, "right", "right-0")
}

// waitLeaderStatus waits until a shard's status names the pod that leads in it, and the data of its lock; an empty pod
// means no leader.
func (e *enforcement) waitLeaderStatus(t *testing.T, shard, pod string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the leader of %s is %q", shard, pod), func() error {
		found, _, err := e.readStatus(t.Context(), "ShardingConfig", e.nodePods.namespace, shard)
		if err != nil {
			return err
		}
		lease, err := e.mesh.client.CoordinationV1().Leases(e.nodePods.namespace).Get(t.Context(), lockName+"---"+shard, meta.GetOptions{})
		if err != nil {
			return err
		}
		holder := lease.Spec.HolderIdentity
		switch {
		case found.Leader.PodName != pod:
			return fmt.Errorf("the leader is %+v", found.Leader)
		case pod != "" && (holder == nil || found.Leader.HolderIdentity != *holder):
			return fmt.Errorf("the leader is %+v, and the lock is %+v", found.Leader, lease.Spec)
		}
		return nil
	})
	if table := runKubectl(t, e.mesh.kubeconfig, "", "get", "shard", shard, "-n", e.nodePods.namespace); strings.Contains(table, "-0") != (pod != "") {
		t.Errorf("kubectl get prints %s", table)
	}
}

// chainDocument returns the stored chain of a namespace.
func (m *mesh) chainDocument(ctx context.Context, namespace string) (string, error) {
	object, err := m.client.CoreV1().ConfigMaps(namespace).Get(ctx, kubelet.ChainConfigMap, meta.GetOptions{})
	if err != nil {
		return "", err
	}
	return object.Data["chain.yaml"], nil
}
