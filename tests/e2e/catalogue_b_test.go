package e2e

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
)

// Group B of the catalogue: paths.

var catalogueB = []catalogueCase{
	{"B16_trailing_slash_keeps_the_class", func(t *testing.T, v *view) {
		v.like(t, get(v.configMaps("")+"/"), v.configMaps("labelSelector=shard%3Da"))
		sameBytes(t, v, v.configMaps("")+"/mine-x/")
		sameBytes(t, v, v.configMaps("")+"/foreign-x/") // by name: not a list
	}},
	{"B17_empty_namespace_segment", func(t *testing.T, v *view) {
		v.like(t, get("/api/v1/namespaces//configmaps"), "/api/v1/namespaces//configmaps?labelSelector=shard%3Da")
		v.like(t, get("/apis/e2e.ctrlmesh.dev/v1/namespaces//widgets"), "/apis/e2e.ctrlmesh.dev/v1/widgets?labelSelector=shard%3Da")
		for path, sent := range map[string]string{
			"/api/v1/namespaces//configmaps":                                       "/api/v1/configmaps?labelSelector=shard%20in%20%28a%29",
			"/apis/e2e.ctrlmesh.dev/v1/watch/namespaces//widgets?timeoutSeconds=1": "/apis/e2e.ctrlmesh.dev/v1/watch/widgets?timeoutSeconds=1&labelSelector=shard%20in%20%28a%29",
		} {
			if _, event := v.arrived(t, get(path)); event.RequestURI != sent {
				t.Errorf("upstream got %q of %q, want %q", event.RequestURI, path, sent)
			}
		}
	}},
	{"B18_escaped_slash", func(t *testing.T, v *view) {
		for _, path := range []string{
			"/api/v1/namespaces/" + v.namespace + "%2Fconfigmaps", "/api/v1/namespaces/" + v.namespace + "%2fconfigmaps",
			"/api/v1%2Fnamespaces/" + v.namespace + "/configmaps", "/api%2Fv1/configmaps", "%2Fapi/v1/configmaps",
		} {
			narrowedLikeDirect(t, v, path)
		}
	}},
	{"B19_escaped_letter", func(t *testing.T, v *view) {
		for _, path := range []string{"/api/v1/%63onfigmaps", "/%61pi/v1/configmaps", "/api/v1/configm%61ps", "/apis/e2e%2Ectrlmesh.dev/v1/widgets"} {
			v.like(t, get(path), path+"?labelSelector=shard%3Da")
		}
	}},
	{"B20_unclean_paths_are_never_cleaned", uncleanPaths},
	{"B21_deprecated_watch_paths", func(t *testing.T, v *view) {
		for _, path := range []string{
			"/api/v1/watch/configmaps", "/api/v1/watch/namespaces/" + v.namespace + "/configmaps",
			"/apis/e2e.ctrlmesh.dev/v1/watch/widgets",
		} {
			v.watched(t, path+"?timeoutSeconds=1")
		}
		one := "/api/v1/watch/namespaces/" + v.namespace + "/configmaps/"
		v.watched(t, one+"mine-x?timeoutSeconds=1")
		foreign := v.get(t, one+"foreign-x?timeoutSeconds=1")
		isolated(t, foreign)
		if foreign.Status != http.StatusOK {
			t.Errorf("a watch of a foreign object: status %d: %s", foreign.Status, foreign.Body)
		}
	}},
	{"B22_subresources_of_a_namespace_are_no_lists", func(t *testing.T, v *view) {
		sameBytes(t, v, "/api/v1/namespaces/"+v.namespace+"/status")
		sameBytes(t, v, "/api/v1/namespaces/"+v.namespace+"/finalize")
	}},
	{"B23_a_namespace_itself", func(t *testing.T, v *view) {
		sameBytes(t, v, "/api/v1/namespaces/"+v.namespace)
		sameBytes(t, v, "/api/v1/namespaces/"+v.namespace+"/")
	}},
	{"B24_watch_of_a_named_object_is_a_get", func(t *testing.T, v *view) {
		sameBytes(t, v, v.configMaps("")+"/mine-x?watch=1")
		sameBytes(t, v, v.configMaps("")+"/foreign-x?watch=1")
	}},
	{"B25_discovery_is_untouched", func(t *testing.T, v *view) {
		for _, path := range []string{
			"/", "/api", "/api/", "/api/v1", "/apis", "/apis/e2e.ctrlmesh.dev", "/apis/e2e.ctrlmesh.dev/v1", "/version", "/healthz",
			"/api/v1?labelSelector=a", "/apis/no.such.group/v1",
		} {
			sameBytes(t, v, path)
		}
	}},
	{"B26_proxy_subresource_passes", func(t *testing.T, v *view) {
		for _, path := range []string{
			"/api/v1/namespaces/" + v.namespace + "/services/s/proxy/api/v1/pods?watch=1", "/api/v1/nodes/x/proxy/pods",
			"/api/v1/namespaces/" + v.namespace + "/pods/p:80/proxy/a//b/../c",
		} {
			_, event := v.arrived(t, get(path))
			if event.RequestURI != path {
				t.Errorf("upstream got %q of %q", event.RequestURI, path)
			}
			sameBytes(t, v, path)
		}
	}},
	{"B27_absolute_form_and_odd_hosts", absoluteForm},
}

