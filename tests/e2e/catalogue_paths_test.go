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

var pathCases = []catalogueCase{
	{"B16_trailing_slash_keeps_the_class", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("")+"/"), env.configMapsPath("labelSelector=shard%3Da"))
		assertPassesUnchanged(t, env, env.configMapsPath("")+"/mine-x/")
		assertPassesUnchanged(t, env, env.configMapsPath("")+"/foreign-x/") // by name: not a list
	}},
	{"B17_empty_namespace_segment", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest("/api/v1/namespaces//configmaps"), "/api/v1/namespaces//configmaps?labelSelector=shard%3Da")
		env.assertMatchesDirect(t, getRequest("/apis/e2e.ctrlmesh.dev/v1/namespaces//widgets"), "/apis/e2e.ctrlmesh.dev/v1/widgets?labelSelector=shard%3Da")
		for path, sent := range map[string]string{
			"/api/v1/namespaces//configmaps":                                       "/api/v1/configmaps?labelSelector=shard%20in%20%28a%29",
			"/apis/e2e.ctrlmesh.dev/v1/watch/namespaces//widgets?timeoutSeconds=1": "/apis/e2e.ctrlmesh.dev/v1/watch/widgets?timeoutSeconds=1&labelSelector=shard%20in%20%28a%29",
		} {
			if _, event := env.doAudited(t, getRequest(path)); event.RequestURI != sent {
				t.Errorf("upstream got %q of %q, want %q", event.RequestURI, path, sent)
			}
		}
	}},
	{"B18_escaped_slash", func(t *testing.T, env *testEnv) {
		for _, path := range []string{
			"/api/v1/namespaces/" + env.namespace + "%2Fconfigmaps", "/api/v1/namespaces/" + env.namespace + "%2fconfigmaps",
			"/api/v1%2Fnamespaces/" + env.namespace + "/configmaps", "/api%2Fv1/configmaps", "%2Fapi/v1/configmaps",
		} {
			assertNarrowedOrRefused(t, env, path)
		}
	}},
	{"B19_escaped_letter", func(t *testing.T, env *testEnv) {
		for _, path := range []string{"/api/v1/%63onfigmaps", "/%61pi/v1/configmaps", "/api/v1/configm%61ps", "/apis/e2e%2Ectrlmesh.dev/v1/widgets"} {
			env.assertMatchesDirect(t, getRequest(path), path+"?labelSelector=shard%3Da")
		}
	}},
	{"B20_unclean_paths_are_never_cleaned", testUncleanPaths},
	{"B21_deprecated_watch_paths", func(t *testing.T, env *testEnv) {
		for _, path := range []string{
			"/api/v1/watch/configmaps", "/api/v1/watch/namespaces/" + env.namespace + "/configmaps",
			"/apis/e2e.ctrlmesh.dev/v1/watch/widgets",
		} {
			env.readWatch(t, path+"?timeoutSeconds=1")
		}
		one := "/api/v1/watch/namespaces/" + env.namespace + "/configmaps/"
		env.readWatch(t, one+"mine-x?timeoutSeconds=1")
		foreign := env.get(t, one+"foreign-x?timeoutSeconds=1")
		assertNoForeign(t, foreign)
		if foreign.Status != http.StatusOK {
			t.Errorf("a watch of a foreign object: status %d: %s", foreign.Status, foreign.Body)
		}
	}},
	{"B22_subresources_of_a_namespace_are_no_lists", func(t *testing.T, env *testEnv) {
		assertPassesUnchanged(t, env, "/api/v1/namespaces/"+env.namespace+"/status")
		assertPassesUnchanged(t, env, "/api/v1/namespaces/"+env.namespace+"/finalize")
	}},
	{"B23_a_namespace_itself", func(t *testing.T, env *testEnv) {
		assertPassesUnchanged(t, env, "/api/v1/namespaces/"+env.namespace)
		assertPassesUnchanged(t, env, "/api/v1/namespaces/"+env.namespace+"/")
	}},
	{"B24_watch_of_a_named_object_is_a_get", func(t *testing.T, env *testEnv) {
		assertPassesUnchanged(t, env, env.configMapsPath("")+"/mine-x?watch=1")
		assertPassesUnchanged(t, env, env.configMapsPath("")+"/foreign-x?watch=1")
	}},
	{"B25_discovery_is_untouched", func(t *testing.T, env *testEnv) {
		for _, path := range []string{
			"/", "/api", "/api/", "/api/v1", "/apis", "/apis/e2e.ctrlmesh.dev", "/apis/e2e.ctrlmesh.dev/v1", "/version", "/healthz",
			"/api/v1?labelSelector=a", "/apis/no.such.group/v1",
		} {
			assertPassesUnchanged(t, env, path)
		}
	}},
	{"B26_proxy_subresource_passes", func(t *testing.T, env *testEnv) {
		for _, path := range []string{
			"/api/v1/namespaces/" + env.namespace + "/services/s/proxy/api/v1/pods?watch=1", "/api/v1/nodes/x/proxy/pods",
			"/api/v1/namespaces/" + env.namespace + "/pods/p:80/proxy/a//b/../c",
		} {
			_, event := env.doAudited(t, getRequest(path))
			if event.RequestURI != path {
				t.Errorf("upstream got %q of %q", event.RequestURI, path)
			}
			assertPassesUnchanged(t, env, path)
		}
	}},
	{"B27_absolute_form_and_odd_hosts", testAbsoluteForm},
}

// assertPassesUnchanged asserts the same response as that of a direct request.
func assertPassesUnchanged(t *testing.T, env *testEnv, path string) {
	t.Helper()
	env.assertSameAsDirect(t, getRequest(path))
}

