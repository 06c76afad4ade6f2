package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

// Group C of the catalogue: verbs, and objects by name.

var catalogueC = []catalogueCase{
	{"C28_delete_collection_spares_other_shards", deleteCollection},
	{"C30_delete_options_are_kept", deleteOptions},
	{"C32_delete_of_all_namespaces_is_405", func(t *testing.T, v *view) {
		v.asUpstream(t, rawhttp.Request{Method: http.MethodDelete, Path: "/api/v1/configmaps"})
		// Only lists and watches may leave the namespace empty: a hop would make it the name of one.
		refused := must(v.through.Do(t.Context(), rawhttp.Request{Method: http.MethodDelete, Path: "/api/v1/namespaces//configmaps"}))(t)
		check(t, statusIs(refused, http.StatusBadRequest))
		intact(t, v)
	}},
	{"C33_selector_on_a_named_object_is_ignored", func(t *testing.T, v *view) {
		for _, query := range []string{"?labelSelector=shard%3Dzzz", "?labelSelector=a%3D%3D%3D", "?fieldSelector=metadata.name%3Dz"} {
			sameBytes(t, v, v.configMaps("")+"/mine-x"+query)
			sameBytes(t, v, v.configMaps("")+"/foreign-x"+query)
		}
		v.asUpstream(t, rawhttp.Request{Method: http.MethodDelete, Path: v.configMaps("") + "/mine-x?labelSelector=shard%3Dzzz&dryRun=All"})
		intact(t, v)
	}},
	{"C34_named_get_outside_the_shard_passes", func(t *testing.T, v *view) {
		response := v.asUpstream(t, get(v.configMaps("")+"/foreign-x"))
		if response.Status != http.StatusOK {
			t.Errorf("status %d", response.Status)
		}
	}},
	{"C38_writes_to_a_collection_are_no_lists", writesToCollection},
	{"C39_head_of_a_collection_is_405", func(t *testing.T, v *view) {
		for _, path := range []string{v.configMaps(""), "/api/v1/configmaps", v.configMaps("watch=1")} {
			v.asUpstream(t, rawhttp.Request{Method: http.MethodHead, Path: path})
		}
	}},
}

// names of the ConfigMaps of a namespace, sorted, as the API server has them.
func names(t *testing.T, namespace string) []string {
	t.Helper()
	list := must(shared.client.CoreV1().ConfigMaps(namespace).List(t.Context(), meta.ListOptions{}))(t)
	found := []string{}
	for _, item := range list.Items {
		found = append(found, item.Name)
	}
	return found
}

// intact demands that nothing of the seeded namespaces is gone.
func intact(t *testing.T, v *view) {
	t.Helper()
	for _, namespace := range []string{v.namespace, v.other} {
		if found := names(t, namespace); len(found) != len(seedNames) {
			t.Fatalf("objects are gone, left are %v", found)
		}
	}
}

var foreignNames = []string{"foreign-none", "foreign-x", "foreign-y"}

func deleteCollection(t *testing.T, v *view) {
	for _, query := range []string{
		"", "?labelSelector=", "?labelSelector=app", "?labelSelector=&labelSelector=shard%3Db", "?fieldSelector=metadata.name!%3Dz",
	} {
		namespace := newNamespace(t)
		seed(t, namespace)
		path := "/api/v1/namespaces/" + namespace + "/configmaps" + query
		narrowed(t, must(v.through.Do(t.Context(), rawhttp.Request{Method: http.MethodDelete, Path: path}))(t))
		if left := names(t, namespace); !slices.Equal(left, foreignNames) {
			t.Errorf("%s: left are %v", path, left)
		}
	}
	// A selector that asks for another shard deletes nothing.
	path := v.configMaps("labelSelector=shard%3Db")
	isolated(t, must(v.through.Do(t.Context(), rawhttp.Request{Method: http.MethodDelete, Path: path}))(t))
	intact(t, v)
}

func deleteOptions(t *testing.T, v *view) {
	options := &meta.DeleteOptions{DryRun: []string{meta.DryRunAll}}
	options.SetGroupVersionKind(meta.SchemeGroupVersion.WithKind("DeleteOptions"))
	asJSON := must(json.Marshal(options))(t)
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	options.SetGroupVersionKind(meta.SchemeGroupVersion.WithKind("DeleteOptions"))
	asProtobuf := must(runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), options))(t)
	for _, request := range []rawhttp.Request{
		{Path: v.configMaps("dryRun=All")},
		{Path: v.configMaps(""), Headers: []string{"Content-Type: application/json"}, Body: asJSON},
		{Path: v.configMaps(""), Headers: []string{"Content-Type: " + info.MediaType}, Body: asProtobuf},
		{Path: v.configMaps("dryRun=All"), Headers: []string{"Content-Type: application/json"}, Body: asJSON},
	} {
		request.Method = http.MethodDelete
		response := must(v.through.Do(t.Context(), request))(t)
		narrowed(t, response)
		var list core.ConfigMapList
		check(t, json.Unmarshal(response.Body, &list))
		if len(list.Items) != 2 {
			t.Errorf("%d objects in the answer, want the shard's 2", len(list.Items))
		}
		intact(t, v)
	}
}

func writesToCollection(t *testing.T, v *view) {
	path := v.configMaps("labelSelector=app%3Dx")
	object := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"foreign-x"}}`)
	body := []string{"Content-Type: application/json"}
	for _, request := range []rawhttp.Request{
		{Method: http.MethodPost, Path: path, Headers: body, Body: object}, // 409: it exists
		{Method: http.MethodPut, Path: path, Headers: body, Body: object},
		{Method: http.MethodPatch, Path: path, Headers: []string{"Content-Type: application/merge-patch+json"}, Body: object},
		{Method: http.MethodPatch, Path: v.configMaps("watch=1"), Headers: []string{"Content-Type: application/apply-patch+yaml"}, Body: object},
	} {
		response := v.asUpstream(t, request)
		if response.Status < 400 {
			t.Errorf("%s: status %d: %s", request.Method, response.Status, response.Body)
		}
		_, event := v.arrived(t, request)
		if event.RequestURI != request.Path {
			t.Errorf("%s: upstream got %q of %q", request.Method, event.RequestURI, request.Path)
		}
	}
}
