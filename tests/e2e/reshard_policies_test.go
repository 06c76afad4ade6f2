package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// This file tests the policies of a ShardingConfig for objects that change shards: `reshard: Restart` re-creates pods,
// and `unreachablePods` limits how long the hand-over waits.

func TestReshardFollowsPolicies(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	m.setLabelledKinds(t, "")
	leading := waitLeader(t, m.startManager(t, uniqueName("manager")))
	t.Run("restart_recreates_pods_one_by_one", func(t *testing.T) { testReshardRestart(t, m) })
	t.Run("deleted_shard_stays_until_its_pods_are_evicted", func(t *testing.T) { testDeletedShardWithRestart(t, m) })
	t.Run("unreachable_pods_are_overtaken", func(t *testing.T) { testUnreachablePods(t, m, leading) })
}

// withSpecLine adds one line to the spec of an object.
func withSpecLine(object, line string) string {
	return strings.Replace(object, "spec:\n", "spec:\n  "+line+"\n", 1)
}

// newEnforcementWithSpec runs the pods of two shards whose specs have an additional line.
func newEnforcementWithSpec(t *testing.T, m *mesh, line string, left, right int) *enforcement {
	t.Helper()
	namespace := m.newNamespace(t)
	m.apply(t, namespace, withSpecLine(shardConfig("left", "a", "b"), line))
	m.apply(t, namespace, withSpecLine(shardConfig("right", "c"), line))
	for _, name := range []string{"left", "right"} {
		m.waitCondition(t, "ShardingConfig", namespace, name, "Distributed", meta.ConditionTrue)
	}
	e := &enforcement{mesh: m, nodePods: startPods(t, m.controlPlane, namespace, podOptions{publicKey: m.waitPublicKey(t)})}
	for i := range left {
		e.left = append(e.left, fmt.Sprintf("left-%d", i))
	}
	for i := range right {
		e.right = append(e.right, fmt.Sprintf("right-%d", i))
	}
	for _, name := range e.allPods() {
		e.create(t, name, e.shardLabels(name))
	}
	for _, name := range e.allPods() {
		e.waitReady(t, name)
	}
	for _, name := range []string{"left", "right"} {
		m.waitCondition(t, "ShardingConfig", namespace, name, "Enforced", meta.ConditionTrue)
	}
	return e
}

func (e *enforcement) shardLabels(pod string) map[string]string {
	shard, _, _ := strings.Cut(pod, "-")
	return map[string]string{"app": "operator", "shard": shard}
}

// moveBucket gives the objects of bucket b from left to right.
func (e *enforcement) moveBucket(t *testing.T, line string) {
	t.Helper()
	e.apply(t, e.nodePods.namespace, withSpecLine(shardConfig("left", "a"), line))
	e.apply(t, e.nodePods.namespace, withSpecLine(shardConfig("right", "c", "b"), line))
}

// isBucketMoved returns whether the chain gives bucket b to right.
func (e *enforcement) isBucketMoved(t *testing.T) bool {
	t.Helper()
	return strings.Contains(must(e.chainDocument(t.Context(), e.nodePods.namespace))(t), `["c","b"]`)
}

// waitConditionReason waits until a condition is false for a reason, with these words in its message.
func (m *mesh) waitConditionReason(t *testing.T, namespace, name, condition, reason string, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: %s is false for %s and %v", name, condition, reason, words), func() error {
		found, _, err := m.readStatus(t.Context(), "ShardingConfig", namespace, name)
		if err != nil {
			return err
		}
		got := found.condition(condition)
		isMissing := func(word string) bool { return !strings.Contains(got.Message, word) }
		if got.Status != meta.ConditionFalse || got.Reason != reason || slices.ContainsFunc(words, isMissing) {
			return fmt.Errorf("the conditions are %s", describeConditions(found.Conditions))
		}
		return nil
	})
}

