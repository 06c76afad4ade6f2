package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file creates objects for an operator, requests steps, and checks who handled them.

// itemsPerTeam is the number of objects in each namespace.
const itemsPerTeam = 4

// makeItems creates the objects of all teams.
func (op *operator) makeItems(t *testing.T) {
	t.Helper()
	for _, team := range slices.Concat(op.teams...) {
		namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: team}}
		must(op.node.Client.CoreV1().Namespaces().Create(t.Context(), namespace, meta.CreateOptions{}))(t)
		for i := range itemsPerTeam {
			item := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("item-%d", i), Labels: map[string]string{"app": op.name}}}
			must(op.node.Client.CoreV1().ConfigMaps(team).Create(t.Context(), item, meta.CreateOptions{}))(t)
			op.steps[team+"/"+item.Name] = 0
		}
	}
}

// requestStep asks for the next step of an object.
func (op *operator) requestStep(ctx context.Context, key string) error {
	op.steps[key]++
	team, name, _ := strings.Cut(key, "/")
	patch := fmt.Sprintf(`{"data": {"step": "%d"}}`, op.steps[key])
	_, err := op.node.Client.CoreV1().ConfigMaps(team).Patch(ctx, name, types.MergePatchType, []byte(patch), meta.PatchOptions{})
	return err
}

// assertStepsHandled requests a step of every object, and asserts that the pod of its shard handles it.
func (op *operator) assertStepsHandled(t *testing.T) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(op.steps)) {
		check(t, op.requestStep(t.Context(), key))
	}
	eventually(t, "every object of "+op.name+" is handled by the pod of its shard", func() error { return op.checkHandled(t, "") })
}

// ownerPod returns the pod that owns a namespace.
func (op *operator) ownerPod(team string) string {
	return op.podName(slices.IndexFunc(op.teams, func(teams []string) bool { return slices.Contains(teams, team) }))
}

// checkHandled returns an error while the last step of an object is not handled, or not by its owner. Objects of one
// namespace may be left out.
func (op *operator) checkHandled(t *testing.T, leftOut string) error {
	t.Helper()
	list := must(op.node.Client.CoreV1().ConfigMaps("").List(t.Context(), meta.ListOptions{LabelSelector: "app=" + op.name}))(t)
	if len(list.Items) != len(op.steps) {
		t.Fatalf("%d objects of %d exist", len(list.Items), len(op.steps))
	}
	for _, item := range list.Items {
		step, observed, by := item.Data["step"], item.Data["observed"], item.Data["by"]
		if item.Namespace != leftOut && (step != observed || step != "" && by != op.ownerPod(item.Namespace)) {
			return fmt.Errorf("%s/%s of %s is at step %q, observed is %q by %q", item.Namespace, item.Name, op.ownerPod(item.Namespace), step, observed, by)
		}
	}
	return nil
}

// handledStep is a step with the operator that handled it.
type handledStep struct {
	step   int
	writer string
}

// handledSteps returns all steps that were ever handled, by object and in order. Each has a child that never changes.
func (op *operator) handledSteps(t *testing.T) map[string][]handledStep {
	t.Helper()
	found := map[string][]handledStep{}
	for _, team := range slices.Concat(op.teams...) {
		list := must(op.node.Client.CoreV1().ConfigMaps(team).List(t.Context(), meta.ListOptions{}))(t)
		for _, child := range list.Items {
			if name, step, isChild := strings.Cut(child.Name, "-step-"); isChild {
				key := team + "/" + name
				found[key] = append(found[key], handledStep{must(strconv.Atoi(step))(t), child.Data["by"]})
			}
		}
	}
	for _, deeds := range found {
		slices.SortFunc(deeds, func(a, b handledStep) int { return cmp.Compare(a.step, b.step) })
	}
	return found
}

// assertOneOwnerAtATime asserts that only owners handled an object: the first owner before it was given away, then the
// second. `was` maps namespaces to their earlier owner.
func (op *operator) assertOneOwnerAtATime(t *testing.T, was map[string]string) {
	t.Helper()
	for key, deeds := range op.handledSteps(t) {
		team, _, _ := strings.Cut(key, "/")
		owners := []string{}
		for _, deed := range deeds {
			owners = append(owners, deed.writer)
		}
		owners = slices.Compact(owners)
		want := []string{op.ownerPod(team)}
		if first := was[team]; first != "" {
			want = []string{first, op.ownerPod(team)}
		}
		if !slices.Equal(owners, want) {
			t.Errorf("%s was handled by %q in this order, not by %q: %v", key, owners, want, deeds)
		}
	}
	for _, pod := range op.podNames() {
		if journal := op.journal(t, pod); hasRecord(journal, "twice", "") {
			t.Errorf("%s handled what another had handled: %v", pod, journal)
		}
	}
}
