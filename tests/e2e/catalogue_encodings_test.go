package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
)

// Group G of the catalogue: encodings. A narrowed response must have the bytes of a direct response to the same
// selector, so the sidecar must not re-encode anything.

const (
	protobufType = "application/vnd.kubernetes.protobuf"
	tableJSON    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	partialList  = ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	// kubectlTable is the Accept header of kubectl get.
	kubectlTable = tableJSON + ",application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)

var encodingCases = []catalogueCase{
	{"G87_pretty_json", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("pretty=1")), env.configMapsPath("pretty=1&labelSelector=shard%3Da"))
		env.assertEncodedList(t, "*/*", "User-Agent: curl/8.0")
		var pretty, plain any
		check(t, json.Unmarshal(env.get(t, env.configMapsPath("pretty=1")).Body, &pretty))
		check(t, json.Unmarshal(env.get(t, env.configMapsPath("")).Body, &plain))
		if !reflect.DeepEqual(pretty, plain) {
			t.Error("pretty and plain JSON differ")
		}
		text := env.readWatch(t, env.configMapsPath("watch=1&timeoutSeconds=1&pretty=1"), "User-Agent: curl/8.0")
		if lines := strings.Count(text, "\n"); lines != 2 {
			t.Errorf("%d lines for 2 events: %s", lines, text)
		}
	}},
	{"G88_protobuf_list", func(t *testing.T, env *testEnv) {
		response := env.assertEncodedList(t, protobufType)
		if !bytes.HasPrefix(response.Body, []byte("k8s\x00")) {
			t.Errorf("not protobuf: %q", response.Body)
		}
	}},
	{"G89_protobuf_watch", func(t *testing.T, env *testEnv) {
		response := env.assertSameWatch(t, protobufType+";stream=watch", env.configMapsPath("watch=1&timeoutSeconds=1"))
		if !strings.HasPrefix(response.Header.Get("Content-Type"), protobufType) {
			t.Errorf("content type %s", response.Header.Get("Content-Type"))
		}
	}},
	{"G90_protobuf_of_a_custom_resource", func(t *testing.T, env *testEnv) {
		path := env.widgetsPath("")
		refused := env.assertSameAsDirect(t, rawhttp.Request{Path: path, Headers: []string{"Accept: " + protobufType}})
		check(t, checkStatus(refused, http.StatusNotAcceptable))
		env.assertMatchesDirect(t, rawhttp.Request{Path: path, Headers: []string{"Accept: " + protobufType + ",application/json"}}, env.widgetsPath("labelSelector=shard%3Da"))
	}},
	{"G91_partial_metadata_of_a_custom_resource_in_protobuf", func(t *testing.T, env *testEnv) {
		accept := rawhttp.Request{Path: env.widgetsPath(""), Headers: []string{"Accept: " + protobufType + partialList}}
		env.assertMatchesDirect(t, accept, env.widgetsPath("labelSelector=shard%3Da"))
		assertNarrowed(t, must(env.proxied.Do(t.Context(), accept))(t))
	}},
	{"G92_cbor", func(t *testing.T, env *testEnv) {
		request := rawhttp.Request{Path: env.widgetsPath(""), Headers: []string{"Accept: application/cbor"}}
		env.assertMatchesDirect(t, request, env.widgetsPath("labelSelector=shard%3Da"))
		response := must(env.proxied.Do(t.Context(), request))(t)
		assertNarrowed(t, response)
		if !bytes.HasPrefix(response.Body, []byte("\xd9\xd9\xf7")) {
			t.Errorf("not CBOR: %q", response.Body)
		}
		watched := env.readWatch(t, env.widgetsPath("watch=1&timeoutSeconds=1"), "Accept: application/cbor")
		if strings.HasPrefix(watched, "{") {
			t.Errorf("not a CBOR sequence: %q", watched)
		}
	}},
	{"G93_yaml", func(t *testing.T, env *testEnv) {
		env.assertEncodedList(t, "application/yaml")
		refused := env.assertSameAsDirect(t, rawhttp.Request{Path: env.configMapsPath("watch=1"), Headers: []string{"Accept: application/yaml"}})
		check(t, checkStatus(refused, http.StatusNotAcceptable))
	}},
	{"G94_gzip", testGzipList},
	{"G95_table_without_objects", func(t *testing.T, env *testEnv) {
		request := rawhttp.Request{Path: env.configMapsPath("includeObject=None"), Headers: []string{"Accept: " + tableJSON}}
		env.assertMatchesDirect(t, request, env.configMapsPath("includeObject=None&labelSelector=shard%3Da"))
		assertNarrowed(t, must(env.proxied.Do(t.Context(), request))(t))
	}},
	{"G96_table_with_objects", func(t *testing.T, env *testEnv) {
		for _, accept := range []string{tableJSON, kubectlTable, "application/json;as=Table;v=v1;g=meta.k8s.io;q=0.9,*/*;q=0.1"} {
			env.assertEncodedList(t, accept)
			request := rawhttp.Request{Path: env.configMapsPath("includeObject=Object"), Headers: []string{"Accept: " + accept}}
			env.assertMatchesDirect(t, request, env.configMapsPath("includeObject=Object&labelSelector=shard%3Da"))
		}
	}},
}

