package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/manager"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// This file tests what managers must survive: their own death, and invalid objects.

// managerReplicas is a mesh whose managers are killed and replaced.
type managerReplicas struct {
	*mesh
	managers []*manager.Manager
}

func newManagerReplicas(t *testing.T) *managerReplicas {
	t.Helper()
	s := &managerReplicas{mesh: newMesh(t)}
	s.setLabelledKinds(t, "")
	s.managers = []*manager.Manager{s.startManager(t, uniqueName("manager")), s.startManager(t, uniqueName("manager"))}
	waitLeader(t, s.managers...)
	return s
}

// killLeader kills the leading manager and starts another one, which becomes the standby.
func (s *managerReplicas) killLeader(t *testing.T) {
	t.Helper()
	leading := waitLeader(t, s.managers...)
	leading.Process.Kill()
	for i, candidate := range s.managers {
		if candidate == leading {
			s.managers[i] = s.startManager(t, uniqueName("manager"))
		}
	}
}

func TestManagerFailuresLoseNoChange(t *testing.T) {
	t.Parallel()
	s := newManagerReplicas(t)
	t.Run("bad_objects_do_not_affect_others", s.testBadObjects)
	t.Run("failover_loses_no_change", s.testFailover)
}

// failoverCount is how often the leader is killed.
const failoverCount = 4

// testFailover changes a rule again and again, and kills the leader at random moments.
func (s *managerReplicas) testFailover(t *testing.T) {
	e := newEnforcement(t, s.mesh, 2, 1, syncPeriodWithFailover)
	namespace := e.nodePods.namespace
	generations := s.watchGenerations(t, namespace)
	for i := range failoverCount {
		value := fmt.Sprintf("v%d", i)
		applied := time.Now()
		killed := make(chan struct{})
		moment := time.Duration(rand.IntN(300)) * time.Millisecond
		victim := waitLeader(t, s.managers...)
		time.AfterFunc(moment, func() {
			victim.Process.Kill()
			close(killed)
		})
		s.apply(t, namespace, shardConfig("left", value))
		<-killed
		s.replaceDead(t)
		s.waitChainContains(t, namespace, `"`+value+`"`)
		got := s.waitCondition(t, "ShardingConfig", namespace, "left", "Enforced", meta.ConditionTrue)
		t.Logf("the leader was killed %s after apply; enforced in %s %s after it", moment, got.Enforced, time.Since(applied).Round(time.Millisecond))
		if got.Enforced != "2/2" {
			t.Errorf("enforced in %s", got.Enforced)
		}
	}
	generations(t)
}

// replaceDead starts a new manager for each that has ended.
func (s *managerReplicas) replaceDead(t *testing.T) {
	t.Helper()
	for i, candidate := range s.managers {
		if !candidate.Process.Alive() {
			s.managers[i] = s.startManager(t, uniqueName("manager"))
		}
	}
}

// watchGenerations watches the chain. The returned function asserts that its generation never fell, and that no two
// documents had the same one.
func (m *mesh) watchGenerations(t *testing.T, namespace string) func(*testing.T) {
	t.Helper()
	only := meta.ListOptions{FieldSelector: "metadata.name=" + kubelet.ChainConfigMap}
	stream := must(m.client.CoreV1().ConfigMaps(namespace).Watch(t.Context(), only))(t)
	var mu sync.Mutex
	documents := []string{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range stream.ResultChan() {
			if object, isChain := event.Object.(*core.ConfigMap); isChain && event.Type != watch.Deleted {
				mu.Lock()
				documents = append(documents, object.Data["chain.yaml"])
				mu.Unlock()
			}
		}
	}()
	return func(t *testing.T) {
		t.Helper()
		stream.Stop()
		<-done
		var last struct{ Generation int64 }
		previous := ""
		for _, document := range documents {
			next := last
			check(t, json.Unmarshal([]byte(document), &next))
			if next.Generation < last.Generation || (next.Generation == last.Generation && document != previous) {
				t.Errorf("generation %d is followed by %d: %s", last.Generation, next.Generation, document)
			}
			last, previous = next, document
		}
		t.Logf("%d documents up to generation %d", len(documents), last.Generation)
	}
}

