package story

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file shards the operator.

func (s *story) isSharded(t *testing.T) {
	s.main = s.operator("operator", []string{"team-a"}, []string{"team-b", "team-d"}, []string{"team-c"})
	s.main.looksFirst = true
	s.main.makeItems(t)
	s.main.starts(t)
	s.main.handled(t)
	s.main.oneOwnerAtATime(t, nil)
	for i, pod := range s.main.pods() {
		s.main.hasLooked(t, pod, s.main.teams[i]...)
		s.main.sees(t, pod, s.main.teams[i]...)
	}
	s.main.leads(t)
	s.born = s.main.incarnations(t)
}

// sees asks a pod's sidecar as the operator in the pod does.
func (o *operator) sees(t *testing.T, pod string, teams ...string) {
	t.Helper()
	address, end, err := o.node.Forward(t.Context(), o.name, pod, sidecarPort)
	check(t, err)
	defer end()
	response := must(http.Get("http://" + address + "/api/v1/configmaps?labelSelector=app%3D" + o.name))(t)
	defer response.Body.Close()
	var list core.ConfigMapList
	check(t, json.NewDecoder(response.Body).Decode(&list))
	seen := []string{}
	for _, item := range list.Items {
		seen = append(seen, item.Namespace)
	}
	theseAlone(t, pod+" sees", seen, teams)
}

// hasLooked demands that the init container of a pod saw objects of these namespaces, and no others.
func (o *operator) hasLooked(t *testing.T, pod string, teams ...string) {
	t.Helper()
	seen := []string{}
	for _, record := range o.journalOf(t, pod, lookContainer) {
		if namespace, _, _ := strings.Cut(record.Object, "/"); record.Event == "seen" {
			seen = append(seen, namespace)
		}
	}
	theseAlone(t, "the init container of "+pod+" saw", seen, teams)
}

// theseAlone demands that objects of these namespaces were seen, and no others.
func theseAlone(t *testing.T, who string, seen, teams []string) {
	t.Helper()
	slices.Sort(seen)
	teams = slices.Sorted(slices.Values(teams))
	if seen = slices.Compact(seen); !slices.Equal(seen, teams) {
		t.Errorf("%s namespaces %q, not %q", who, seen, teams)
	}
}

// leads demands that each shard has a leader, by a lock of its own.
func (o *operator) leads(t *testing.T) {
	t.Helper()
	for _, pod := range o.pods() {
		name := lock + "---" + pod
		eventually(t, "the lock of "+pod+" is held", func() error {
			lease, err := o.node.Client.CoordinationV1().Leases(o.name).Get(t.Context(), name, meta.GetOptions{})
			if err != nil {
				return err
			}
			return heldBy(lease, pod)
		})
		if !has(o.journal(t, pod), "leading", "") {
			t.Errorf("%s does not say that it leads", pod)
		}
	}
}

func heldBy(lease *coordination.Lease, pod string) error {
	if holder := lease.Spec.HolderIdentity; holder == nil || len(*holder) < len(pod) || (*holder)[:len(pod)] != pod {
		return fmt.Errorf("%s is held by %v", lease.Name, holder)
	}
	return nil
}
