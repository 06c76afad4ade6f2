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

var verbCases = []catalogueCase{
	{"C28_delete_collection_spares_other_shards", testDeleteCollection},
	{"C30_delete_options_are_kept", testDeleteOptions},
	{"C32_delete_of_all_namespaces_is_405", func(t *testing.T, env *testEnv) {
		env.assertSameAsDirect(t, rawhttp.Request{Method: http.MethodDelete, Path: "/api/v1/configmaps"})
		// Only lists and watches may have an empty namespace segment: a cleaning proxy would read "configmaps" as the
		// namespace's name.
		refused := must(env.proxied.Do(t.Context(), rawhttp.Request{Method: http.MethodDelete, Path: "/api/v1/namespaces//configmaps"}))(t)
		check(t, checkStatus(refused, http.StatusBadRequest))
		assertIntact(t, env)
	}},
	{"C33_selector_on_a_named_object_is_ignored", func(t *testing.T, env *testEnv) {
		for _, query := range []string{"?labelSelector=shard%3Dzzz", "?labelSelector=a%3D%3D%3D", "?fieldSelector=metadata.name%3Dz"} {
			assertPassesUnchanged(t, env, env.configMapsPath("")+"/mine-x"+query)
			assertPassesUnchanged(t, env, env.configMapsPath("")+"/foreign-x"+query)
		}
		env.assertSameAsDirect(t, rawhttp.Request{Method: http.MethodDelete, Path: env.configMapsPath("") + "/mine-x?labelSelector=shard%3Dzzz&dryRun=All"})
		assertIntact(t, env)
	}},
	{"C34_named_get_outside_the_shard_passes", func(t *testing.T, env *testEnv) {
		response := env.assertSameAsDirect(t, getRequest(env.configMapsPath("")+"/foreign-x"))
		if response.Status != http.StatusOK {
			t.Errorf("status %d", response.Status)
		}
	}},
	{"C38_writes_to_a_collection_are_no_lists", testWritesToCollection},
	{"C39_head_of_a_collection_is_405", func(t *testing.T, env *testEnv) {
		for _, path := range []string{env.configMapsPath(""), "/api/v1/configmaps", env.configMapsPath("watch=1")} {
			env.assertSameAsDirect(t, rawhttp.Request{Method: http.MethodHead, Path: path})
		}
	}},
}

// configMapNames returns the sorted names of a namespace's ConfigMaps, read from the API server.
func configMapNames(t *testing.T, namespace string) []string {
	t.Helper()
	list := must(shared.client.CoreV1().ConfigMaps(namespace).List(t.Context(), meta.ListOptions{}))(t)
	found := []string{}
	for _, item := range list.Items {
		found = append(found, item.Name)
	}
	return found
}

// assertIntact asserts that no object of the seeded namespaces was deleted.
func assertIntact(t *testing.T, env *testEnv) {
	t.Helper()
	for _, namespace := range []string{env.namespace, env.otherNamespace} {
		if found := configMapNames(t, namespace); len(found) != len(seededObjects) {
			t.Fatalf("objects were deleted, left are %v", found)
		}
	}
}

var foreignNames = []string{"foreign-none", "foreign-x", "foreign-y"}

func testDeleteCollection(t *testing.T, env *testEnv) {
	for _, query := range []string{
		"", "?labelSelector=", "?labelSelector=app", "?labelSelector=&labelSelector=shard%3Db", "?fieldSelector=metadata.name!%3Dz",
	} {
		namespace := newNamespace(t)
		seedNamespace(t, namespace)
		path := "/api/v1/namespaces/" + namespace + "/configmaps" + query
		assertNarrowed(t, must(env.proxied.Do(t.Context(), rawhttp.Request{Method: http.MethodDelete, Path: path}))(t))
		if left := configMapNames(t, namespace); !slices.Equal(left, foreignNames) {
			t.Errorf("%s: %v are left", path, left)
		}
	}
	// A selector for another shard deletes nothing.
	path := env.configMapsPath("labelSelector=shard%3Db")
	assertNoForeign(t, must(env.proxied.Do(t.Context(), rawhttp.Request{Method: http.MethodDelete, Path: path}))(t))
	assertIntact(t, env)
}

func testDeleteOptions(t *testing.T, env *testEnv) {
	options := &meta.DeleteOptions{DryRun: []string{meta.DryRunAll}}
	options.SetGroupVersionKind(meta.SchemeGroupVersion.WithKind("DeleteOptions"))
	asJSON := must(json.Marshal(options))(t)
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	options.SetGroupVersionKind(meta.SchemeGroupVersion.WithKind("DeleteOptions"))
	asProtobuf := must(runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), options))(t)
	for _, request := range []rawhttp.Request{
		{Path: env.configMapsPath("dryRun=All")},
		{Path: env.configMapsPath(""), Headers: []string{"Content-Type: application/json"}, Body: asJSON},
		{Path: env.configMapsPath(""), Headers: []string{"Content-Type: " + info.MediaType}, Body: asProtobuf},
		{Path: env.configMapsPath("dryRun=All"), Headers: []string{"Content-Type: application/json"}, Body: asJSON},
	} {
		request.Method = http.MethodDelete
		response := must(env.proxied.Do(t.Context(), request))(t)
		assertNarrowed(t, response)
		var list core.ConfigMapList
		check(t, json.Unmarshal(response.Body, &list))
		if len(list.Items) != 2 {
			t.Errorf("the response has %d objects, want the shard's 2", len(list.Items))
		}
		assertIntact(t, env)
	}
}

func testWritesToCollection(t *testing.T, env *testEnv) {
	path := env.configMapsPath("labelSelector=app%3Dx")
	object := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"foreign-x"}}`)
	body := []string{"Content-Type: application/json"}
	for _, request := range []rawhttp.Request{
		{Method: http.MethodPost, Path: path, Headers: body, Body: object}, // 409: the object exists
		{Method: http.MethodPut, Path: path, Headers: body, Body: object},
		{Method: http.MethodPatch, Path: path, Headers: []string{"Content-Type: application/merge-patch+json"}, Body: object},
		{Method: http.MethodPatch, Path: env.configMapsPath("watch=1"), Headers: []string{"Content-Type: application/apply-patch+yaml"}, Body: object},
	} {
		response := env.assertSameAsDirect(t, request)
		if response.Status < 400 {
			t.Errorf("%s: status %d: %s", request.Method, response.Status, response.Body)
		}
		_, event := env.doAudited(t, request)
		if event.RequestURI != request.Path {
			t.Errorf("%s: upstream got %q of %q", request.Method, event.RequestURI, request.Path)
		}
	}
}