func testReshardRestart(t *testing.T, m *mesh) {
	const line = "reshard: Restart"
	e := newEnforcementWithSpec(t, m, line, 3, 2)
	namespace, leads := e.nodePods.namespace, "left-0_4711"
	lease := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: "lock---left"}, Spec: coordination.LeaseSpec{HolderIdentity: &leads}}
	_, err := m.client.CoordinationV1().Leases(namespace).Create(t.Context(), lease, meta.CreateOptions{})
	check(t, err)
	budget := e.forbidEvictions(t, "left")
	owner := e.startStatefulSetController(t)
	assertSettings := e.recordSettings(t)

	e.moveBucket(t, line)
	m.waitConditionReason(t, namespace, "left", "Enforced", "EvictionRefused", "left-1 can't be evicted", "budget")
	m.waitConditionReason(t, namespace, "right", "Distributed", "HandingOver", "left-0", "left-1", "left-2")
	if deleted := owner.deletionOrder(); len(deleted) > 0 || e.isBucketMoved(t) {
		t.Errorf("%v were deleted although a budget forbids it", deleted)
	}
	e.allowEvictions(t, budget)
	// As long as the last pod is missing, the others are all that exist.
	for shard, all := range map[string]string{"left": "3/3", "right": "2/2"} {
		eventually(t, shard+" is enforced in "+all, func() error {
			if got := m.waitCondition(t, "ShardingConfig", namespace, shard, "Enforced", meta.ConditionTrue); got.Enforced != all {
				return fmt.Errorf("the object is enforced in %s", got.Enforced)
			}
			return nil
		})
	}
	if want := []string{"left-1", "left-2", "left-0", "right-0", "right-1"}; !slices.Equal(owner.deletionOrder(), want) {
		t.Errorf("%v were re-created, want %v", owner.deletionOrder(), want)
	}
	if !e.isBucketMoved(t) {
		t.Error("the objects have not moved")
	}
	owner.assertOneMissing(t)
	assertSettings(t)
}

// testDeletedShardWithRestart deletes all shards. One of them gets everything; the pods of the other one are evicted.
func testDeletedShardWithRestart(t *testing.T, m *mesh) {
	e := newEnforcementWithSpec(t, m, "reshard: Restart", 2, 2)
	namespace := e.nodePods.namespace
	budgets := map[string]*policy.PodDisruptionBudget{"left": e.forbidEvictions(t, "left"), "right": e.forbidEvictions(t, "right")}
	owner := e.startStatefulSetController(t)
	for shard := range budgets {
		check(t, m.resource("ShardingConfig", namespace).Delete(t.Context(), shard, meta.DeleteOptions{}))
	}
	// Either shard may be the successor, because they are deleted one after the other.
	successor, other := "left", "right"
	eventually(t, "one shard gets everything", func() error {
		found, _, err := m.readStatus(t.Context(), "ShardingConfig", namespace, successor)
		if got := found.condition("Distributed"); err != nil || got.Reason != "Gathering" {
			successor, other = other, successor
			return fmt.Errorf("%s is not gathering: %v", other, err)
		}
		return nil
	})
	want := []string{other + "-0", other + "-1"}
	m.waitConditionReason(t, namespace, other, "Distributed", "Deleting", "evicted one by one", want[0], want[1])
	m.waitConditionReason(t, namespace, other, "Enforced", "EvictionRefused", want[0]+" can't be evicted", "budget")
	if deleted := owner.deletionOrder(); len(deleted) > 0 {
		t.Errorf("%v were deleted although a budget forbids it", deleted)
	}
	e.allowEvictions(t, budgets[other])
	m.waitReleased(t, namespace, other)
	m.waitReleased(t, namespace, successor)
	if !slices.Equal(owner.deletionOrder(), want) {
		t.Errorf("%v were re-created, want %v", owner.deletionOrder(), want)
	}
	owner.assertOneMissing(t)
}

// forbidEvictions creates a budget that allows no eviction of a shard's pods: no controller updates it.
func (e *enforcement) forbidEvictions(t *testing.T, shard string) *policy.PodDisruptionBudget {
	t.Helper()
	budget := &policy.PodDisruptionBudget{
		ObjectMeta: meta.ObjectMeta{Name: shard},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &meta.LabelSelector{MatchLabels: map[string]string{"shard": shard}}},
	}
	budgets := e.mesh.client.PolicyV1().PodDisruptionBudgets(e.nodePods.namespace)
	budget = must(budgets.Create(t.Context(), budget, meta.CreateOptions{}))(t)
	budget.Status = policy.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, CurrentHealthy: 3, DesiredHealthy: 3, ExpectedPods: 3}
	return must(budgets.UpdateStatus(t.Context(), budget, meta.UpdateOptions{}))(t)
}

func (e *enforcement) allowEvictions(t *testing.T, budget *policy.PodDisruptionBudget) {
	t.Helper()
	budget.Status.DisruptionsAllowed = 5
	_, err := e.mesh.client.PolicyV1().PodDisruptionBudgets(e.nodePods.namespace).UpdateStatus(t.Context(), budget, meta.UpdateOptions{})
	check(t, err)
}

// statefulSetController plays a StatefulSet's controller: it re-creates deleted pods.
type statefulSetController struct {
	mu       sync.Mutex
	present  map[string]bool
	deleted  []string
	problems []error
}

func (c *statefulSetController) deletionOrder() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.deleted)
}

// assertOneMissing asserts that never two pods of a shard were missing at the same time.
func (c *statefulSetController) assertOneMissing(t *testing.T) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.problems...); err != nil {
		t.Error(err)
	}
}

