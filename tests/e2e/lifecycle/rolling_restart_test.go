package lifecycle

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file gives a busy operator its sidecars by a rolling restart, and removes them again, as docs/install.md says.

func (l *lifecycle) testRollingRestart(t *testing.T) {
	op := l.newOperator("rolling", []string{"team-1"}, []string{"team-2"}, []string{"team-3"})
	op.apply(t, op.permissions())
	history := op.recordWrites(t)
	op.makeItems(t)
	op.apply(t, op.statefulSet(false))
	op.waitReady(t)
	op.assertWorksWithoutSidecars(t)
	stop := history.requestSteps(t)
	op.apply(t, op.shardingConfigs())
	eventually(t, "shards wait for all pods", func() error { return op.checkShardsWait(t, op.podNames()) })
	begin := time.Now()
	patch := fmt.Sprintf(`{"spec": {"template": {"metadata": {"labels": {%q: "true"}}}}}`, enableLabel)
	op.kubectl(t, "", "patch", "--namespace="+op.name, "statefulset/"+op.name, "--type=merge", "--patch="+patch)
	op.assertShardsWait(t)
	gone := time.Now()
	op.waitReady(t)
	op.waitEnforced(t)
	t.Logf("the last pod without a sidecar had ended %s after the patch, all shards were enforced %s later", rounded(gone.Sub(begin)), rounded(time.Since(gone)))
	stop(t)
	op.assertStepsHandled(t)
	history.assertOwnership(t)
	for i, pod := range op.podNames() {
		op.assertVisible(t, pod, op.teams[i]...)
	}
	op.assertLeaders(t)
	op.testUninjectedPod(t)
	op.removeSidecarsWhileRunning(t)
	op.assertWorksWithoutSidecars(t)
}

// testUninjectedPod: a pod that somebody creates without a sidecar, with all labels of a shard's pod, blocks nobody
// (docs/adr/0025, 3): objects change shards while it runs, and a sidecar that crashes beside it recovers.
func (op *operator) testUninjectedPod(t *testing.T) {
	t.Helper()
	stray := map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "stray", "namespace": op.name, "labels": map[string]any{
			"app": op.name, "statefulset.kubernetes.io/pod-name": op.podName(1),
		}},
		"spec": map[string]any{"terminationGracePeriodSeconds": 1, "containers": []any{
			map[string]any{"name": operatorContainer, "image": realnode.WorkloadImage, "args": []string{"sleep"}},
		}},
	}
	op.apply(t, asYAML(stray))
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Ready", "pod/stray", "--timeout="+waitTimeout.String())
	if old := op.uninjectedPods(t); !slices.Equal(old, []string{"stray"}) {
		t.Errorf("pods without a sidecar are left: %q", old)
	}
	twice := op.countTwiceHandled(t)
	op.teams[1], op.teams[2] = op.teams[2], op.teams[1]
	op.apply(t, op.shardingConfigs())
	op.waitEnforced(t)
	op.crashContainer(t, op.podName(0), proxyContainer)
	op.assertStepsHandled(t)
	for i, pod := range op.podNames() {
		op.assertVisible(t, pod, op.teams[i]...)
	}
	if now := op.countTwiceHandled(t); now != twice {
		t.Errorf("%d times a pod handled what another had handled, %d times before", now, twice)
	}
	for shard, condition := range op.distributedConditions(t) {
		if condition.Status != meta.ConditionTrue {
			t.Errorf("%s is Distributed=%s beside it: %s", shard, condition.Status, condition.Message)
		}
	}
	op.kubectl(t, "", "delete", "--namespace="+op.name, "pod/stray", "--timeout="+waitTimeout.String())
}

// countTwiceHandled returns how often pods of the operator found that another one had begun what they handled.
func (op *operator) countTwiceHandled(t *testing.T) (times int) {
	t.Helper()
	for _, pod := range op.podNames() {
		for _, r := range op.journal(t, pod) {
			if r.Event == "twice" {
				times++
			}
		}
	}
	return times
}

// assertShardsWait asserts that all shards wait as long as a pod without a sidecar runs.
func (op *operator) assertShardsWait(t *testing.T) {
	t.Helper()
	var seen []string
	eventually(t, "no pod without a sidecar is left", func() error {
		conditions := op.distributedConditions(t)
		// Pods that still run now also ran when the conditions were read.
		old := op.uninjectedPods(t)
		if names := strings.Join(old, ", "); !slices.Contains(seen, names) {
			seen = append(seen, names)
		}
		if len(old) == 0 {
			return nil
		}
		check(t, checkConditionsNamePods(conditions, old))
		return fmt.Errorf("pods without a sidecar are left: %q", old)
	})
	t.Logf("pods without a sidecar were %q", seen)
}

// uninjectedPods returns the pods without a sidecar that have not ended.
func (op *operator) uninjectedPods(t *testing.T) []string {
	t.Helper()
	var found []string
	list := must(op.node.Client.CoreV1().Pods(op.name).List(t.Context(), meta.ListOptions{LabelSelector: "app=" + op.name}))(t)
	for _, pod := range list.Items {
		if isUninjected(&pod) && !hasEnded(&pod) {
			found = append(found, pod.Name)
		}
	}
	return found
}

