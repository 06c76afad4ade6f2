package story

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

// This file brings an operator that is at work into the mesh by a rolling restart, and out of it again, as docs/install.md says.

func (s *story) joinsMesh(t *testing.T) {
	o := s.operator("rolling", []string{"team-1"}, []string{"team-2"}, []string{"team-3"})
	o.apply(t, o.permissions())
	l := o.follow(t)
	o.makeItems(t)
	o.apply(t, o.statefulSet(false))
	o.ready(t)
	o.worksAlone(t)
	stop := l.work(t)
	o.apply(t, o.shards())
	eventually(t, "shards wait for all pods", func() error { return o.waits(t, o.pods()) })
	begin := time.Now()
	patch := fmt.Sprintf(`{"spec": {"template": {"metadata": {"labels": {%q: "true"}}}}}`, enableLabel)
	o.kubectl(t, "", "patch", "--namespace="+o.name, "statefulset/"+o.name, "--type=merge", "--patch="+patch)
	o.waitsToTheLast(t)
	gone := time.Now()
	o.ready(t)
	o.enforced(t)
	t.Logf("the last pod without a sidecar had ended %s after the patch, all shards were enforced %s later", rounded(gone.Sub(begin)), rounded(time.Since(gone)))
	stop(t)
	o.handled(t)
	l.judge(t)
	for i, pod := range o.pods() {
		o.sees(t, pod, o.teams[i]...)
	}
	o.leads(t)
	o.goesOnBesideStray(t)
	o.leavesMesh(t)
	o.worksAlone(t)
}

// goesOnBesideStray: a pod that somebody puts back without a sidecar, with all labels of one of a shard, stops nobody (docs/adr/0025, 3):
// objects change shards while it is there, and a sidecar that crashes beside it goes on.
func (o *operator) goesOnBesideStray(t *testing.T) {
	t.Helper()
	stray := map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "stray", "namespace": o.name, "labels": map[string]any{
			"app": o.name, "statefulset.kubernetes.io/pod-name": o.pod(1),
		}},
		"spec": map[string]any{"terminationGracePeriodSeconds": 1, "containers": []any{
			map[string]any{"name": mainContainer, "image": realnode.WorkloadImage, "args": []string{"sleep"}},
		}},
	}
	o.apply(t, asYAML(stray))
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Ready", "pod/stray", "--timeout="+patience.String())
	if old := o.bare(t); !slices.Equal(old, []string{"stray"}) {
		t.Errorf("without a sidecar are %q", old)
	}
	twice := o.twice(t)
	o.teams[1], o.teams[2] = o.teams[2], o.teams[1]
	o.apply(t, o.shards())
	o.enforced(t)
	o.crashes(t, o.pod(0), proxyContainer)
	o.handled(t)
	for i, pod := range o.pods() {
		o.sees(t, pod, o.teams[i]...)
	}
	if now := o.twice(t); now != twice {
		t.Errorf("%d times somebody handled what another had handled, %d times before", now, twice)
	}
	for shard, condition := range o.distributed(t) {
		if condition.Status != meta.ConditionTrue {
			t.Errorf("%s is Distributed=%s beside it: %s", shard, condition.Status, condition.Message)
		}
	}
	o.kubectl(t, "", "delete", "--namespace="+o.name, "pod/stray", "--timeout="+patience.String())
}

// twice is how often pods of the operator have found that another had begun what they handled.
func (o *operator) twice(t *testing.T) (times int) {
	t.Helper()
	for _, pod := range o.pods() {
		for _, r := range o.journal(t, pod) {
			if r.Event == "twice" {
				times++
			}
		}
	}
	return times
}

// waitsToTheLast demands, for as long as a pod without a sidecar runs, that all shards wait for it.
func (o *operator) waitsToTheLast(t *testing.T) {
	t.Helper()
	var seen []string
	eventually(t, "no pod without a sidecar is left", func() error {
		conditions := o.distributed(t)
		// Who is there now was there when the conditions were read.
		old := o.bare(t)
		if names := strings.Join(old, ", "); !slices.Contains(seen, names) {
			seen = append(seen, names)
		}
		if len(old) == 0 {
			return nil
		}
		check(t, waitFor(conditions, old))
		return fmt.Errorf("there are %q", old)
	})
	t.Logf("without a sidecar were %q", seen)
}

