package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	core "k8s.io/api/core/v1"
)

// This file applies deploy/crd and the samples of manager/planner/tests/fixtures to a real API server.

var (
	definitions    = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	resourceOfKind = map[string]string{
		"ShardingConfig": "shardingconfigs", "CircuitBreaker": "circuitbreakers",
		"FaultInjection": "faultinjections", "ManagerState": "managerstates",
	}
)

const fixtures = "../../manager/planner/tests/fixtures"

func TestCRDsAcceptAndRefuseSamples(t *testing.T) {
	client := must(dynamic.NewForConfig(shared.cluster.AdminConfig()))(t)
	for _, file := range filesIn(t, "../../deploy/crd") {
		t.Run(filepath.Base(file), func(t *testing.T) { testDefinition(t, client, readObjects(t, file)[0]) })
	}
	if t.Failed() {
		t.FailNow()
	}
	for _, file := range filesIn(t, fixtures+"/accepted") {
		t.Run("accepts_"+filepath.Base(file), func(t *testing.T) {
			for _, object := range readObjects(t, file) {
				assertStoredUnchanged(t, client, object)
			}
		})
	}
	for _, file := range filesIn(t, fixtures+"/refused-by-rules") {
		t.Run("accepts_"+filepath.Base(file), func(t *testing.T) { assertStoredUnchanged(t, client, readObjects(t, file)[0]) })
	}
	for _, file := range filesIn(t, fixtures+"/refused") {
		t.Run("refuses_"+filepath.Base(file), func(t *testing.T) {
			for _, line := range strings.Split(string(must(os.ReadFile(file))(t)), "\n") {
				if says, ok := strings.CutPrefix(line, "# server: "); ok {
					assertRefused(t, client, readObjects(t, file)[0], says)
				}
			}
		})
	}
	t.Run("each_rule_refuses_its_field", func(t *testing.T) { testRules(t, client) })
	t.Run("lock_can_be_added_but_not_changed", func(t *testing.T) { testLockIsImmutable(t, client) })
	t.Run("key_needs_an_earlier_lock", func(t *testing.T) { testKeyNeedsLock(t, client) })
	t.Run("defaults", func(t *testing.T) { testDefaults(t, client) })
	t.Run("columns", func(t *testing.T) { testColumns(t, client) })
}

func filesIn(t *testing.T, folder string) []string {
	t.Helper()
	files := must(filepath.Glob(folder + "/*.yaml"))(t)
	if len(files) == 0 {
		t.Fatalf("%s is empty", folder)
	}
	return files
}

func readObjects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	objects := []*unstructured.Unstructured{}
	for _, text := range strings.Split(string(must(os.ReadFile(file))(t)), "\n---\n") {
		object := &unstructured.Unstructured{}
		check(t, yaml.Unmarshal([]byte(text), &object.Object))
		objects = append(objects, object)
	}
	return objects
}

