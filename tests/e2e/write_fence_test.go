package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// This file tests that a shard with hash ranges writes its own objects only (docs/adr/0057), with client-go and kubectl.

// lastRangeOfShard is the last virtual range of the shard under test, which has those from 0 on: half of all.
const lastRangeOfShard = virtualRangeCount/2 - 1

// fenceRule divides some kinds by a key.
func fenceRule(key string) sidecar.ShardRule {
	return sidecar.ShardRule{Shard: "s0", Limits: []sidecar.Limit{{
		RelateResources: []sidecar.Resources{{
			APIGroups: []string{"", "apps", widgetResource.Group}, Resources: []string{"configmaps", "deployments", "pods", "widgets"},
		}},
		HashRanges: &sidecar.HashRanges{Key: key, Ranges: []string{fmt.Sprintf("0-%d", lastRangeOfShard)}},
	}}}
}

// fencedKind is a kind that is divided.
type fencedKind struct {
	resource schema.GroupVersionResource
	kind     string
	// fields are those beside the metadata.
	fields jsonFields
}

var (
	podSpec          = jsonFields{"containers": []any{jsonFields{"name": "c", "image": "i"}}}
	fencedConfigMaps = fencedKind{core.SchemeGroupVersion.WithResource("configmaps"), "ConfigMap", jsonFields{"data": jsonFields{"key": "value"}}}
	fencedPods       = fencedKind{core.SchemeGroupVersion.WithResource("pods"), "Pod", jsonFields{"spec": podSpec}}
	fencedWidgets    = fencedKind{widgetResource, "Widget", jsonFields{"spec": jsonFields{"step": ""}}}

	fencedDeployments = fencedKind{
		schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, "Deployment",
		jsonFields{"spec": jsonFields{
			"selector": jsonFields{"matchLabels": jsonFields{"app": "fenced"}},
			"template": jsonFields{"metadata": jsonFields{"labels": jsonFields{"app": "fenced"}}, "spec": podSpec},
		}},
	}
)

// fencedObjects are the objects of a kind in one namespace, without a sidecar.
type fencedObjects struct {
	dynamic.ResourceInterface
	kind fencedKind
}

func newFencedObjects(t *testing.T, kind fencedKind, namespace string) fencedObjects {
	t.Helper()
	client := must(dynamic.NewForConfig(shared.cluster.AdminConfig()))(t)
	return fencedObjects{client.Resource(kind.resource).Namespace(namespace), kind}
}

// add creates an object whose UID is in the ranges of the shard, or outside.
func (o fencedObjects) add(t *testing.T, name string, isOwn bool, owners ...meta.OwnerReference) *unstructured.Unstructured {
	t.Helper()
	for range 64 {
		object := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.kind.fields)}
		object.SetGroupVersionKind(o.kind.resource.GroupVersion().WithKind(o.kind.kind))
		object.SetName(name)
		object.SetOwnerReferences(owners)
		created := must(o.Create(t.Context(), object, meta.CreateOptions{}))(t)
		if isOwn == (virtualRange("uid", string(created.GetUID())) <= lastRangeOfShard) {
			return created
		}
		check(t, o.Delete(t.Context(), name, meta.DeleteOptions{}))
	}
	t.Fatalf("64 UIDs of %s have the same half of all ranges", name)
	return nil
}

// find returns nil if there is no such object.
func (o fencedObjects) find(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	found, err := o.Get(t.Context(), name, meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	check(t, err)
	return found
}

// assertUnchanged asserts that nobody has written an object.
func (o fencedObjects) assertUnchanged(t *testing.T, before *unstructured.Unstructured) {
	t.Helper()
	found := o.find(t, before.GetName())
	if found == nil || found.GetUID() != before.GetUID() || found.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("the object %v has become %v", before, found)
	}
}

// assertFenced asserts the conflict of an object outside of the shard, for which no client waits.
func assertFenced(t *testing.T, err error) {
	t.Helper()
	isConflict := apierrors.IsConflict(err) && isStatusWithoutRetryAfter(http.StatusConflict)(err)
	if !isConflict || !strings.Contains(err.Error(), "belongs to another shard or view") {
		t.Errorf("a write outside of the shard returns %v", err)
	}
}

