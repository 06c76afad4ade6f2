package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// This file covers H106, the leader-election lock: the controller sees `lock`, the API server sees `lock---s0`, in
// every verb, kind of lock and encoding.

const (
	lockName  = "lock"
	shardLock = "lock---s0"
)

func createLease(t *testing.T, namespace, name string) {
	t.Helper()
	lease := &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: name}}
	_, err := shared.client.CoordinationV1().Leases(namespace).Create(t.Context(), lease, meta.CreateOptions{})
	check(t, err)
}

// lockRule shards only the lock.
func lockRule(shard string) sidecar.ShardRule {
	return sidecar.ShardRule{Shard: shard, LeaderElectionName: lockName}
}

func startLockSidecar(t *testing.T, namespace, shard string) *sidecar.Sidecar {
	t.Helper()
	chain := shardChain(t, 1, lockRule(shard))
	return startSidecar(t, sidecar.Options{Chain: &chain, Namespace: namespace})
}

// lockClient is a typed client of one kind of lock.
type lockClient[T runtimeObject, L runtime.Object] interface {
	Create(context.Context, T, meta.CreateOptions) (T, error)
	Update(context.Context, T, meta.UpdateOptions) (T, error)
	Delete(context.Context, string, meta.DeleteOptions) error
	Get(context.Context, string, meta.GetOptions) (T, error)
	List(context.Context, meta.ListOptions) (L, error)
	Watch(context.Context, meta.ListOptions) (watch.Interface, error)
	Patch(context.Context, string, types.PatchType, []byte, meta.PatchOptions, ...string) (T, error)
}

type runtimeObject interface {
	runtime.Object
	meta.Object
}

func testLockNames(t *testing.T, _ *testEnv) {
	for _, content := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		namespace := newNamespace(t)
		s := startLockSidecar(t, namespace, "s0")
		config := clientConfig(s)
		config.ContentType, config.AcceptContentTypes = content, content
		client := must(kubernetes.NewForConfig(config))(t)
		kind := strings.TrimPrefix(content, "application/")
		t.Run("Lease_"+kind, func(t *testing.T) {
			testLockVerbs(t, client.CoordinationV1().Leases(namespace), shared.client.CoordinationV1().Leases(namespace),
				&coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: lockName}})
		})
		t.Run("ConfigMap_"+kind, func(t *testing.T) {
			testLockVerbs(t, client.CoreV1().ConfigMaps(namespace), shared.client.CoreV1().ConfigMaps(namespace),
				&core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: lockName}})
		})
		t.Run("Endpoints_"+kind, func(t *testing.T) {
			testLockVerbs(t, client.CoreV1().Endpoints(namespace), shared.client.CoreV1().Endpoints(namespace),
				&core.Endpoints{ObjectMeta: meta.ObjectMeta{Name: lockName}})
		})
		t.Run("Events_"+kind, func(t *testing.T) { testLockEvents(t, client, namespace) })
	}
	t.Run("other_names_and_namespaces_are_not_renamed", testOtherLocks)
}

