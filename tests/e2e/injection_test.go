package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/process"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// This file creates the pods of manager/inject/src/testdata at a real API server, which calls the manager's webhook for
// their sidecars.

const (
	injectionTestdata = "../../manager/inject/src/testdata"
	enableProxy       = "ctrlmesh.kusionstack.io/enable-proxy"
	// injectedNamespace is the namespace in the files.
	injectedNamespace = "demo"
)

const operatorShardingConfig = `
kind: ShardingConfig
metadata: {name: operator-a}
spec:
  selector: {matchLabels: {app: operator}}
  controller: {leaderElectionName: operator}
  limits: [{relateResources: [{apiGroups: [""], resources: [configmaps]}], selector: {matchLabels: {shard: a}}}]
`

// injectedCase has the fields of a file in manager/inject/src/testdata that matter here.
type injectedCase struct {
	Flags  []string
	Rules  []map[string]any
	Native *bool
	// ServiceAddresses are set in cases whose Service has other addresses than this cluster's.
	ServiceAddresses []string
	Pod              map[string]any
}

func TestCreatedPodsAreInjected(t *testing.T) {
	t.Parallel()
	address := must(process.FreeAddress())(t)
	_, port, err := net.SplitHostPort(address)
	check(t, err)
	m := newMesh(t, "--webhook-bind-address=127.0.0.1", "--webhook-port="+port, "--proxy-image=ctrlmesh-proxy:1", "--init-image=ctrlmesh-init:1")
	createLabelledNamespace(t, m.controlPlane, injectedNamespace, nil)
	m.apply(t, injectedNamespace, operatorShardingConfig)
	manager := m.startManager(t, "manager-0")
	key := m.waitPublicKey(t)
	installWebhooks(t, m, "https://"+address)
	eventually(t, "the webhook is called", func() error {
		_, err := dryRunPod(t, m.dynamic, injectedNamespace, map[string]any{
			"metadata": map[string]any{"name": "nobody", "labels": map[string]any{enableProxy: "true"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "a", "image": "a"}}},
		})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "selects this pod") {
			return fmt.Errorf("a pod that nothing selects: %v", err)
		}
		return nil
	})
	t.Run("pods_become_what_their_files_say", func(t *testing.T) { testInjectedPodsMatchFiles(t, m, key) })
	t.Run("unsupported_pod_is_refused", func(t *testing.T) {
		_, err := dryRunPod(t, m.dynamic, injectedNamespace, map[string]any{
			"metadata": map[string]any{"name": "host", "labels": map[string]any{"app": "operator", enableProxy: "true"}},
			"spec":     map[string]any{"hostNetwork": true, "containers": []any{map[string]any{"name": "a", "image": "a"}}},
		})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "remove hostNetwork") {
			t.Errorf("a pod with hostNetwork: %v", err)
		}
	})
	t.Run("other_pods_are_created_without_manager", func(t *testing.T) {
		check(t, manager.Stop())
		pod := map[string]any{
			"metadata": map[string]any{"name": "other", "labels": map[string]any{"app": "operator"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "a", "image": "a"}}},
		}
		_, err := dryRunPod(t, m.dynamic, injectedNamespace, pod)
		check(t, err)
		pod["metadata"].(map[string]any)["labels"].(map[string]any)[enableProxy] = "true"
		if _, err := dryRunPod(t, m.dynamic, injectedNamespace, pod); !apierrors.IsInternalError(err) {
			t.Errorf("a pod that asks for a sidecar: %v", err)
		}
	})
}

func testInjectedPodsMatchFiles(t *testing.T, m *mesh, key string) {
	for _, file := range injectedFiles(t) {
		var of injectedCase
		check(t, yaml.Unmarshal(must(os.ReadFile(file))(t), &of))
		ofThisManager := of.Rules == nil && of.Native == nil && of.ServiceAddresses == nil &&
			(of.Flags == nil || reflect.DeepEqual(of.Flags, []string{"--init-image=ctrlmesh-init:1"}))
		if !ofThisManager || isOfLaterReleases(file) {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			made, err := dryRunPod(t, m.dynamic, injectedNamespace, of.Pod)
			check(t, err)
			check(t, checkSubset(expectedPod(t, file, strings.NewReplacer("ed25519:AAAA", key)), made.Object, ""))
		})
	}
}