// assertRequests asserts the requests for each object that arrived at the API server: the verb, and the subresource
// behind a slash.
func assertRequests(t *testing.T, namespace string, want map[string][]string) {
	t.Helper()
	found := map[string][]string{}
	for _, event := range auditedRequests(t, shared.controlPlane, namespace, "get", "create", "update", "patch", "delete") {
		request := event.Verb
		if event.ObjectRef.Subresource != "" {
			request += "/" + event.ObjectRef.Subresource
		}
		found[event.ObjectRef.Name] = append(found[event.ObjectRef.Name], request)
	}
	for name, requests := range want {
		if !slices.Equal(found[name], requests) {
			t.Errorf("%s: the API server got %v, want %v", name, found[name], requests)
		}
	}
}

// contentConfig is the configuration of a client behind the sidecar in JSON or protobuf.
func contentConfig(s *sidecar.Sidecar, content string) *rest.Config {
	config := rest.CopyConfig(clientConfig(s))
	config.ContentType, config.AcceptContentTypes = content, content
	return config
}

func TestWriteFenceKeepsClientsInTheirShard(t *testing.T) {
	s := startShardSidecar(t, fenceRule("uid"))
	namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: cluster.NamespaceWithBodies}}
	if _, err := shared.client.CoreV1().Namespaces().Create(t.Context(), namespace, meta.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		check(t, err)
	}
	parallel := func(name string, run func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t)
		})
	}
	for name, content := range map[string]string{"json": runtime.ContentTypeJSON, "protobuf": runtime.ContentTypeProtobuf} {
		client := must(kubernetes.NewForConfig(contentConfig(s, content)))(t)
		parallel("deployments_"+name, func(t *testing.T) { testFencedWrites(t, fencedDeployments, deploymentWrites(client)) })
		parallel("pods_"+name, func(t *testing.T) { testFencedWrites(t, fencedPods, podWrites(client)) })
		parallel("bound_deployments_"+name, func(t *testing.T) { testBoundWrites(t, fencedDeployments, deploymentWrites(client)) })
		parallel("bound_pods_"+name, func(t *testing.T) { testBoundWrites(t, fencedPods, podWrites(client)) })
		parallel("other_uids_"+name, func(t *testing.T) { testOtherUIDs(t, client) })
		parallel("missing_objects_"+name, func(t *testing.T) { testMissingObjects(t, client) })
	}
	for _, kind := range []fencedKind{fencedDeployments, fencedWidgets} {
		client := must(dynamic.NewForConfig(clientConfig(s)))(t)
		parallel("dynamic_"+kind.resource.Resource, func(t *testing.T) {
			testFencedWrites(t, kind, writesOfAnyKind(dynamicClient{client.Resource(kind.resource)}))
		})
	}
	parallel("kubectl", func(t *testing.T) { testFencedKubectl(t, s) })
	parallel("conflict_is_repeated_after_a_read", func(t *testing.T) { testRepeatedConflict(t, s) })
	parallel("missing_right_to_get", func(t *testing.T) { testMissingRightToGet(t, s) })
	parallel("key_owner", testFenceByOwner)
	parallel("named_gets_pass", func(t *testing.T) { testNamedGets(t, "", func(err error) bool { return err == nil }) })
	parallel("named_gets_not_found", func(t *testing.T) { testNamedGets(t, "NotFound", apierrors.IsNotFound) })
	parallel("named_gets_forbidden", func(t *testing.T) { testNamedGets(t, "Forbidden", apierrors.IsForbidden) })
}

// testFencedWrites sends each write for an object of the shard and for one outside, and reads the audit log then.
func testFencedWrites(t *testing.T, kind fencedKind, writes []fencedWrite) {
	namespace := newNamespace(t)
	objects := newFencedObjects(t, kind, namespace)
	want := map[string][]string{}
	for _, write := range writes {
		name := strings.ReplaceAll(write.name, "_", "-")
		mine, foreign := "mine-"+name, "foreign-"+name
		want[mine], want[foreign] = write.requests(true), write.requests(false)
		t.Run(write.name, func(t *testing.T) {
			own := write.newObject(t, objects, mine, true)
			check(t, write.write(t.Context(), own.DeepCopy()))
			if found := objects.find(t, mine); !write.isDone(found) {
				t.Errorf("the write has no effect on an object of the shard: %v", found)
			}
			other := write.newObject(t, objects, foreign, false)
			assertFenced(t, write.write(t.Context(), other.DeepCopy()))
			objects.assertUnchanged(t, other)
		})
	}
	assertRequests(t, namespace, want)
}