// sameBytes demands the answer of a direct call.
func sameBytes(t *testing.T, v *view, path string) {
	t.Helper()
	v.asUpstream(t, get(path))
}

// narrowedLikeDirect is for paths that the API server may or may not take as a list: if it does, S is in force; if it
// refuses, so do we; a 400 of ours is always fine.
func narrowedLikeDirect(t *testing.T, v *view, path string) {
	t.Helper()
	want := must(v.direct.Do(t.Context(), get(path)))(t)
	got := v.get(t, path)
	isolated(t, got)
	switch {
	case got.Status == http.StatusBadRequest:
	case got.Status != want.Status:
		t.Errorf("%s: status %d (%.200s), upstream %d", path, got.Status, got.Body, want.Status)
	case got.Status == http.StatusOK:
		narrowed(t, got)
	}
}

// unclean are paths that a careless proxy would turn into the path of a list; NS and OTHER are namespaces. See hop_test.go
// for a proxy that does.
var unclean = []string{
	"//api/v1/configmaps", "/api//v1/configmaps", "/api/v1//configmaps", "/api/v1/./configmaps", "/api/./v1/configmaps", "///api/v1/configmaps",
	"/api/v1/x/../configmaps", "/api/v1/configmaps/.", "/api/v1/configmaps/..", "/../api/v1/configmaps", "/./api/v1/configmaps",
	"/api/v1/namespaces/NS/../OTHER/configmaps", "/api/v1/namespaces/../configmaps", "/api/v1/namespaces/NS//configmaps",
	"/api/v1/%2e%2e/v1/configmaps", "/api/v1/%2E/configmaps", "/api/v1/namespaces/%2e%2e/configmaps", "/api/v1/namespaces/NS/%2e%2e/configmaps",
	"/api/v1;x=1/configmaps", "/api/v1/configmaps;x=1", "/API/v1/configmaps", "/api/V1/configmaps", "/api/v1/ConfigMaps",
	"/api/v1/configmaps%00", "/api/v1/configmaps%20", "/api/v1/configmaps%3Fwatch=1", "/api/v1/configmaps%23", "/api/v1/configmaps%", "/api/v1/configmaps%zz",
	"/api/v1\\configmaps", "/api/v1/watch//configmaps", "/api/v1/watch/watch/configmaps", "/api/v1/proxy/configmaps", "/api/v1/watch/configmaps/?timeoutSeconds=1",
	"/api/v1/configmaps//", "/api/v1/configmaps/?",
	"/api/v1/configmaps|", "/api/v1/configmaps\"", "/api/v1/<configmaps>", "/api/v1/{configmaps}", "/api/v1/configmaps^", "/api/v1/configmaps`", "/api/v1/configm\xc3\xa4ps",
	"/api/v1/configmaps\xff", "/api/v1/configmaps\x7f", "/api/v1/configmaps/%2F", "/api/v1/configmaps%2F", "/api/v1/configmaps%2F%2F", "/api/v1/namespaces/%2F/configmaps",
	"/%2e/api/v1/configmaps", "/x/..%2Fapi/v1/configmaps", "/..;/api/v1/configmaps", "/x\\..\\api/v1/configmaps", "/api%5Cv1%5Cconfigmaps",
	"/%252e/api/v1/configmaps", "/api/v1/namespaces/NS%252Fconfigmaps", "/api/v1/nodes/n/proxy/../../../configmaps",
	"/api/v1/nodes/n/proxy/..%2f..%2f../configmaps", "/api/v1/nodes/n/proxy/%252e%252e/%252e%252e/../configmaps",
	"/api/v1/namespaces/NS/configmaps%2Fmine-x", "/api/v1/namespaces/%00/configmaps", "/api/v1/namespaces/*/configmaps", "/api/v1/%2Fconfigmaps",
}

