package story

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

// This file makes objects for an operator, asks for steps, and checks who handled them.

// itemsOfTeam is how many objects each namespace has.
const itemsOfTeam = 4

// makeItems fills the namespaces of all teams.
func (o *operator) makeItems(t *testing.T) {
	t.Helper()
	for _, team := range slices.Concat(o.teams...) {
		namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: team}}
		must(o.node.Client.CoreV1().Namespaces().Create(t.Context(), namespace, meta.CreateOptions{}))(t)
		for i := range itemsOfTeam {
			item := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("item-%d", i), Labels: map[string]string{"app": o.name}}}
			must(o.node.Client.CoreV1().ConfigMaps(team).Create(t.Context(), item, meta.CreateOptions{}))(t)
			o.steps[team+"/"+item.Name] = 0
		}
	}
}

// step asks for the next step of an object.
func (o *operator) step(ctx context.Context, key string) error {
	o.steps[key]++
	team, name, _ := strings.Cut(key, "/")
	patch := fmt.Sprintf(`{"data": {"step": "%d"}}`, o.steps[key])
	_, err := o.node.Client.CoreV1().ConfigMaps(team).Patch(ctx, name, types.MergePatchType, []byte(patch), meta.PatchOptions{})
	return err
}

// handled asks for a step of every object, and demands that the pod of its shard handles it.
func (o *operator) handled(t *testing.T) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(o.steps)) {
		check(t, o.step(t.Context(), key))
	}
	eventually(t, "every object of "+o.name+" is handled by the pod of its shard", func() error { return o.unhandled(t, "") })
}

// owner is the pod that a namespace belongs to.
func (o *operator) owner(team string) string {
	return o.pod(slices.IndexFunc(o.teams, func(teams []string) bool { return slices.Contains(teams, team) }))
}

// unhandled is an error while the last step of an object was not handled, or not by its owner. Objects of one namespace may be left out.
func (o *operator) unhandled(t *testing.T, leftOut string) error {
	t.Helper()
	list := must(o.node.Client.CoreV1().ConfigMaps("").List(t.Context(), meta.ListOptions{LabelSelector: "app=" + o.name}))(t)
	if len(list.Items) != len(o.steps) {
		t.Fatalf("%d objects of %d are there", len(list.Items), len(o.steps))
	}
	for _, item := range list.Items {
		step, observed, by := item.Data["step"], item.Data["observed"], item.Data["by"]
		if item.Namespace != leftOut && (step != observed || step != "" && by != o.owner(item.Namespace)) {
			return fmt.Errorf("%s/%s of %s is at step %q, handled is %q by %q", item.Namespace, item.Name, o.owner(item.Namespace), step, observed, by)
		}
	}
	return nil
}

// deed is a step that somebody handled.
type deed struct {
	step int
	by   string
}

// deeds are all that was ever done, by object, in order of steps. Each left a child behind that is never changed.
func (o *operator) deeds(t *testing.T) map[string][]deed {
	t.Helper()
	found := map[string][]deed{}
	for _, team := range slices.Concat(o.teams...) {
		list := must(o.node.Client.CoreV1().ConfigMaps(team).List(t.Context(), meta.ListOptions{}))(t)
		for _, child := range list.Items {
			if name, step, isChild := strings.Cut(child.Name, "-step-"); isChild {
				key := team + "/" + name
				found[key] = append(found[key], deed{must(strconv.Atoi(step))(t), child.Data["by"]})
			}
		}
	}
	for _, deeds := range found {
		slices.SortFunc(deeds, func(a, b deed) int { return cmp.Compare(a.step, b.step) })
	}
	return found
}

// oneOwnerAtATime demands that nobody ever handled what was another's: before an object was given away its first owner did, then the
// second. `was` has the namespaces that had another owner once.
func (o *operator) oneOwnerAtATime(t *testing.T, was map[string]string) {
	t.Helper()
	for key, deeds := range o.deeds(t) {
		team, _, _ := strings.Cut(key, "/")
		owners := []string{}
		for _, deed := range deeds {
			owners = append(owners, deed.by)
		}
		owners = slices.Compact(owners)
		want := []string{o.owner(team)}
		if first := was[team]; first != "" {
			want = []string{first, o.owner(team)}
		}
		if !slices.Equal(owners, want) {
			t.Errorf("%s was handled by %q in this order, not by %q: %v", key, owners, want, deeds)
		}
	}
	for _, pod := range o.pods() {
		if journal := o.journal(t, pod); has(journal, "twice", "") {
			t.Errorf("%s handled what another had handled: %v", pod, journal)
		}
	}
}