// newObject creates an object and prepares it.
func (w fencedWrite) newObject(t *testing.T, objects fencedObjects, name string, isOwn bool) *unstructured.Unstructured {
	t.Helper()
	object := objects.add(t, name, isOwn)
	if w.prepare == nil {
		return object
	}
	check(t, w.prepare(t.Context(), objects, object))
	return must(objects.Get(t.Context(), name, meta.GetOptions{}))(t)
}

// testBoundWrites asserts that each write says which object it is for when it arrives at the API server.
func testBoundWrites(t *testing.T, kind fencedKind, writes []fencedWrite) {
	objects := newFencedObjects(t, kind, cluster.NamespaceWithBodies)
	uids := map[string]string{}
	for _, write := range writes {
		if write.name == writeOfYAML {
			continue
		}
		object := write.newObject(t, objects, uniqueName("mine"), true)
		check(t, write.write(t.Context(), object.DeepCopy()))
		uids[object.GetName()] = string(object.GetUID())
	}
	for _, event := range auditedRequests(t, shared.controlPlane, cluster.NamespaceWithBodies, "create", "update", "patch", "delete") {
		want, isOurs := uids[event.ObjectRef.Name]
		if !isOurs {
			continue
		}
		delete(uids, event.ObjectRef.Name)
		if event.RequestObject == nil {
			t.Errorf("%s has no body", event.RequestURI)
			continue
		}
		if found := must(boundUID(event.RequestObject.Raw))(t); found != want {
			t.Errorf("%s %s is for the UID %q, want %s: %s", event.Verb, event.RequestURI, found, want, event.RequestObject.Raw)
		}
	}
	if len(uids) > 0 {
		t.Errorf("the API server got no write of %v", uids)
	}
}

// boundUID returns the UID that the API server compares with that of the object.
func boundUID(body []byte) (string, error) {
	if body[0] == '[' {
		var operations []struct {
			Op, Path string
			Value    any
		}
		err := json.Unmarshal(body, &operations)
		if err != nil || len(operations) == 0 || operations[0].Op != "test" || operations[0].Path != "/metadata/uid" {
			return "", err
		}
		return fmt.Sprint(operations[0].Value), nil
	}
	type uid struct{ UID string }
	var object struct {
		Metadata, Preconditions uid
		DeleteOptions           struct{ Preconditions uid }
	}
	err := json.Unmarshal(body, &object)
	return cmp.Or(object.Metadata.UID, object.Preconditions.UID, object.DeleteOptions.Preconditions.UID), err
}

// testOtherUIDs sends writes with the UID of another object of the shard: the sidecar refuses what it compares itself,
// and leaves an update to the API server.
func testOtherUIDs(t *testing.T, client *kubernetes.Clientset) {
	namespace := newNamespace(t)
	objects := newFencedObjects(t, fencedConfigMaps, namespace)
	uid := objects.add(t, "mine-other", true).GetUID()
	patch := []byte(fmt.Sprintf(`{"metadata":{"uid":%q,"labels":{"step":"done"}}}`, uid))
	configMaps := client.CoreV1().ConfigMaps(namespace)
	for name, isOwn := range map[string]bool{"mine": true, "foreign": false} {
		object := objects.add(t, name, isOwn)
		update := func() error {
			_, err := configMaps.Update(t.Context(), &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name, UID: uid}}, meta.UpdateOptions{})
			return err
		}
		merge := func() error {
			_, err := configMaps.Patch(t.Context(), name, types.MergePatchType, patch, meta.PatchOptions{})
			return err
		}
		remove := func() error {
			return configMaps.Delete(t.Context(), name, meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &uid}})
		}
		for _, write := range []func() error{update, merge, remove} {
			if err := write(); !apierrors.IsConflict(err) {
				t.Errorf("a write of %s with the UID of another object returns %v", name, err)
			}
		}
		objects.assertUnchanged(t, object)
	}
	requests := []string{"update", "get", "get"}
	assertRequests(t, namespace, map[string][]string{"mine": requests, "foreign": requests})
}