// checkShardsWait returns an error unless all shards wait for these pods.
func (op *operator) checkShardsWait(t *testing.T, pods []string) error {
	t.Helper()
	conditions := op.distributedConditions(t)
	if len(conditions) != op.replicas {
		return fmt.Errorf("of %d shards %d have the condition Distributed", op.replicas, len(conditions))
	}
	return checkConditionsNamePods(conditions, pods)
}

func checkConditionsNamePods(conditions map[string]meta.Condition, pods []string) error {
	for shard, c := range conditions {
		if c.Status != meta.ConditionFalse || c.Reason != "WithoutSidecar" {
			return fmt.Errorf("%s is Distributed=%s, %s, while %q have no sidecar: %s", shard, c.Status, c.Reason, pods, c.Message)
		}
		for _, pod := range pods {
			if !strings.Contains(c.Message, pod) {
				return fmt.Errorf("%s does not name %s: %s", shard, pod, c.Message)
			}
		}
	}
	return nil
}

// distributedConditions returns the condition Distributed of each ShardingConfig.
func (op *operator) distributedConditions(t *testing.T) map[string]meta.Condition {
	t.Helper()
	var list struct {
		Items []struct {
			meta.ObjectMeta `json:"metadata"`
			Status          struct{ Conditions []meta.Condition }
		}
	}
	path := "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/" + op.name + "/shardingconfigs"
	text := must(op.node.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context()))(t)
	check(t, json.Unmarshal(text, &list))
	found := map[string]meta.Condition{}
	for _, config := range list.Items {
		for _, condition := range config.Status.Conditions {
			if condition.Type == "Distributed" {
				found[config.Name] = condition
			}
		}
	}
	return found
}

// checkNoneWaiting returns an error while an object has a pending step.
func (history *writeHistory) checkNoneWaiting() error {
	history.mu.Lock()
	defer history.mu.Unlock()
	if len(history.waitingSince) > 0 {
		return fmt.Errorf("%d objects wait: %v", len(history.waitingSince), history.waitingSince)
	}
	return nil
}

// assertOwnership asserts that every write is by a pod without a sidecar as long as one ran, and then by the pod of its
// shard; that pods without a sidecar led one after the other; and that every step was handled.
func (history *writeHistory) assertOwnership(t *testing.T) {
	t.Helper()
	eventually(t, "the end of all pods without a sidecar is recorded", func() error {
		history.mu.Lock()
		defer history.mu.Unlock()
		if len(history.podEnds) != history.op.replicas {
			return fmt.Errorf("ended are %v", history.podEnds)
		}
		return nil
	})
	eventually(t, "every step is recorded", history.checkCaughtUp)
	history.mu.Lock()
	defer history.mu.Unlock()
	var last uint64
	for _, end := range history.podEnds {
		last = max(last, end)
	}
	var leaders []string
	var before, after stepWrite
	for _, w := range history.sortedWrites() {
		team, _, _ := strings.Cut(w.key, "/")
		switch {
		case w.version < history.podEnds[w.writer]:
			leaders, before = append(leaders, w.writer), w
		case w.version < last || w.writer != history.op.ownerPod(team):
			t.Errorf("step %d of %s was handled by %s at version %d; pods without a sidecar ended at %v", w.step, w.key, w.writer, w.version, history.podEnds)
		case after.version == 0:
			after = w
		}
	}
	leaders = slices.Compact(leaders)
	if distinct := slices.Compact(slices.Sorted(slices.Values(leaders))); len(distinct) != len(leaders) {
		t.Errorf("without sidecars the leaders were %q, not one after the other", leaders)
	}
	shared := history.assertAllHandled(t)
	t.Logf("%d writes; without sidecars %q led; %d steps were begun by one leader and finished by the next", len(history.writes), leaders, shared)
	t.Logf("nobody wrote for %s when sharding began; an object waited for %s at most", rounded(after.seen.Sub(before.seen)), rounded(history.longestWait))
}

// assertAllHandled asserts that each step has one child and was observed, and returns how many steps two pods shared.
func (history *writeHistory) assertAllHandled(t *testing.T) (shared int) {
	t.Helper()
	type step struct {
		key    string
		number int
	}
	made, observed := map[step]string{}, map[step]string{}
	for _, w := range history.sortedWrites() {
		if w.isChildObject {
			made[step{w.key, w.step}] = w.writer
		} else {
			observed[step{w.key, w.step}] = w.writer
		}
	}
	for key, steps := range history.op.steps {
		for number := history.initialSteps[key] + 1; number <= steps; number++ {
			maker, noter := made[step{key, number}], observed[step{key, number}]
			if maker == "" || noter == "" {
				t.Errorf("step %d of %s was begun by %q and finished by %q", number, key, maker, noter)
			} else if maker != noter {
				shared++
			}
		}
	}
	return shared
}