// uncleanPaths: forwarded as they are or refused. The API server has two ways to find a handler, one for its own kinds
// and one for custom resources, so each path is tried with both.
func uncleanPaths(t *testing.T, v *view) {
	names := strings.NewReplacer("NS", v.namespace, "OTHER", v.other)
	for _, path := range unclean {
		t.Run(path, func(t *testing.T) {
			t.Parallel() // some are watches, which last a second
			for _, path := range []string{names.Replace(path), ofWidgets(names.Replace(path))} {
				separator := "?"
				if strings.Contains(path, "?") {
					separator = "&"
				}
				asUpstreamOrRefused(t, v, path)
				asUpstreamOrRefused(t, v, path+separator+"watch=1&timeoutSeconds=1&resourceVersion=0")
			}
		})
	}
	t.Run("fragments", func(t *testing.T) { fragments(t, v) })
}

// ofWidgets is a path of ConfigMaps turned into one of Widgets.
func ofWidgets(path string) string {
	return strings.NewReplacer("/api/v1", "/apis/e2e.ctrlmesh.dev/v1", "configmaps", "widgets", "/api/", "/apis/", "/API/v1", "/APIS/e2e.ctrlmesh.dev/v1").Replace(path)
}

// fragments do not belong into a request (RFC 9110, section 4.1). The API server takes `#` for a letter like any other;
// a proxy that cuts the fragment off must at least see the same request as the API server then does.
func fragments(t *testing.T, v *view) {
	for _, path := range []string{
		v.configMaps("") + "#x", v.configMaps("") + "#/mine-x", "/api/v1/configmaps#?watch=1&timeoutSeconds=1",
		v.configMaps("labelSelector=app%3Dx#&labelSelector=app"), "/api/v1/#/configmaps",
	} {
		for _, path := range []string{path, ofWidgets(path)} {
			without, _, _ := strings.Cut(path, "#")
			var response *rawhttp.Response
			same := false
			// Other writes move the resource version between the two.
			for range 20 {
				response = v.get(t, path)
				isolated(t, response)
				if same = response.Status != http.StatusOK || bytes.Equal(response.Body, v.get(t, without).Body); same {
					break
				}
			}
			if !same {
				t.Errorf("%s is answered with neither an error nor the answer to %s: %.200s", path, without, response.Body)
			}
		}
	}
}

func asUpstreamOrRefused(t *testing.T, v *view, path string) {
	t.Helper()
	want := must(v.direct.Do(t.Context(), get(path)))(t)
	got, err := v.through.Do(t.Context(), get(path))
	if errors.Is(err, rawhttp.ErrClosed) {
		return
	}
	check(t, err)
	isolated(t, got)
	if got.Status == http.StatusBadRequest {
		return
	}
	if got.Status != want.Status || got.Header.Get("Location") != want.Header.Get("Location") {
		t.Errorf("%q: status %d (%.200s), upstream %d (%.200s)", path, got.Status, got.Body, want.Status, want.Body)
	}
}

// absoluteForm: the class follows from the path alone, and the request goes to the API server whatever the target or
// the Host header names.
func absoluteForm(t *testing.T, v *view) {
	path := v.configMaps("labelSelector=app%3Dx")
	want := v.configMaps("labelSelector=app%3Dx,shard%3Da")
	for _, host := range []string{"other.example", "other.example:8080", "[::1]:5443", "127.0.0.1:1", "user:password@other.example", "LOCALHOST"} {
		response := v.get(t, "http://"+host+path)
		refusedOrNarrowed(t, response)
	}
	for _, host := range []string{"other.example", "[::1]", "[::1]:5443", "[fe80::1%25eth0]:1", "a.b:1", ""} {
		response := v.get(t, path, "Host: "+host)
		refusedOrNarrowed(t, response)
		if response.Status == http.StatusOK {
			v.like(t, rawhttp.Request{Path: path, Headers: []string{"Host: " + host}}, want)
		}
	}
	for _, target := range []string{
		"https://other.example" + path, "ftp://other.example" + path, "other.example:443", "*", "http:/" + path, "http:" + path,
		strings.TrimPrefix(path, "/"),
	} {
		response, err := v.through.Do(t.Context(), get(target))
		if err != nil {
			continue // closed without an answer: nothing was forwarded
		}
		isolated(t, response)
		if response.Status == http.StatusOK && !bytes.Contains(response.Body, []byte("mine")) {
			t.Errorf("%q is answered with something else: %.100s", target, response.Body)
		}
	}
}