// bare are the pods without a sidecar that have not ended.
func (o *operator) bare(t *testing.T) []string {
	t.Helper()
	var found []string
	list := must(o.node.Client.CoreV1().Pods(o.name).List(t.Context(), meta.ListOptions{LabelSelector: "app=" + o.name}))(t)
	for _, pod := range list.Items {
		if isBare(&pod) && !hasEnded(&pod) {
			found = append(found, pod.Name)
		}
	}
	return found
}

// waits is an error unless all shards wait for these pods.
func (o *operator) waits(t *testing.T, pods []string) error {
	t.Helper()
	conditions := o.distributed(t)
	if len(conditions) != o.replicas {
		return fmt.Errorf("of %d shards %d say whether they are distributed", o.replicas, len(conditions))
	}
	return waitFor(conditions, pods)
}

func waitFor(conditions map[string]meta.Condition, pods []string) error {
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

// distributed is the condition of that name of each ShardingConfig.
func (o *operator) distributed(t *testing.T) map[string]meta.Condition {
	t.Helper()
	var list struct {
		Items []struct {
			meta.ObjectMeta `json:"metadata"`
			Status          struct{ Conditions []meta.Condition }
		}
	}
	path := "/apis/ctrlmesh.kusionstack.io/v1alpha1/namespaces/" + o.name + "/shardingconfigs"
	text := must(o.node.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context()))(t)
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

// left is an error while an object waits for its step.
func (l *ledger) left() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asked) > 0 {
		return fmt.Errorf("%d objects wait: %v", len(l.asked), l.asked)
	}
	return nil
}

// judge demands of every write that it is by a pod without a sidecar as long as one ran, and then by the pod of its shard; of pods
// without a sidecar, that they led one after the other; of every step, that it was handled.
func (l *ledger) judge(t *testing.T) {
	t.Helper()
	eventually(t, "the end of all pods without a sidecar is noted", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.ended) != l.o.replicas {
			return fmt.Errorf("noted are %v", l.ended)
		}
		return nil
	})
	eventually(t, "every step is noted", l.behind)
	l.mu.Lock()
	defer l.mu.Unlock()
	var last uint64
	for _, end := range l.ended {
		last = max(last, end)
	}
	var leaders []string
	var before, after write
	for _, w := range l.sorted() {
		team, _, _ := strings.Cut(w.key, "/")
		switch {
		case w.version < l.ended[w.by]:
			leaders, before = append(leaders, w.by), w
		case w.version < last || w.by != l.o.owner(team):
			t.Errorf("step %d of %s was handled by %s at %d; pods without a sidecar ended at %v", w.step, w.key, w.by, w.version, l.ended)
		case after.version == 0:
			after = w
		}
	}
	leaders = slices.Compact(leaders)
	if distinct := slices.Compact(slices.Sorted(slices.Values(leaders))); len(distinct) != len(leaders) {
		t.Errorf("without sidecars the leaders were %q, not one after the other", leaders)
	}
	shared := l.allHandled(t)
	t.Logf("%d writes; without sidecars %q led; %d steps were begun by one leader and noted by the next", len(l.writes), leaders, shared)
	t.Logf("nobody wrote for %s when shards began; an object waited for %s at most", rounded(after.seen.Sub(before.seen)), rounded(l.longest))
}

// allHandled demands that each step has one child and was observed, and tells how many steps two pods had a part in.
func (l *ledger) allHandled(t *testing.T) (shared int) {
	t.Helper()
	type step struct {
		key    string
		number int
	}
	made, observed := map[step]string{}, map[step]string{}
	for _, w := range l.sorted() {
		if w.isChild {
			made[step{w.key, w.step}] = w.by
		} else {
			observed[step{w.key, w.step}] = w.by
		}
	}
	for key, steps := range l.o.steps {
		for number := l.before[key] + 1; number <= steps; number++ {
			maker, noter := made[step{key, number}], observed[step{key, number}]
			if maker == "" || noter == "" {
				t.Errorf("step %d of %s was made by %q and noted by %q", number, key, maker, noter)
			} else if maker != noter {
				shared++
			}
		}
	}
	return shared
}