// assertNarrowedOrRefused is for paths that the API server may or may not read as a list: if it does, S is in force; if
// it refuses, so does the sidecar; a 400 of the sidecar is always fine.
func assertNarrowedOrRefused(t *testing.T, env *testEnv, path string) {
	t.Helper()
	want := must(env.direct.Do(t.Context(), getRequest(path)))(t)
	got := env.get(t, path)
	assertNoForeign(t, got)
	switch {
	case got.Status == http.StatusBadRequest:
	case got.Status != want.Status:
		t.Errorf("%s: status %d (%.200s), upstream %d", path, got.Status, got.Body, want.Status)
	case got.Status == http.StatusOK:
		assertNarrowed(t, got)
	}
}

// uncleanPaths are paths that a careless proxy would turn into the path of a list; NS and OTHER are namespaces. See
// path_cleaning_test.go for a proxy that does.
var uncleanPaths = []string{
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

// testUncleanPaths: unclean paths are forwarded unchanged or refused. The API server routes its own kinds and custom
// resources in different ways, so each path is tried with both.
func testUncleanPaths(t *testing.T, env *testEnv) {
	names := strings.NewReplacer("NS", env.namespace, "OTHER", env.otherNamespace)
	for _, path := range uncleanPaths {
		t.Run(path, func(t *testing.T) {
			t.Parallel() // some are watches, which last a second
			for _, path := range []string{names.Replace(path), widgetsVariant(names.Replace(path))} {
				separator := "?"
				if strings.Contains(path, "?") {
					separator = "&"
				}
				assertSameAsDirectOrRefused(t, env, path)
				assertSameAsDirectOrRefused(t, env, path+separator+"watch=1&timeoutSeconds=1&resourceVersion=0")
			}
		})
	}
	t.Run("fragments_are_ignored_or_refused", func(t *testing.T) { testFragments(t, env) })
}

// widgetsVariant turns a path of ConfigMaps into one of Widgets.
func widgetsVariant(path string) string {
	return strings.NewReplacer("/api/v1", "/apis/e2e.ctrlmesh.dev/v1", "configmaps", "widgets", "/api/", "/apis/", "/API/v1", "/APIS/e2e.ctrlmesh.dev/v1").Replace(path)
}

// testFragments: a request target has no fragment (RFC 9110, section 4.1). The API server reads `#` as an ordinary
// character. A proxy that removes the fragment must match the request that the API server then receives.
func testFragments(t *testing.T, env *testEnv) {
	for _, path := range []string{
		env.configMapsPath("") + "#x", env.configMapsPath("") + "#/mine-x", "/api/v1/configmaps#?watch=1&timeoutSeconds=1",
		env.configMapsPath("labelSelector=app%3Dx#&labelSelector=app"), "/api/v1/#/configmaps",
	} {
		for _, path := range []string{path, widgetsVariant(path)} {
			without, _, _ := strings.Cut(path, "#")
			var response *rawhttp.Response
			same := false
			// Other writes move the resource version between the two requests.
			for range 20 {
				response = env.get(t, path)
				assertNoForeign(t, response)
				if same = response.Status != http.StatusOK || bytes.Equal(response.Body, env.get(t, without).Body); same {
					break
				}
			}
			if !same {
				t.Errorf("%s gets neither an error nor the response to %s: %.200s", path, without, response.Body)
			}
		}
	}
}

func assertSameAsDirectOrRefused(t *testing.T, env *testEnv, path string) {
	t.Helper()
	want := must(env.direct.Do(t.Context(), getRequest(path)))(t)
	got, err := env.proxied.Do(t.Context(), getRequest(path))
	if errors.Is(err, rawhttp.ErrClosed) {
		return
	}
	check(t, err)
	assertNoForeign(t, got)
	if got.Status == http.StatusBadRequest {
		return
	}
	if got.Status != want.Status || got.Header.Get("Location") != want.Header.Get("Location") {
		t.Errorf("%q: status %d (%.200s), upstream %d (%.200s)", path, got.Status, got.Body, want.Status, want.Body)
	}
}

// testAbsoluteForm: the path alone decides the kind of request, and the request goes to the API server whatever host
// the target or the Host header names.
func testAbsoluteForm(t *testing.T, env *testEnv) {
	path := env.configMapsPath("labelSelector=app%3Dx")
	want := env.configMapsPath("labelSelector=app%3Dx,shard%3Da")
	for _, host := range []string{"other.example", "other.example:8080", "[::1]:5443", "127.0.0.1:1", "user:password@other.example", "LOCALHOST"} {
		response := env.get(t, "http://"+host+path)
		assertRefusedOrNarrowed(t, response)
	}
	for _, host := range []string{"other.example", "[::1]", "[::1]:5443", "[fe80::1%25eth0]:1", "a.b:1", ""} {
		response := env.get(t, path, "Host: "+host)
		assertRefusedOrNarrowed(t, response)
		if response.Status == http.StatusOK {
			env.assertMatchesDirect(t, rawhttp.Request{Path: path, Headers: []string{"Host: " + host}}, want)
		}
	}
	for _, target := range []string{
		"https://other.example" + path, "ftp://other.example" + path, "other.example:443", "*", "http:/" + path, "http:" + path,
		strings.TrimPrefix(path, "/"),
	} {
		response, err := env.proxied.Do(t.Context(), getRequest(target))
		if err != nil {
			continue // closed without a response: nothing was forwarded
		}
		assertNoForeign(t, response)
		if response.Status == http.StatusOK && !bytes.Contains(response.Body, []byte("mine")) {
			t.Errorf("%q gets an unexpected response: %.100s", target, response.Body)
		}
	}
}
