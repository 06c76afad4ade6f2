package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file checks that a sidecar without a matching entry is invisible: requests and responses pass unchanged.

// transparentPaths are requested with each of transparentHeaders; NS stands for the seeded namespace.
var transparentPaths = []string{
	"/api/v1/namespaces/NS/configmaps", "/api/v1/namespaces/NS/configmaps?limit=2", "/api/v1/namespaces/NS/configmaps?labelSelector=app+in+(x)&fieldSelector=metadata.name%3Dmine-x",
	"/api/v1/namespaces/NS/configmaps/foreign-x", "/api/v1/namespaces/NS/configmaps/nosuch",
	"/api/v1/namespaces/NS/configmaps?limit=x", "/apis/e2e.ctrlmesh.dev/v1/namespaces/NS/widgets", "/apis/e2e.ctrlmesh.dev/v1/namespaces/NS/widgets/mine-x",
	"/api/v1/namespaces/NS", "/api/v1/namespaces//configmaps",
	"/api/v1/namespaces/NS/pods/none/log", "/apis/apps/v1/namespaces/NS/deployments?pretty=1",
}

// transparentWatches last a second each.
var transparentWatches = []string{
	"/api/v1/namespaces/NS/configmaps?watch=1&timeoutSeconds=1&resourceVersion=0", "/apis/e2e.ctrlmesh.dev/v1/namespaces/NS/widgets?watch=1&timeoutSeconds=1",
}

// plainPaths are non-resource paths.
var plainPaths = []string{
	"/", "/version", "/healthz", "/readyz?verbose", "/livez/ping", "/api", "/apis", "/api/v1", "/apis/e2e.ctrlmesh.dev/v1", "/nosuch",
	"/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1", "/.well-known/openid-configuration", "/openid/v1/jwks",
}

var transparentHeaders = [][]string{
	{"Accept: application/json"}, {"Accept: application/vnd.kubernetes.protobuf"}, {"Accept: application/vnd.kubernetes.protobuf,application/json"},
	{"Accept: application/cbor"}, {"Accept: application/yaml"}, {"Accept: " + kubectlTable}, {"Accept: text/html"},
	{"Accept: application/json" + partialList}, {"Accept-Encoding: gzip"}, {"User-Agent: curl/8"}, nil,
}

func TestSidecarWithoutMatchingEntryIsTransparent(t *testing.T) {
	chain := sidecar.NewChain(1)
	for name, options := range map[string]sidecar.Options{
		"without_a_chain_directory": {WithoutChainDir: true},
		"with_an_empty_chain":       {Chain: &chain},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSidecar(t, options)
			env := &testEnv{sidecar: s, proxied: sidecarTarget(s), direct: shared.direct, namespace: newNamespace(t)}
			seedNamespace(t, env.namespace)
			testTransparentSidecar(t, env)
		})
	}
	t.Run("with_an_entry_that_does_not_match", func(t *testing.T) {
		rule := shardRule("s0", "a")
		rule.Limits[0].RelateResources = []sidecar.Resources{{APIGroups: []string{"elsewhere.example"}, Resources: []string{"*"}}}
		s := startShardSidecar(t, rule)
		env := &testEnv{sidecar: s, proxied: sidecarTarget(s), direct: shared.direct, namespace: newNamespace(t)}
		seedNamespace(t, env.namespace)
		testTransparentSidecar(t, env)
	})
}