// testMissingObjects leaves it to the API server what happens with objects that do not exist.
func testMissingObjects(t *testing.T, client *kubernetes.Clientset) {
	namespace := newNamespace(t)
	configMaps := client.CoreV1().ConfigMaps(namespace)
	applied := coreapply.ConfigMap("applied", namespace).WithData(map[string]string{"key": "value"})
	created := must(configMaps.Apply(t.Context(), applied, meta.ApplyOptions{FieldManager: "e2e"}))(t)
	if created.UID == "" || created.Data["key"] != "value" {
		t.Errorf("the apply created %v", created)
	}
	_, update := configMaps.Update(t.Context(), &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "missing"}}, meta.UpdateOptions{})
	_, patch := configMaps.Patch(t.Context(), "missing", types.MergePatchType, []byte(stepPatch), meta.PatchOptions{})
	remove := configMaps.Delete(t.Context(), "missing", meta.DeleteOptions{})
	for _, err := range []error{update, patch, remove} {
		if !apierrors.IsNotFound(err) {
			t.Errorf("a write of an object that does not exist returns %v", err)
		}
	}
	assertRequests(t, namespace, map[string][]string{
		"applied": {"get", "patch"}, "missing": {"get", "update", "get", "patch", "get", "delete"},
	})
}

func testFencedKubectl(t *testing.T, s *sidecar.Sidecar) {
	objects := newFencedObjects(t, fencedConfigMaps, newNamespace(t))
	kubeconfig := sidecarKubeconfig(t, s)
	for _, command := range []string{
		"label cm NAME step=done", "patch cm NAME --type=merge -p " + stepPatch, "apply --server-side --force-conflicts -f -", "replace -f -", "delete cm NAME",
	} {
		arguments := strings.Fields(command)
		run := func(t *testing.T, object *unstructured.Unstructured) error {
			filled := strings.Fields(strings.ReplaceAll(command, "NAME", object.GetName()))
			manifest := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, labels: {step: done}}\n", object.GetName())
			_, err := tryKubectl(t, kubeconfig, manifest, append(filled, "-n", object.GetNamespace())...)
			return err
		}
		isDone := hasStep
		if arguments[0] == "delete" {
			isDone = isGone
		}
		t.Run(arguments[0], func(t *testing.T) {
			own, other := objects.add(t, "mine-"+arguments[0], true), objects.add(t, "foreign-"+arguments[0], false)
			check(t, run(t, own))
			if found := objects.find(t, own.GetName()); !isDone(found) {
				t.Errorf("kubectl has no effect on an object of the shard: %v", found)
			}
			if err := run(t, other); err == nil || !strings.Contains(err.Error(), "belongs to another shard or view") {
				t.Errorf("kubectl returns %v", err)
			}
			objects.assertUnchanged(t, other)
		})
	}
}

// testRepeatedConflict: client-go sends nothing again by itself, and RetryOnConflict reads again each time.
func testRepeatedConflict(t *testing.T, s *sidecar.Sidecar) {
	namespace := newNamespace(t)
	objects := newFencedObjects(t, fencedConfigMaps, namespace)
	object := objects.add(t, "foreign", false)
	configMaps := must(kubernetes.NewForConfig(clientConfig(s)))(t).CoreV1().ConfigMaps(namespace)
	attempts := 0
	assertFenced(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		attempts++
		fresh, err := configMaps.Get(t.Context(), "foreign", meta.GetOptions{})
		if err != nil {
			return err
		}
		fresh.Labels = map[string]string{"step": "done"}
		_, err = configMaps.Update(t.Context(), fresh, meta.UpdateOptions{})
		return err
	}))
	if attempts != retry.DefaultRetry.Steps {
		t.Errorf("%d attempts, want %d", attempts, retry.DefaultRetry.Steps)
	}
	objects.assertUnchanged(t, object)
	assertRequests(t, namespace, map[string][]string{"foreign": slices.Repeat([]string{"get"}, attempts)})
}

// testMissingRightToGet: who may not read an object may not write it either, and learns what is missing. An update with
// a UID needs no read.
func testMissingRightToGet(t *testing.T, s *sidecar.Sidecar) {
	namespace := newNamespace(t)
	objects := newFencedObjects(t, fencedConfigMaps, namespace)
	objects.add(t, "mine", true)
	config := rest.CopyConfig(clientConfig(s))
	config.BearerToken = must(shared.cluster.ServiceAccountToken(t.Context(), namespace, "writer"))(t)
	configMaps := must(kubernetes.NewForConfig(config))(t).CoreV1().ConfigMaps(namespace)
	grant(t, namespace, "writer", "update", "patch", "delete")
	eventually(t, "an update with a UID passes", func() error {
		object, err := shared.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "mine", meta.GetOptions{})
		if err != nil {
			return err
		}
		object.Data = map[string]string{"key": "updated"}
		_, err = configMaps.Update(t.Context(), object, meta.UpdateOptions{})
		return err
	})
	before := objects.find(t, "mine")
	patch := func() error {
		_, err := configMaps.Patch(t.Context(), "mine", types.MergePatchType, []byte(stepPatch), meta.PatchOptions{})
		return err
	}
	for _, err := range []error{patch(), configMaps.Delete(t.Context(), "mine", meta.DeleteOptions{})} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `grant the verb "get" for this resource`) {
			t.Errorf("without the right to get, a write returns %v", err)
		}
	}
	objects.assertUnchanged(t, before)
	grant(t, namespace, "writer", "get")
	eventually(t, "the patch passes with the right to get", patch)
}

