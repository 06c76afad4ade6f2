package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// This file creates the objects that tests read. Names of objects in shard `a` begin with `mine`, all others with
// `foreign`: a response shows no foreign object if it does not contain that word, in every encoding.

var widgetResource = schema.GroupVersionResource{Group: "e2e.ctrlmesh.dev", Version: "v1", Resource: "widgets"}

// seededObjects maps names to labels.
var seededObjects = map[string]map[string]string{
	"mine-x":       {"shard": "a", "app": "x"},
	"mine-y":       {"shard": "a", "app": "y"},
	"foreign-x":    {"shard": "b", "app": "x"},
	"foreign-y":    {"shard": "b", "app": "y"},
	"foreign-none": {"app": "x"},
}

// seedNamespace creates ConfigMaps and Widgets.
func seedNamespace(t *testing.T, namespace string) {
	t.Helper()
	dynamic := must(dynamic.NewForConfig(shared.cluster.AdminConfig()))(t)
	for name, labels := range seededObjects {
		createConfigMap(t, namespace, name, labels, map[string]string{"key": "value"})
		_, err := dynamic.Resource(widgetResource).Namespace(namespace).Create(t.Context(), newWidget(name, labels), meta.CreateOptions{})
		check(t, err)
	}
}

func createConfigMap(t *testing.T, namespace, name string, labels, data map[string]string) *core.ConfigMap {
	t.Helper()
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}, Data: data}
	return must(shared.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, meta.CreateOptions{}))(t)
}

func newWidget(name string, labels map[string]string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"step": ""}}}
	object.SetAPIVersion("e2e.ctrlmesh.dev/v1")
	object.SetKind("Widget")
	object.SetName(name)
	object.SetLabels(labels)
	return object
}

// createDefinition creates a CRD with a status and two versions and waits until it is served.
func createDefinition(ctx context.Context, config *rest.Config, group, plural, kind string) error {
	client, err := extensionsclient.NewForConfig(config)
	if err != nil {
		return err
	}
	open := true
	anything := &extensions.CustomResourceValidation{OpenAPIV3Schema: &extensions.JSONSchemaProps{
		Type: "object", XPreserveUnknownFields: &open,
	}}
	version := func(name string, storage bool) extensions.CustomResourceDefinitionVersion {
		return extensions.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: storage, Schema: anything,
			Subresources: &extensions.CustomResourceSubresources{Status: &extensions.CustomResourceSubresourceStatus{}},
		}
	}
	definition := &extensions.CustomResourceDefinition{
		ObjectMeta: meta.ObjectMeta{Name: plural + "." + group},
		Spec: extensions.CustomResourceDefinitionSpec{
			Group: group, Scope: extensions.NamespaceScoped,
			Names:    extensions.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Versions: []extensions.CustomResourceDefinitionVersion{version("v1", true), version("v1beta1", false)},
		},
	}
	if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, definition, meta.CreateOptions{}); err != nil {
		return err
	}
	dynamic, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	resource := schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
	for {
		_, err := dynamic.Resource(resource).List(ctx, meta.ListOptions{})
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s.%s is not served: %w", plural, group, err)
		}
	}
}

// createEvents creates an Event in each shard.
func createEvents(t *testing.T, namespace string) {
	t.Helper()
	for name, labels := range seededObjects {
		event := &core.Event{
			ObjectMeta:     meta.ObjectMeta{Name: name, Labels: labels},
			InvolvedObject: core.ObjectReference{Kind: "ConfigMap", Namespace: namespace, Name: name},
		}
		_, err := shared.client.CoreV1().Events(namespace).Create(t.Context(), event, meta.CreateOptions{})
		check(t, err)
	}
}

// createGadgets creates an object in each shard, of a kind that did not exist when the tests began.
func createGadgets(t *testing.T, namespace string) {
	t.Helper()
	dynamic := must(dynamic.NewForConfig(shared.cluster.AdminConfig()))(t)
	resource := schema.GroupVersionResource{Group: "late.ctrlmesh.dev", Version: "v1", Resource: "gadgets"}
	for name, labels := range seededObjects {
		gadget := newWidget(name, labels)
		gadget.SetAPIVersion("late.ctrlmesh.dev/v1")
		gadget.SetKind("Gadget")
		_, err := dynamic.Resource(resource).Namespace(namespace).Create(t.Context(), gadget, meta.CreateOptions{})
		check(t, err)
	}
}

// residentMiB returns the resident memory of a process (VmRSS).
func residentMiB(t *testing.T, pid int) int {
	t.Helper()
	status := must(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for line := range strings.Lines(string(status)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib >> 10
		}
	}
	t.Fatalf("no VmRSS in %s", status)
	return 0
}