func testTransparentSidecar(t *testing.T, env *testEnv) {
	t.Run("responses_equal_direct_ones", func(t *testing.T) {
		for _, headers := range transparentHeaders {
			for _, path := range transparentPaths {
				env.assertSameAsDirect(t, rawhttp.Request{Path: strings.ReplaceAll(path, "NS", env.namespace), Headers: headers})
			}
		}
		for _, path := range plainPaths {
			env.assertSameAsDirect(t, getRequest(path))
			env.assertSameAsDirect(t, rawhttp.Request{Path: path, Headers: []string{"Accept-Encoding: gzip"}})
			env.assertSameAsDirect(t, rawhttp.Request{Method: http.MethodHead, Path: path})
		}
	})
	t.Run("watches_equal_direct_ones", func(t *testing.T) {
		for _, headers := range transparentHeaders {
			for _, path := range transparentWatches {
				t.Run(path+fmt.Sprint(headers), func(t *testing.T) {
					t.Parallel()
					env.assertSameAsDirect(t, rawhttp.Request{Path: strings.ReplaceAll(path, "NS", env.namespace), Headers: headers})
				})
			}
		}
	})
	t.Run("responses_to_all_methods_equal_direct_ones", func(t *testing.T) {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"} {
			env.assertSameAsDirect(t, rawhttp.Request{Method: method, Path: "/api/v1/namespaces/" + env.namespace + "/configmaps/nosuch"})
		}
	})
	t.Run("requests_arrive_unchanged", func(t *testing.T) { testRequestsArriveUnchanged(t, env) })
	t.Run("large_bodies", func(t *testing.T) { testLargeBodies(t, env) })
}

// testRequestsArriveUnchanged compares what the API server received: target, user agent, identity.
func testRequestsArriveUnchanged(t *testing.T, env *testEnv) {
	token := must(shared.cluster.ServiceAccountToken(t.Context(), env.namespace, "own"))(t)
	for _, path := range []string{
		env.configMapsPath("labelSelector=%61pp%3Dx&b&&a=%zz;=1&fieldManager=x%20y"), "/nosuch/v1/x/y%2Fz?watch=1", "/apis/x.y/v1/z?a=b?c=d&e=/f", "/?" + strings.Repeat("q", 5000),
	} {
		_, event := env.doAudited(t, getRequest(path))
		if event.RequestURI != path {
			t.Errorf("upstream got %q of %q", event.RequestURI, path)
		}
		if event.User.Username != sidecarUser {
			t.Errorf("without credentials the user is %s, not the sidecar", event.User.Username)
		}
	}
	_, event := env.doAudited(t, rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{"User-Agent: my operator/v1 (x; y)", "Authorization: Bearer " + token}})
	if event.UserAgent != "my operator/v1 (x; y)" || event.User.Username != "system:serviceaccount:"+env.namespace+":own" {
		t.Errorf("the API server saw %q of %s", event.UserAgent, event.User.Username)
	}
	_, event = env.doAudited(t, rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{"Impersonate-User: jane"}})
	if event.ImpersonatedUser == nil || event.ImpersonatedUser.Username != "jane" {
		t.Errorf("impersonated: %v", event.ImpersonatedUser)
	}
	if slices.ContainsFunc(event.SourceIPs, func(ip string) bool { return ip != "127.0.0.1" }) {
		t.Errorf("source addresses %v", event.SourceIPs)
	}
}

// testLargeBodies: large bodies pass unchanged, in one piece and in chunks; upstream refuses those that are too large.
func testLargeBodies(t *testing.T, env *testEnv) {
	big := strings.Repeat("0123456789", 90<<10)
	object := func(name string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"big":%q}}`, name, big)
	}
	path, kind := "/api/v1/namespaces/"+env.namespace+"/configmaps", "Content-Type: application/json"
	whole := rawhttp.Request{Method: http.MethodPost, Path: path, Headers: []string{kind}, Body: []byte(object("whole"))}
	check(t, checkStatus(must(env.proxied.Do(t.Context(), whole))(t), http.StatusCreated))
	text := object("chunked")
	chunked := rawhttp.Request{
		Method: http.MethodPost, Path: path, Headers: []string{kind, "Transfer-Encoding: chunked"},
		Body: rawhttp.Chunked(text[:1], text[1:5000], text[5000:]),
	}
	check(t, checkStatus(must(env.proxied.Do(t.Context(), chunked))(t), http.StatusCreated))
	for _, name := range []string{"whole", "chunked"} {
		assertPassesUnchanged(t, env, path+"/"+name)
	}
	tooLarge := rawhttp.Request{Method: http.MethodPost, Path: path, Headers: []string{kind}, Body: []byte(`{"kind":"` + strings.Repeat("x", 4<<20))}
	check(t, checkStatus(must(env.proxied.Do(t.Context(), tooLarge))(t), http.StatusRequestEntityTooLarge))
}
