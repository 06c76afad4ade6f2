package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/manager"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// This file runs managers in separate clusters, and reads the status of objects.

// mesh is a cluster with ctrlmesh installed.
type mesh struct {
	controlPlane
	dynamic dynamic.Interface
	// managerKubeconfig is the kubeconfig of the managers' account.
	managerKubeconfig string
	// leaseSeconds of managers; see [manager.Options].
	leaseSeconds int
	flags        []string
}

// newMesh starts a cluster and installs the repository's manifests. At the end, no request of a manager may have been
// forbidden.
func newMesh(t *testing.T, flags ...string) *mesh {
	t.Helper()
	return newMeshAt(t, nil, flags...)
}

// newMeshAt also passes flags to the API server.
func newMeshAt(t *testing.T, apiServerFlags []string, flags ...string) *mesh {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	plane := startOwnControlPlane(t, apiServerFlags...)
	m := &mesh{controlPlane: plane, flags: flags}
	m.dynamic = must(dynamic.NewForConfig(plane.cluster.AdminConfig()))(t)
	m.managerKubeconfig = must(manager.Install(ctx, plane.cluster, newDir(t)))(t)
	t.Cleanup(func() { assertPermissionsSuffice(t, m) })
	return m
}

// startManager runs one more manager until the test ends.
func (m *mesh) startManager(t *testing.T, name string) *manager.Manager {
	t.Helper()
	started, err := manager.Start(t.Context(), manager.Options{Name: name, Dir: newDir(t), Kubeconfig: m.managerKubeconfig, LeaseSeconds: m.leaseSeconds, Flags: m.flags})
	check(t, err)
	t.Cleanup(func() {
		if err := started.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of %s:\n%s", started.Process.LogPath, started.Process.LogTail(8192))
		}
	})
	return started
}

// setLabelledKinds configures which kinds of objects managers label, before they start: `v1: [ConfigMap]`. Tests that
// count writes use none.
func (m *mesh) setLabelledKinds(t *testing.T, kinds string) {
	t.Helper()
	object := &core.ConfigMap{
		ObjectMeta: meta.ObjectMeta{Name: "ctrlmesh-sharding-resource", Namespace: manager.Namespace},
		Data:       map[string]string{"resource-config": "groupVersionKinds: {" + kinds + "}"},
	}
	_, err := m.client.CoreV1().ConfigMaps(manager.Namespace).Create(t.Context(), object, meta.CreateOptions{})
	check(t, err)
}

// waitLeader waits until one of the managers leads.
func waitLeader(t *testing.T, managers ...*manager.Manager) *manager.Manager {
	t.Helper()
	var found *manager.Manager
	eventually(t, "one manager leads", func() error {
		for _, candidate := range managers {
			if candidate.IsLeading(t.Context()) {
				found = candidate
				return nil
			}
		}
		return fmt.Errorf("none of the %d managers leads", len(managers))
	})
	return found
}

// newNamespace creates a namespace.
func (m *mesh) newNamespace(t *testing.T) string {
	t.Helper()
	name := uniqueName("e2e")
	namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}
	_, err := m.client.CoreV1().Namespaces().Create(t.Context(), namespace, meta.CreateOptions{})
	check(t, err)
	return name
}

// waitPublicKey returns the public key of the managers' chains, once it exists.
func (m *mesh) waitPublicKey(t *testing.T) string {
	t.Helper()
	var key string
	eventually(t, "the manager's key exists", func() error {
		secret, err := m.client.CoreV1().Secrets(manager.Namespace).Get(t.Context(), "ctrlmesh-chain-key", meta.GetOptions{})
		if err != nil {
			return err
		}
		if key = string(secret.Data["public"]); key == "" {
			return fmt.Errorf("the Secret has %d keys, and no public one", len(secret.Data))
		}
		return nil
	})
	return key
}