// testDefinition installs a definition and waits until it is served, without a complaint about its schema.
func testDefinition(t *testing.T, client dynamic.Interface, definition *unstructured.Unstructured) {
	_, err := client.Resource(definitions).Create(background(), definition, meta.CreateOptions{FieldValidation: "Strict"})
	check(t, err)
	eventually(t, definition.GetName()+" is established", func() error {
		got, err := client.Resource(definitions).Get(background(), definition.GetName(), meta.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
		isEstablished := false
		for _, condition := range conditions {
			c := condition.(map[string]any)
			switch c["type"] {
			case "Established":
				isEstablished = c["status"] == "True"
			case "NonStructuralSchema":
				t.Fatalf("the schema is not structural: %v", c["message"])
			}
		}
		if !isEstablished {
			return fmt.Errorf("the conditions are %v", conditions)
		}
		return nil
	})
}

// resourceClient returns the client for an object's kind in its namespace, which is created if it does not exist.
func resourceClient(t *testing.T, client dynamic.Interface, object *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	resource := client.Resource(schema.GroupVersionResource{Group: "ctrlmesh.kusionstack.io", Version: "v1alpha1", Resource: resourceOfKind[object.GetKind()]})
	name := object.GetNamespace()
	if name == "" {
		return resource
	}
	namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}
	if _, err := shared.client.CoreV1().Namespaces().Create(background(), namespace, meta.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return resource.Namespace(name)
}

func createObject(t *testing.T, client dynamic.Interface, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	t.Helper()
	var got *unstructured.Unstructured
	var err error
	// A definition is established a moment before it is served.
	eventually(t, object.GetKind()+" is served", func() error {
		got, err = resourceClient(t, client, object).Create(background(), object.DeepCopy(), meta.CreateOptions{FieldValidation: "Strict"})
		var status apierrors.APIStatus
		if errors.As(err, &status) && apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
	return got, err
}

// assertStoredUnchanged creates an object, asserts that every written field comes back, and deletes it.
func assertStoredUnchanged(t *testing.T, client dynamic.Interface, object *unstructured.Unstructured) {
	t.Helper()
	got, err := createObject(t, client, object)
	if err != nil {
		t.Fatalf("%s: %v", object.GetName(), err)
	}
	defer deleteObject(t, client, object)
	if status, ok := object.Object["status"]; ok {
		got.Object["status"] = status
		if got, err = resourceClient(t, client, object).UpdateStatus(background(), got, meta.UpdateOptions{FieldValidation: "Strict"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"spec", "status"} {
		if lost := missingField(object.Object[part], got.Object[part], part); lost != "" {
			t.Errorf("%s: %s is %v, which is not what was written", object.GetName(), lost, got.Object[part])
		}
	}
}

func deleteObject(t *testing.T, client dynamic.Interface, object *unstructured.Unstructured) {
	t.Helper()
	check(t, resourceClient(t, client, object).Delete(background(), object.GetName(), meta.DeleteOptions{}))
}

// missingField returns the path of a written field that did not come back. A field without a value does not count.
func missingField(written, got any, path string) string {
	switch written := written.(type) {
	case nil:
		return ""
	case map[string]any:
		fields, ok := got.(map[string]any)
		if !ok {
			return path
		}
		for name, value := range written {
			if lost := missingField(value, fields[name], path+"."+name); lost != "" {
				return lost
			}
		}
		return ""
	case []any:
		items, ok := got.([]any)
		if !ok || len(items) != len(written) {
			return path
		}
		for i, value := range written {
			if lost := missingField(value, items[i], fmt.Sprintf("%s[%d]", path, i)); lost != "" {
				return lost
			}
		}
		return ""
	default:
		if fmt.Sprint(written) != fmt.Sprint(got) {
			return path
		}
		return ""
	}
}

func assertRefused(t *testing.T, client dynamic.Interface, object *unstructured.Unstructured, wantMessages ...string) {
	t.Helper()
	_, err := createObject(t, client, object)
	if err == nil {
		deleteObject(t, client, object)
		t.Errorf("%s is accepted", object.GetName())
		return
	}
	for _, wantMessages := range wantMessages {
		if !strings.Contains(err.Error(), wantMessages) {
			t.Errorf("the refusal is %q, want %q in it", err, wantMessages)
		}
	}
}

// testRules breaks one rule after another. The planner's tests read the same file: both must refuse the same field.
func testRules(t *testing.T, client dynamic.Interface) {
	cases := []struct {
		Of, Path, Says string
		Set            map[string]any
	}{}
	check(t, json.Unmarshal(must(os.ReadFile(fixtures+"/rules.json"))(t), &cases))
	for _, c := range cases {
		object := readObjects(t, filepath.Join(fixtures, "accepted", c.Of))[0]
		for pointer, value := range c.Set {
			setField(t, object.Object, strings.Split(pointer, "/")[1:], value)
		}
		assertRefused(t, client, object, c.Path, c.Says)
	}
}

func setField(t *testing.T, node any, path []string, value any) {
	t.Helper()
	switch node := node.(type) {
	case map[string]any:
		switch {
		case len(path) > 1:
			setField(t, node[path[0]], path[1:], value)
		case value == nil:
			delete(node, path[0])
		default:
			node[path[0]] = value
		}
	case []any:
		index := 0
		check(t, json.Unmarshal([]byte(path[0]), &index))
		setField(t, node[index], path[1:], value)
	default:
		t.Fatalf("no %v in %v", path, node)
	}
}

// testLockIsImmutable changes the lock of a shard, which is refused: its pods elect their leader by the existing lock.
func testLockIsImmutable(t *testing.T, client dynamic.Interface) {
	object := readObjects(t, fixtures+"/accepted/concepts.yaml")[0]
	object.SetName("keeps-lock")
	controller := object.Object["spec"].(map[string]any)["controller"]
	setField(t, object.Object, []string{"spec", "controller"}, nil)
	_, err := createObject(t, client, object)
	check(t, err)
	defer deleteObject(t, client, object)
	update := func(controller any) error {
		// A merge patch has no resource version that can be outdated, and null removes a field.
		patch := must(json.Marshal(map[string]any{"spec": map[string]any{"controller": controller}}))(t)
		_, err := resourceClient(t, client, object).Patch(background(), object.GetName(), types.MergePatchType, patch, meta.PatchOptions{})
		return err
	}
	check(t, update(controller))
	for _, changed := range []any{map[string]any{"leaderElectionName": "another"}, nil} {
		if err := update(changed); err == nil || !strings.Contains(err.Error(), "spec.controller: Invalid value") ||
			!strings.Contains(err.Error(), "scale the controller to zero") {
			t.Errorf("controller %v: %v", changed, err)
		}
	}
	check(t, update(controller))
}

// testKeyNeedsLock adds key and lock to a root in one edit, which is refused: running pods have no lock that a hand-over can compare.
func testKeyNeedsLock(t *testing.T, client dynamic.Interface) {
	object := readObjects(t, fixtures+"/accepted/root-sample.yaml")[0]
	object.SetName("gets-key")
	controller := object.Object["spec"].(map[string]any)["controller"]
	setField(t, object.Object, []string{"spec", "controller"}, nil)
	setField(t, object.Object, []string{"spec", "root", "canary"}, nil)
	_, err := createObject(t, client, object)
	check(t, err)
	defer deleteObject(t, client, object)
	update := func(spec map[string]any) error {
		patch := must(json.Marshal(map[string]any{"spec": spec}))(t)
		_, err := resourceClient(t, client, object).Patch(background(), object.GetName(), types.MergePatchType, patch, meta.PatchOptions{})
		return err
	}
	key := map[string]any{"key": "owner"}
	err = update(map[string]any{"controller": controller, "root": key})
	if err == nil || !strings.Contains(err.Error(), "spec.root.key: Invalid value") ||
		!strings.Contains(err.Error(), "add it in an edit of its own first") {
		t.Errorf("key and controller together: %v", err)
	}
	check(t, update(map[string]any{"controller": controller}))
	check(t, update(map[string]any{"root": key}))
	check(t, update(map[string]any{"root": map[string]any{"key": "uid"}}))
}

func testDefaults(t *testing.T, client dynamic.Interface) {
	object := readObjects(t, fixtures+"/accepted/concepts.yaml")[0]
	object.SetName("with-plugin")
	setField(t, object.Object, []string{"spec", "plugins"}, []any{map[string]any{"name": "audit", "image": "oci://a.example/audit:1"}})
	got, err := createObject(t, client, object)
	check(t, err)
	defer deleteObject(t, client, object)
	plugins, _, _ := unstructured.NestedSlice(got.Object, "spec", "plugins")
	want := map[string]any{
		"name": "audit", "image": "oci://a.example/audit:1", "pullPolicy": "IfNotPresent", "onFailure": "Closed",
		"order": int64(0), "timeoutMs": int64(10), "memoryMiB": int64(16),
	}
	if len(plugins) != 1 || fmt.Sprint(plugins[0]) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", plugins, want)
	}
}

func testColumns(t *testing.T, client dynamic.Interface) {
	object := readObjects(t, fixtures+"/accepted/concepts.yaml")[0]
	object.SetName("with-status")
	got, err := createObject(t, client, object)
	check(t, err)
	defer deleteObject(t, client, object)
	condition := func(kind, reason string) map[string]any {
		return map[string]any{
			"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": "2026-11-21T10:00:00Z",
			"observedGeneration": int64(1),
		}
	}
	conditions := []any{condition("Accepted", "Accepted"), condition("Distributed", "HandingOver")}
	got.Object["status"] = map[string]any{"observedGeneration": int64(1), "enforced": "12/12", "conditions": conditions,
		"leader": map[string]any{"podName": "operator-7", "holderIdentity": "operator-7_id", "since": "2026-11-21T10:00:00Z"}}
	if _, err := resourceClient(t, client, object).UpdateStatus(background(), got, meta.UpdateOptions{FieldValidation: "Strict"}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(runKubectl(t, shared.kubeconfig, "", "get", "shard", "with-status", "-n", object.GetNamespace()), "\n")
	if strings.Join(strings.Fields(lines[0]), " ") != "NAME LOCK ACCEPTED DISTRIBUTED ENFORCED LEADER AGE" ||
		!strings.HasPrefix(strings.Join(strings.Fields(lines[1]), " "), "with-status operator-leader True HandingOver 12/12 operator-7 ") {
		t.Errorf("got %q", lines)
	}
}