// testLockVerbs tests all verbs on a lock. `proxied` is the controller's client, `direct` sees what the API server
// stores.
func testLockVerbs[T runtimeObject, L runtime.Object](t *testing.T, proxied, direct lockClient[T, L], lock T) {
	ctx := t.Context()
	_, err := proxied.Get(ctx, lockName, meta.GetOptions{})
	if !errors.IsNotFound(err) || strings.Contains(err.Error(), "---") || err.(errors.APIStatus).Status().Details.Name != lockName {
		t.Errorf("get before the create: %v", err)
	}
	byName := meta.ListOptions{FieldSelector: "metadata.name=" + lockName}
	stream := must(proxied.Watch(ctx, byName))(t)
	defer stream.Stop()

	created := must(proxied.Create(ctx, lock.DeepCopyObject().(T), meta.CreateOptions{}))(t)
	assertNamed(t, "create", created)
	real := must(direct.Get(ctx, shardLock, meta.GetOptions{}))(t)
	if real.GetUID() != created.GetUID() {
		t.Errorf("%s has another UID than the created object", shardLock)
	}
	if _, err := direct.Get(ctx, lockName, meta.GetOptions{}); !errors.IsNotFound(err) {
		t.Errorf("the API server has an object named %q: %v", lockName, err)
	}
	if _, err := proxied.Create(ctx, lock.DeepCopyObject().(T), meta.CreateOptions{}); !errors.IsAlreadyExists(err) || strings.Contains(err.Error(), "---") {
		t.Errorf("second create: %v", err)
	}

	current := must(proxied.Get(ctx, lockName, meta.GetOptions{}))(t)
	assertNamed(t, "get", current)
	current.SetAnnotations(map[string]string{"verb": "update"})
	updated := must(proxied.Update(ctx, current, meta.UpdateOptions{}))(t)
	assertNamed(t, "update", updated)
	if _, err := proxied.Update(ctx, created, meta.UpdateOptions{}); !errors.IsConflict(err) || strings.Contains(err.Error(), "---") {
		t.Errorf("update at an old version: %v", err)
	}
	last := testLockPatches(t, proxied, lock)
	if got := must(direct.Get(ctx, shardLock, meta.GetOptions{}))(t); got.GetResourceVersion() != last.GetResourceVersion() {
		t.Errorf("the patches changed another object: %s is at %s, the last response at %s", shardLock, got.GetResourceVersion(), last.GetResourceVersion())
	}

	list := must(proxied.List(ctx, byName))(t)
	items := must(apimeta.ExtractList(list))(t)
	if len(items) != 1 || items[0].(meta.Object).GetName() != lockName {
		t.Errorf("list by field selector: %v", list)
	}
	check(t, proxied.Delete(ctx, lockName, meta.DeleteOptions{}))
	if _, err := direct.Get(ctx, shardLock, meta.GetOptions{}); !errors.IsNotFound(err) {
		t.Errorf("after the delete: %v", err)
	}
	assertLockWatch(t, stream)
}

func assertNamed(t *testing.T, verb string, object meta.Object) {
	t.Helper()
	if object.GetName() != lockName {
		t.Errorf("%s returns an object named %q", verb, object.GetName())
	}
}