func (m *mesh) resource(kind, namespace string) dynamic.ResourceInterface {
	resource := schema.GroupVersionResource{Group: "ctrlmesh.kusionstack.io", Version: "v1alpha1", Resource: resourceOfKind[kind]}
	return m.dynamic.Resource(resource).Namespace(namespace)
}

// apply is `kubectl apply --server-side`.
func (m *mesh) apply(t *testing.T, namespace, text string) *unstructured.Unstructured {
	t.Helper()
	return must(m.tryApply(t.Context(), namespace, text))(t)
}

func (m *mesh) tryApply(ctx context.Context, namespace, text string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		return nil, err
	}
	object.SetAPIVersion("ctrlmesh.kusionstack.io/v1alpha1")
	patch, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	force := true
	options := meta.PatchOptions{FieldManager: "e2e", Force: &force, FieldValidation: "Strict"}
	return m.resource(object.GetKind(), namespace).Patch(ctx, object.GetName(), types.ApplyPatchType, patch, options)
}

// objectStatus has the fields that the status of our kinds has in common, and some that only one kind has.
type objectStatus struct {
	ObservedGeneration int64            `json:"observedGeneration"`
	Conditions         []meta.Condition `json:"conditions"`
	Enforced           string           `json:"enforced"`
	CurrentSpecHash    string           `json:"currentSpecHash"`
	// Leader of a shard; empty if no pod leads.
	Leader struct {
		PodName        string `json:"podName"`
		HolderIdentity string `json:"holderIdentity"`
		Since          string `json:"since"`
	} `json:"leader"`
	TargetStatus []struct {
		PodName           string           `json:"podName"`
		PodIP             string           `json:"podIP"`
		ConfigHash        string           `json:"configHash"`
		Message           string           `json:"message"`
		LimitingSnapshots []map[string]any `json:"limitingSnapshots"`
	} `json:"targetStatus"`
}

// condition returns the condition of a type, or a zero value.
func (p objectStatus) condition(kind string) meta.Condition {
	for _, condition := range p.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return meta.Condition{}
}

// readStatus returns an object's current status.
func (m *mesh) readStatus(ctx context.Context, kind, namespace, name string) (objectStatus, int64, error) {
	object, err := m.resource(kind, namespace).Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return objectStatus{}, 0, err
	}
	var whole struct {
		Status objectStatus `json:"status"`
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &whole)
	return whole.Status, object.GetGeneration(), err
}

// waitCondition waits until the newest generation of an object has this condition, and returns its status.
func (m *mesh) waitCondition(t *testing.T, kind, namespace, name, condition string, status meta.ConditionStatus) objectStatus {
	t.Helper()
	return m.waitConditionWithin(t, waitTimeout, kind, namespace, name, condition, status)
}

// waitConditionWithin is waitCondition with another time limit.
func (m *mesh) waitConditionWithin(t *testing.T, limit time.Duration, kind, namespace, name, condition string, status meta.ConditionStatus) objectStatus {
	t.Helper()
	var last objectStatus
	eventuallyWithin(t, limit, fmt.Sprintf("%s %s: %s is %s", kind, name, condition, status), func() error {
		found, generation, err := m.readStatus(t.Context(), kind, namespace, name)
		if err != nil {
			return err
		}
		last = found
		got := found.condition(condition)
		switch {
		case found.ObservedGeneration != generation:
			return fmt.Errorf("generation %d is observed, not %d", found.ObservedGeneration, generation)
		case got.Status != status:
			return fmt.Errorf("the conditions are %s", describeConditions(found.Conditions))
		case got.ObservedGeneration != 0 && got.ObservedGeneration != generation:
			return errors.New("the condition is of an earlier generation")
		}
		return nil
	})
	return last
}

func describeConditions(conditions []meta.Condition) string {
	lines := []string{}
	for _, c := range conditions {
		lines = append(lines, fmt.Sprintf("%s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(lines, "; ")
}