func (env *testEnv) widgetsPath(query string) string {
	path := "/apis/e2e.ctrlmesh.dev/v1/namespaces/" + env.namespace + "/widgets"
	if query != "" {
		path += "?" + query
	}
	return path
}

// assertEncodedList lists ConfigMaps in an encoding and asserts the shard's objects, in upstream's bytes.
func (env *testEnv) assertEncodedList(t *testing.T, accept string, headers ...string) *rawhttp.Response {
	t.Helper()
	request := rawhttp.Request{Path: env.configMapsPath(""), Headers: append(headers, "Accept: "+accept)}
	env.assertMatchesDirect(t, request, env.configMapsPath("labelSelector=shard%3Da"))
	response := must(env.proxied.Do(t.Context(), request))(t)
	assertNarrowed(t, response)
	return response
}

// assertSameWatch compares two watches that end by timeout.
func (env *testEnv) assertSameWatch(t *testing.T, accept, path string) *rawhttp.Response {
	t.Helper()
	request := rawhttp.Request{Path: path, Headers: []string{"Accept: " + accept}}
	env.assertMatchesDirect(t, request, path+"&labelSelector=shard%3Da")
	response := must(env.proxied.Do(t.Context(), request))(t)
	assertNarrowed(t, response)
	return response
}

// testGzipList: the API server compresses responses above 128 KiB, but never watches.
func testGzipList(t *testing.T, env *testEnv) {
	namespace := newNamespace(t)
	data := map[string]string{"d": strings.Repeat("compressible ", 20<<10)}
	createConfigMap(t, namespace, "mine", map[string]string{"shard": "a"}, data)
	createConfigMap(t, namespace, "foreign", nil, data)
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	for _, encoding := range []string{"gzip", "gzip, deflate, br", "br", "identity", "gzip;q=0"} {
		request := rawhttp.Request{Path: path, Headers: []string{"Accept-Encoding: " + encoding}}
		env.assertMatchesDirect(t, request, path+"?labelSelector=shard%3Da")
		assertNarrowed(t, must(env.proxied.Do(t.Context(), request))(t))
	}
	compressed := env.get(t, path, "Accept-Encoding: gzip")
	if compressed.Header.Get("Content-Encoding") != "gzip" || len(compressed.Body) > 64<<10 {
		t.Errorf("the response is not compressed: %v, %d bytes", compressed.Header, len(compressed.Body))
	}
	if stream := env.get(t, env.configMapsPath("watch=1&timeoutSeconds=1"), "Accept-Encoding: gzip"); stream.Header.Get("Content-Encoding") != "" {
		t.Errorf("the watch is compressed: %v", stream.Header)
	}
}
