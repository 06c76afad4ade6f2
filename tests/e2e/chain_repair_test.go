package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/manager"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	audit "k8s.io/apiserver/pkg/apis/audit/v1"
)

// This file counts the manager's writes: one for each change, and another when somebody else has changed what it wrote.

// configMapWrites returns the managers' writes to ConfigMaps of a namespace, oldest first.
func (m *mesh) configMapWrites(t *testing.T, namespace string) []audit.Event {
	t.Helper()
	events, err := m.cluster.AuditEventsIn(namespace)
	check(t, err)
	found := []audit.Event{}
	for _, event := range events {
		if event.User.Username == manager.User && isConfigMapWrite(event) {
			found = append(found, event)
		}
	}
	return found
}

// countChainWrites counts the writes of chain documents, by namespace.
func (m *mesh) countChainWrites(t *testing.T) map[string]int {
	t.Helper()
	events, err := m.cluster.AuditEventsOf(manager.User)
	check(t, err)
	count := map[string]int{}
	for _, event := range events {
		if isConfigMapWrite(event) && event.ObjectRef.Name == kubelet.ChainConfigMap {
			count[event.ObjectRef.Namespace]++
		}
	}
	return count
}

// isConfigMapWrite matches writes of ConfigMaps that the API server accepted.
func isConfigMapWrite(event audit.Event) bool {
	if event.ObjectRef == nil || event.ObjectRef.Resource != "configmaps" || event.ResponseStatus.Code >= 300 {
		return false
	}
	return slices.Contains([]string{"create", "update", "patch", "delete"}, event.Verb)
}

// waitChainContains waits until the chain contains a text, and returns its generation.
func (m *mesh) waitChainContains(t *testing.T, namespace, text string) int64 {
	t.Helper()
	var head struct{ Generation int64 }
	eventually(t, "the chain has "+text, func() error {
		document, err := m.chainDocument(t.Context(), namespace)
		if err != nil {
			return err
		}
		if !strings.Contains(document, text) {
			return fmt.Errorf("the chain is %s", document)
		}
		return json.Unmarshal([]byte(document), &head)
	})
	return head.Generation
}

func testRepair(t *testing.T, m *mesh) {
	namespace := m.newNamespace(t)
	m.apply(t, namespace, shardConfig("left", "a"))
	first := m.waitChainContains(t, namespace, `"a"`)
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Distributed", meta.ConditionTrue)
	if count := m.countChainWrites(t)[namespace]; count != 1 {
		t.Errorf("one object led to %d writes of the chain", count)
	}
	before := len(m.configMapWrites(t, namespace))

	m.makeUnrelatedChanges(t, namespace)
	m.apply(t, namespace, shardConfig("left", "a", "bbb"))
	if second := m.waitChainContains(t, namespace, `"bbb"`); second != first+1 {
		t.Errorf("generation %d is followed by %d", first, second)
	}
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Distributed", meta.ConditionTrue)
	if writes := m.configMapWrites(t, namespace); len(writes) != before+1 {
		t.Errorf("one change led to %d writes: %s", len(writes)-before, describeRequests(writes[before:]))
	}

	configMaps := m.client.CoreV1().ConfigMaps(namespace)
	before = len(m.configMapWrites(t, namespace))
	names := []string{}
	for _, object := range must(configMaps.List(t.Context(), meta.ListOptions{}))(t).Items {
		if strings.HasPrefix(object.Name, "ctrlmesh-") {
			names = append(names, object.Name)
		}
	}
	if len(names) < 2 {
		t.Errorf("the ConfigMaps are %v", names)
	}
	for _, name := range names {
		m.assertRestored(t, namespace, name, "after an edit", func(object *core.ConfigMap) error {
			for key := range object.Data {
				object.Data[key] = "something else"
			}
			for key := range object.BinaryData {
				object.BinaryData[key] = []byte("something else")
			}
			_, err := configMaps.Update(t.Context(), object, meta.UpdateOptions{})
			return err
		})
		m.assertRestored(t, namespace, name, "after it was deleted", func(*core.ConfigMap) error {
			return configMaps.Delete(t.Context(), name, meta.DeleteOptions{})
		})
	}
	// An unnecessary repair would come before this change.
	m.apply(t, namespace, shardConfig("left", "ccc"))
	m.waitChainContains(t, namespace, `"ccc"`)
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Distributed", meta.ConditionTrue)
	if writes := m.configMapWrites(t, namespace); len(writes) != before+2*len(names)+1 {
		t.Errorf("%d repairs and a change led to %d writes: %s", 2*len(names), len(writes)-before, describeRequests(writes[before:]))
	}
}

// makeUnrelatedChanges changes objects that the manager must ignore.
func (m *mesh) makeUnrelatedChanges(t *testing.T, namespace string) {
	t.Helper()
	pods, configMaps := m.client.CoreV1().Pods(namespace), m.client.CoreV1().ConfigMaps(namespace)
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "bystander"}, Spec: core.PodSpec{Containers: []core.Container{{Name: "a", Image: "a"}}}}
	_, err := pods.Create(t.Context(), pod, meta.CreateOptions{})
	check(t, err)
	other := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "other", Labels: map[string]string{watchingLabel: "true"}}}
	_, err = configMaps.Create(t.Context(), other, meta.CreateOptions{})
	check(t, err)
	for i := range 10 {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"step":"%d"}}}`, i)
		_, err := pods.Patch(t.Context(), "bystander", types.MergePatchType, patch, meta.PatchOptions{})
		check(t, err)
		_, err = configMaps.Patch(t.Context(), "other", types.MergePatchType, patch, meta.PatchOptions{})
		check(t, err)
		// Annotations and status of our own objects do not change the chain.
		_, err = m.resource("ShardingConfig", namespace).Patch(t.Context(), "left", types.MergePatchType, patch, meta.PatchOptions{})
		check(t, err)
	}
}

// assertRestored changes a ConfigMap and waits until the manager has restored it.
func (m *mesh) assertRestored(t *testing.T, namespace, name, when string, breaks func(*core.ConfigMap) error) {
	t.Helper()
	configMaps := m.client.CoreV1().ConfigMaps(namespace)
	was := must(configMaps.Get(t.Context(), name, meta.GetOptions{}))(t)
	content := func(object *core.ConfigMap) string {
		return string(must(json.Marshal([]any{object.Data, object.BinaryData}))(t))
	}
	want := content(was)
	check(t, breaks(was))
	eventually(t, name+" is restored "+when, func() error {
		object, err := configMaps.Get(t.Context(), name, meta.GetOptions{})
		if err == nil && content(object) != want {
			err = errors.New("the ConfigMap is still changed")
		}
		return err
	})
}

func describeRequests(events []audit.Event) string {
	lines := []string{}
	for _, event := range events {
		lines = append(lines, event.Verb+" "+event.RequestURI)
	}
	return strings.Join(lines, "; ")
}
