package lifecycle

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

func (l *lifecycle) testSharding(t *testing.T) {
	l.mainOperator = l.newOperator("operator", []string{"team-a"}, []string{"team-b", "team-d"}, []string{"team-c"})
	l.mainOperator.hasInitContainer = true
	l.mainOperator.makeItems(t)
	l.mainOperator.deployInMesh(t)
	l.mainOperator.assertStepsHandled(t)
	l.mainOperator.assertOneOwnerAtATime(t, nil)
	for i, pod := range l.mainOperator.podNames() {
		l.mainOperator.assertInitContainerListed(t, pod, l.mainOperator.teams[i]...)
		l.mainOperator.assertVisible(t, pod, l.mainOperator.teams[i]...)
	}
	l.mainOperator.assertLeaders(t)
	l.firstContainers = l.mainOperator.allContainers(t)
}

// assertVisible lists through a pod's sidecar, as its operator does.
func (op *operator) assertVisible(t *testing.T, pod string, teams ...string) {
	t.Helper()
	address, end, err := op.node.Forward(t.Context(), op.name, pod, sidecarPort)
	check(t, err)
	defer end()
	response := must(http.Get("http://" + address + "/api/v1/configmaps?labelSelector=app%3D" + op.name))(t)
	defer response.Body.Close()
	var list core.ConfigMapList
	check(t, json.NewDecoder(response.Body).Decode(&list))
	seen := []string{}
	for _, item := range list.Items {
		seen = append(seen, item.Namespace)
	}
	assertNamespaces(t, pod+" sees", seen, teams)
}

// assertInitContainerListed asserts that the init container of a pod saw objects of exactly these namespaces.
func (op *operator) assertInitContainerListed(t *testing.T, pod string, teams ...string) {
	t.Helper()
	seen := []string{}
	for _, record := range op.containerJournal(t, pod, initContainer) {
		if namespace, _, _ := strings.Cut(record.Object, "/"); record.Event == "seen" {
			seen = append(seen, namespace)
		}
	}
	assertNamespaces(t, "the init container of "+pod+" saw", seen, teams)
}

// assertNamespaces asserts that objects of exactly these namespaces were seen.
func assertNamespaces(t *testing.T, who string, seen, teams []string) {
	t.Helper()
	slices.Sort(seen)
	teams = slices.Sorted(slices.Values(teams))
	if seen = slices.Compact(seen); !slices.Equal(seen, teams) {
		t.Errorf("%s namespaces %q, not %q", who, seen, teams)
	}
}

// assertLeaders asserts that each shard has a leader, with its own lock.
func (op *operator) assertLeaders(t *testing.T) {
	t.Helper()
	for _, pod := range op.podNames() {
		name := lock + "---" + pod
		eventually(t, "the lock of "+pod+" is held", func() error {
			lease, err := op.node.Client.CoordinationV1().Leases(op.name).Get(t.Context(), name, meta.GetOptions{})
			if err != nil {
				return err
			}
			return checkHolder(lease, pod)
		})
		if !hasRecord(op.journal(t, pod), "leading", "") {
			t.Errorf("%s has not reported that it leads", pod)
		}
	}
}

func checkHolder(lease *coordination.Lease, pod string) error {
	if holder := lease.Spec.HolderIdentity; holder == nil || len(*holder) < len(pod) || (*holder)[:len(pod)] != pod {
		return fmt.Errorf("%s is held by %v", lease.Name, holder)
	}
	return nil
}