// grant lets a service account use verbs on ConfigMaps, besides those that it may use already.
func grant(t *testing.T, namespace, account string, verbs ...string) {
	t.Helper()
	named := meta.ObjectMeta{Name: uniqueName(account)}
	rules := []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs}}
	_, err := shared.client.RbacV1().Roles(namespace).Create(t.Context(), &rbac.Role{ObjectMeta: named, Rules: rules}, meta.CreateOptions{})
	check(t, err)
	_, err = shared.client.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbac.RoleBinding{
		ObjectMeta: named,
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: named.Name},
		Subjects:   []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, meta.CreateOptions{})
	check(t, err)
}

// testFenceByOwner: with the key `owner`, a child is in the shard of its controller, whatever its own UID says. The
// sidecar asks also for updates with a UID, which says nothing of the owner.
func testFenceByOwner(t *testing.T) {
	s := startShardSidecar(t, fenceRule("owner"))
	client := must(dynamic.NewForConfig(clientConfig(s)))(t)
	namespace := newNamespace(t)
	objects := newFencedObjects(t, fencedConfigMaps, namespace)
	writer := dynamicClient{client.Resource(fencedConfigMaps.resource)}
	writes := []func(context.Context, *unstructured.Unstructured) error{
		writer.update,
		func(ctx context.Context, object *unstructured.Unstructured) error {
			return writer.patch(ctx, object, types.MergePatchType, stepPatch)
		},
		func(ctx context.Context, object *unstructured.Unstructured) error {
			return writer.delete(ctx, object, meta.DeleteOptions{})
		},
	}
	for prefix, isOwn := range map[string]bool{"mine-": true, "foreign-": false} {
		owner := objects.add(t, prefix+"controller", isOwn)
		reference := *meta.NewControllerRef(owner, core.SchemeGroupVersion.WithKind("ConfigMap"))
		child := objects.add(t, prefix+"child", !isOwn, reference)
		for _, write := range writes {
			if err := write(t.Context(), child.DeepCopy()); isOwn {
				check(t, err)
			} else {
				assertFenced(t, err)
			}
		}
		if isOwn {
			if found := objects.find(t, child.GetName()); found != nil {
				t.Errorf("the child of the shard is not deleted: %v", found)
			}
			continue
		}
		objects.assertUnchanged(t, child)
	}
	assertRequests(t, namespace, map[string][]string{
		"mine-child": {"get", "update", "get", "patch", "get", "delete"}, "foreign-child": {"get", "get", "get"},
	})
}

// testNamedGets reads objects by name, and a subresource of them.
func testNamedGets(t *testing.T, namedGets string, isExpected func(error) bool) {
	rule := fenceRule("uid")
	rule.NamedGets = namedGets
	client := must(kubernetes.NewForConfig(clientConfig(startShardSidecar(t, rule))))(t)
	namespace := newNamespace(t)
	objects := newFencedObjects(t, fencedDeployments, namespace)
	objects.add(t, "mine", true)
	objects.add(t, "foreign", false)
	deployments := client.AppsV1().Deployments(namespace)
	for what, get := range map[string]func(string) error{
		"object": func(name string) error {
			_, err := deployments.Get(t.Context(), name, meta.GetOptions{})
			return err
		},
		"scale": func(name string) error {
			_, err := deployments.GetScale(t.Context(), name, meta.GetOptions{})
			return err
		},
	} {
		check(t, get("mine"))
		if err := get("foreign"); !isExpected(err) {
			t.Errorf("a get of the %s outside of the shard returns %v", what, err)
		}
		if err := get("missing"); !apierrors.IsNotFound(err) {
			t.Errorf("a get of the %s of no object returns %v", what, err)
		}
	}
}