func (e *enforcement) startStatefulSetController(t *testing.T) *statefulSetController {
	t.Helper()
	c := &statefulSetController{present: map[string]bool{}}
	for _, name := range e.allPods() {
		c.present[name] = true
	}
	stream := must(e.mesh.client.CoreV1().Pods(e.nodePods.namespace).Watch(t.Context(), meta.ListOptions{}))(t)
	var done sync.WaitGroup
	done.Go(func() {
		for event := range stream.ResultChan() {
			if pod, isPod := event.Object.(*core.Pod); isPod {
				c.handleEvent(t.Context(), e, event.Type, pod)
			}
		}
	})
	t.Cleanup(func() {
		stream.Stop()
		done.Wait()
	})
	return c
}

func (c *statefulSetController) handleEvent(ctx context.Context, e *enforcement, event watch.EventType, pod *core.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	isEnding := pod.DeletionTimestamp != nil || event == watch.Deleted
	if isEnding && c.present[pod.Name] {
		c.deleted = append(c.deleted, pod.Name)
		for _, other := range e.allPods() {
			if other != pod.Name && pod.Labels["shard"] == e.shardLabels(other)["shard"] && !c.present[other] {
				c.problems = append(c.problems, fmt.Errorf("%s was deleted while %s was missing", pod.Name, other))
			}
		}
	}
	c.present[pod.Name] = !isEnding
	if event == watch.Deleted && ctx.Err() == nil {
		if err := e.tryCreate(ctx, pod.Name, e.shardLabels(pod.Name)); err != nil && ctx.Err() == nil {
			c.problems = append(c.problems, err)
		}
	}
}

// recordSettings records what each sidecar runs. The returned function asserts that no sidecar ever changed its
// settings.
func (e *enforcement) recordSettings(t *testing.T) func(*testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	found := map[*sidecar.Sidecar]map[string]bool{}
	var done sync.WaitGroup
	done.Go(func() {
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			for _, name := range e.allPods() {
				s := e.sidecar(name)
				status, err := s.Status(ctx)
				if err != nil || len(status.Chain.Entries) != 1 {
					continue
				}
				mu.Lock()
				if found[s] == nil {
					found[s] = map[string]bool{}
				}
				found[s][status.Chain.Entries[0].SettingsHash] = true
				mu.Unlock()
			}
		}
	})
	t.Cleanup(cancel)
	return func(t *testing.T) {
		t.Helper()
		eventually(t, "each pod's two sidecars have reported", func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(found) != 2*len(e.allPods()) {
				return fmt.Errorf("%d sidecars ran, although each of the %d pods was re-created once", len(found), len(e.allPods()))
			}
			return nil
		})
		cancel()
		done.Wait()
		for _, settings := range found {
			if len(settings) != 1 {
				t.Errorf("a sidecar ran %d different settings of its shard", len(settings))
			}
		}
	}
}

// unreachableFor is how long the hand-over waits for the shard's pods.
const unreachableFor = 3 * time.Second

func testUnreachablePods(t *testing.T, m *mesh, leading *manager.Manager) {
	line := fmt.Sprintf("unreachablePods: {policy: Proceed, afterSeconds: %d}", int(unreachableFor.Seconds()))
	e := newEnforcementWithSpec(t, m, line, 2, 1)
	namespace := e.nodePods.namespace
	stuck := e.sidecar("left-0")
	check(t, stuck.Process.Pause())
	moved := time.Now()
	e.moveBucket(t, line)
	m.waitConditionReason(t, namespace, "right", "Distributed", "HandingOver", "left-0 does not answer in time")
	m.waitCondition(t, "ShardingConfig", namespace, "right", "Enforced", meta.ConditionTrue)
	if took := time.Since(moved); took < unreachableFor || !e.isBucketMoved(t) {
		t.Errorf("left-0 was overtaken after %s", took)
	}
	eventually(t, "an Event reports it", func() error {
		events, err := m.client.CoreV1().Events(namespace).List(t.Context(), meta.ListOptions{})
		if err != nil {
			return err
		}
		isIt := func(event core.Event) bool {
			return event.Reason == "Overtaking" && event.InvolvedObject.Name == "right" && strings.Contains(event.Message, "left-0")
		}
		if !slices.ContainsFunc(events.Items, isIt) {
			return fmt.Errorf("there are %d other Events", len(events.Items))
		}
		return nil
	})
	if count, err := leading.Metric(t.Context(), "ctrlmesh_manager_handovers_overtaken_total"); err != nil || count != 1 {
		t.Errorf("%v hand-overs were overtaken: %v", count, err)
	}
	m.waitConditionReason(t, namespace, "left", "Enforced", "Progressing", "left-0")
	check(t, stuck.Process.Resume())
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Enforced", meta.ConditionTrue)
}