// TestInjectedPodsAreAccepted creates the pods of all files as they are after injection, in a cluster without injection.
func TestInjectedPodsAreAccepted(t *testing.T) {
	t.Parallel()
	client := must(dynamic.NewForConfig(shared.cluster.AdminConfig()))(t)
	plain, restricted := uniqueName("plain"), uniqueName("restricted")
	createLabelledNamespace(t, shared.controlPlane, plain, nil)
	createLabelledNamespace(t, shared.controlPlane, restricted, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	for _, file := range injectedFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := dryRunPod(t, client, plain, expectedPod(t, file, strings.NewReplacer()))
			if isOfLaterReleases(file) {
				if err == nil || !strings.Contains(err.Error(), "unknown field") {
					t.Errorf("fields that no release knows: %v", err)
				}
				return
			}
			check(t, err)
		})
	}
	for name, allowed := range map[string]bool{"32-restricted": true, "29-iptables": false} {
		_, err := dryRunPod(t, client, restricted, expectedPod(t, injectionTestdata+"/"+name+".yaml", strings.NewReplacer()))
		if allowed != (err == nil) {
			t.Errorf("%s in a restricted namespace: %v", name, err)
		}
	}
}

func injectedFiles(t *testing.T) []string {
	found := []string{}
	for _, file := range filesIn(t, injectionTestdata) {
		if !strings.HasSuffix(file, ".after.yaml") {
			found = append(found, file)
		}
	}
	return found
}

func isOfLaterReleases(file string) bool {
	return strings.HasSuffix(file, "fields-of-later-releases.yaml")
}

// expectedPod returns the pod in the file beside an input file.
func expectedPod(t *testing.T, file string, replacer *strings.Replacer) map[string]any {
	t.Helper()
	text := must(os.ReadFile(strings.TrimSuffix(file, ".yaml") + ".after.yaml"))(t)
	pod := map[string]any{}
	check(t, yaml.Unmarshal([]byte(replacer.Replace(string(text))), &pod))
	return pod
}

// dryRunPod returns the pod as the API server would create it, or the error.
func dryRunPod(t *testing.T, client dynamic.Interface, namespace string, pod map[string]any) (*unstructured.Unstructured, error) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{}}
	text := must(json.Marshal(pod))(t)
	check(t, json.Unmarshal(text, &object.Object))
	object.SetAPIVersion("v1")
	object.SetKind("Pod")
	object.SetNamespace(namespace)
	// The ServiceAccount admission plugin sets this before webhooks are called; it is off here, because nobody creates
	// the accounts.
	if _, ok, _ := unstructured.NestedString(object.Object, "spec", "serviceAccountName"); !ok {
		check(t, unstructured.SetNestedField(object.Object, "default", "spec", "serviceAccountName"))
	}
	pods := client.Resource(core.SchemeGroupVersion.WithResource("pods")).Namespace(namespace)
	return pods.Create(t.Context(), object, meta.CreateOptions{DryRun: []string{meta.DryRunAll}, FieldValidation: "Strict"})
}

func createLabelledNamespace(t *testing.T, plane controlPlane, name string, labels map[string]string) {
	t.Helper()
	namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}
	_, err := plane.client.CoreV1().Namespaces().Create(t.Context(), namespace, meta.CreateOptions{})
	check(t, err)
}

// checkSubset returns an error for the first difference from `want`. `got` may have more fields, because the API server
// sets defaults.
func checkSubset(want, got any, path string) error {
	switch want := want.(type) {
	case map[string]any:
		fields, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %v, want %v", path, got, want)
		}
		for field, value := range want {
			if err := checkSubset(value, fields[field], path+"."+field); err != nil {
				return err
			}
		}
	case []any:
		items, ok := got.([]any)
		if !ok || len(items) != len(want) {
			return fmt.Errorf("%s is %v, want %v", path, got, want)
		}
		for i := range want {
			if err := checkSubset(want[i], items[i], fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	default:
		if fmt.Sprint(want) != fmt.Sprint(got) {
			return fmt.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	return nil
}