// testLockPatches uses every type of patch; patches with the name in the body use the controller's name.
func testLockPatches[T runtimeObject, L runtime.Object](t *testing.T, proxied lockClient[T, L], lock T) T {
	t.Helper()
	gvk := must(gvkOf(lock))(t)
	apply := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n  annotations: {verb: apply}\n", gvk.GroupVersion(), gvk.Kind, lockName)
	asJSON := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"annotations":{"verb":"apply-json"}}}`, gvk.GroupVersion(), gvk.Kind, lockName)
	force := true
	var last T
	for _, patch := range []struct {
		kind    types.PatchType
		body    string
		options meta.PatchOptions
	}{
		{types.MergePatchType, `{"metadata":{"name":"lock","annotations":{"verb":"merge"}}}`, meta.PatchOptions{}},
		{types.MergePatchType, `{"metadata":{"annotations":{"verb":"merge2"}}}`, meta.PatchOptions{}},
		{types.StrategicMergePatchType, `{"metadata":{"annotations":{"verb":"strategic"}}}`, meta.PatchOptions{}},
		{types.JSONPatchType, `[{"op":"test","path":"/metadata/annotations/verb","value":"strategic"},{"op":"replace","path":"/metadata/annotations/verb","value":"json"}]`, meta.PatchOptions{}},
		{types.ApplyYAMLPatchType, apply, meta.PatchOptions{FieldManager: "e2e", Force: &force}},
		{types.ApplyYAMLPatchType, asJSON, meta.PatchOptions{FieldManager: "e2e", Force: &force}},
	} {
		var err error
		if last, err = proxied.Patch(t.Context(), lockName, patch.kind, []byte(patch.body), patch.options); err != nil {
			t.Fatalf("%s %s: %v", patch.kind, patch.body, err)
		}
		assertNamed(t, string(patch.kind), last)
	}
	return last
}

// assertLockWatch asserts the events that a watch by name has received.
func assertLockWatch(t *testing.T, stream watch.Interface) {
	t.Helper()
	seen := []string{}
	for event := range stream.ResultChan() {
		assertNamed(t, "watch "+string(event.Type), event.Object.(meta.Object))
		seen = append(seen, string(event.Type))
		if event.Type == watch.Deleted {
			break
		}
	}
	if len(seen) < 3 || seen[0] != string(watch.Added) || seen[len(seen)-1] != string(watch.Deleted) {
		t.Errorf("the watch received %v", seen)
	}
}

// testLockEvents: a leader reports its election in an Event about the lock.
func testLockEvents(t *testing.T, client kubernetes.Interface, namespace string) {
	reference := core.ObjectReference{Kind: "Lease", APIVersion: "coordination.k8s.io/v1", Namespace: namespace, Name: lockName}
	old := &core.Event{ObjectMeta: meta.ObjectMeta{GenerateName: "lock-"}, InvolvedObject: reference, Reason: "LeaderElection", Message: "became leader"}
	created := must(client.CoreV1().Events(namespace).Create(t.Context(), old, meta.CreateOptions{}))(t)
	inside := must(shared.client.CoreV1().Events(namespace).Get(t.Context(), created.Name, meta.GetOptions{}))(t)
	if created.InvolvedObject.Name != lockName || inside.InvolvedObject.Name != shardLock {
		t.Errorf("involved object: proxied %q, direct %q", created.InvolvedObject.Name, inside.InvolvedObject.Name)
	}
	now := meta.NowMicro()
	modern := &eventsv1.Event{
		ObjectMeta: meta.ObjectMeta{GenerateName: "lock-"}, Regarding: reference, Reason: "LeaderElection", Note: "became leader", EventTime: now,
		Action: "Election", Type: core.EventTypeNormal, ReportingController: "e2e", ReportingInstance: "e2e-0",
	}
	answer := must(client.EventsV1().Events(namespace).Create(t.Context(), modern, meta.CreateOptions{}))(t)
	stored := must(shared.client.EventsV1().Events(namespace).Get(t.Context(), answer.Name, meta.GetOptions{}))(t)
	if answer.Regarding.Name != lockName || stored.Regarding.Name != shardLock {
		t.Errorf("regarding: proxied %q, direct %q", answer.Regarding.Name, stored.Regarding.Name)
	}
}

// testOtherLocks: only one name in one namespace is renamed, and two shards do not see each other's lock.
func testOtherLocks(t *testing.T) {
	namespace, elsewhere := newNamespace(t), newNamespace(t)
	one, two := startLockSidecar(t, namespace, "s0"), startLockSidecar(t, namespace, "s1")
	first := must(kubernetes.NewForConfig(clientConfig(one)))(t).CoordinationV1()
	second := must(kubernetes.NewForConfig(clientConfig(two)))(t).CoordinationV1()
	lease := func(name string) *coordination.Lease {
		return &coordination.Lease{ObjectMeta: meta.ObjectMeta{Name: name}}
	}
	for _, name := range []string{"lock2", "a-lock", "lock---s1x"} {
		must(first.Leases(namespace).Create(t.Context(), lease(name), meta.CreateOptions{}))(t)
		must(shared.client.CoordinationV1().Leases(namespace).Get(t.Context(), name, meta.GetOptions{}))(t)
	}
	must(first.Leases(elsewhere).Create(t.Context(), lease(lockName), meta.CreateOptions{}))(t)
	must(shared.client.CoordinationV1().Leases(elsewhere).Get(t.Context(), lockName, meta.GetOptions{}))(t)

	mine := must(first.Leases(namespace).Create(t.Context(), lease(lockName), meta.CreateOptions{}))(t)
	theirs := must(second.Leases(namespace).Create(t.Context(), lease(lockName), meta.CreateOptions{}))(t)
	if mine.UID == theirs.UID {
		t.Error("two shards share a lock")
	}
	for _, name := range []string{"lock---s0", "lock---s1"} {
		must(shared.client.CoordinationV1().Leases(namespace).Get(t.Context(), name, meta.GetOptions{}))(t)
	}
}

func gvkOf(object runtime.Object) (schema.GroupVersionKind, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return kinds[0], nil
}