// testBadObjects stores objects that today's schema would refuse, as upgraded clusters have them, and objects that only
// the manager's rules refuse.
func (s *managerReplicas) testBadObjects(t *testing.T) {
	namespace := s.newNamespace(t)
	s.apply(t, namespace, shardConfig("good", "a"))
	s.apply(t, namespace, shardConfig("turns-bad", "kept"))
	s.waitCondition(t, "ShardingConfig", namespace, "turns-bad", "Distributed", meta.ConditionTrue)
	s.storeUndecodable(t, namespace)

	// Only the manager's rules refuse it: its own objects stay in force unchanged.
	twice := strings.Replace(shardConfig("turns-bad", "unwanted"), "resources: [configmaps, widgets]}]", `resources: [configmaps]}, {apiGroups: [""], resources: [configmaps, "*"]}]`, 1)
	s.apply(t, namespace, twice)
	refused := s.waitCondition(t, "ShardingConfig", namespace, "turns-bad", "Accepted", meta.ConditionFalse).condition("Accepted")
	if !strings.Contains(refused.Message, "spec.limits[0].relateResources") {
		t.Errorf("the refusal does not name the field: %s", refused.Message)
	}
	// Other objects are not held up by a refused or undecodable one, also not in a manager that starts with them.
	s.apply(t, namespace, shardConfig("good", "bbb"))
	s.waitChainContains(t, namespace, `"bbb"`)
	s.killLeader(t)
	s.apply(t, namespace, shardConfig("good", "ccc"))
	s.waitChainContains(t, namespace, `"ccc"`)
	s.waitCondition(t, "ShardingConfig", namespace, "good", "Distributed", meta.ConditionTrue)
	document := must(s.chainDocument(t.Context(), namespace))(t)
	if !strings.Contains(document, `"kept"`) || strings.Contains(document, "unwanted") {
		t.Errorf("the last good rule is not in force: %s", document)
	}
	unreadable := s.waitCondition(t, "CircuitBreaker", namespace, "breakers", "Accepted", meta.ConditionFalse).condition("Accepted")
	if !strings.Contains(unreadable.Message, "triggerPolicy") {
		t.Errorf("the refusal does not name the field: %s", unreadable.Message)
	}
}

// storeUndecodable stores a CircuitBreaker with a value that no schema of ours ever allowed.
func (s *managerReplicas) storeUndecodable(t *testing.T, namespace string) {
	t.Helper()
	const name = "circuitbreakers.ctrlmesh.kusionstack.io"
	resource := s.dynamic.Resource(definitions)
	strict := must(resource.Get(t.Context(), name, meta.GetOptions{}))(t)
	versions, _, _ := unstructured.NestedSlice(strict.DeepCopy().Object, "spec", "versions")
	versions[0].(map[string]any)["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}
	s.replaceVersions(t, name, versions)
	wrong := strings.Replace(breakerConfig("breakers"), "triggerPolicy: Normal", "triggerPolicy: Sometimes", 1)
	eventually(t, "the loose schema is in force", func() error {
		_, err := s.tryApply(t.Context(), namespace, wrong)
		return err
	})
	versions, _, _ = unstructured.NestedSlice(strict.Object, "spec", "versions")
	s.replaceVersions(t, name, versions)
	eventually(t, "the strict schema is in force", func() error {
		_, err := s.tryApply(t.Context(), namespace, strings.Replace(wrong, "name: breakers", "name: others", 1))
		if err == nil {
			check(t, s.resource("CircuitBreaker", namespace).Delete(t.Context(), "others", meta.DeleteOptions{}))
			return fmt.Errorf("the API server accepts anything")
		}
		return nil
	})
}

func (s *managerReplicas) replaceVersions(t *testing.T, name string, versions []any) {
	t.Helper()
	patch := must(json.Marshal(map[string]any{"spec": map[string]any{"versions": versions}}))(t)
	_, err := s.dynamic.Resource(definitions).Patch(t.Context(), name, types.MergePatchType, patch, meta.PatchOptions{})
	check(t, err)
}
