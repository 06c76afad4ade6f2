package e2e

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/hop"
	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	"k8s.io/client-go/tools/clientcmd/api"
)

// This file tests paths that a server in front of the API server cleans: B20 of the catalogue again, with such a proxy
// between the sidecar and the API server, and a server URL that has a path.

// escapingPaths lead out of the server URL's path once they are cleaned.
var escapingPaths = []string{
	"/../c-2/api/v1/configmaps", "/%2e%2e/c-2/api/v1/secrets", "/..%2fc-2/api/v1/secrets", `/..\c-2/api/v1/secrets`,
	"/api/v1/nodes/n/proxy/../../../../../c-2/api/v1/secrets", "/x/%2E%2E/../c-2/api",
}

func TestCleaningProxyOpensNoBypass(t *testing.T) {
	front := hop.Start(must(url.Parse(shared.cluster.URL()))(t), shared.cluster.TLSConfig())
	t.Cleanup(front.Stop)
	token := must(shared.cluster.ServiceAccountToken(t.Context(), "default", "sidecar"))(t)
	config := must(cluster.WriteKubeconfig(newDir(t), "hop", &api.Cluster{Server: front.URL()}, &api.AuthInfo{Token: token}))(t)
	chain := shardChain(t, 1, shardRule("s0", "a"))
	for name, options := range map[string]sidecar.Options{
		"with_an_entry":  {Kubeconfig: config, Chain: &chain},
		"without_a_mesh": {Kubeconfig: config, WithoutChainDir: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := startSidecar(t, options)
			env := &testEnv{sidecar: s, proxied: sidecarTarget(s), direct: shared.direct, namespace: newNamespace(t), otherNamespace: newNamespace(t)}
			seedNamespace(t, env.namespace)
			seedNamespace(t, env.otherNamespace)
			for _, http2 := range []bool{false, true} {
				env.proxied.HTTP2 = http2
				assertNothingCleaned(t, env, front, options.Chain != nil)
			}
			if options.Chain != nil {
				assertNarrowed(t, env.get(t, "/api/v1/namespaces//configmaps"))
				assertNarrowed(t, env.get(t, env.configMapsPath("")+"/"))
			}
			check(t, checkStatus(env.get(t, "/api/"), http.StatusOK))
			check(t, checkStatus(env.get(t, "/apis/"), http.StatusOK))
			assertIntact(t, env)
		})
	}
}

// assertNothingCleaned sends every unclean path; none may reach the proxy in a form that it reads differently.
func assertNothingCleaned(t *testing.T, env *testEnv, front *hop.Hop, isShard bool) {
	t.Helper()
	names := strings.NewReplacer("NS", env.namespace, "OTHER", env.otherNamespace)
	requests := []rawhttp.Request{
		{Method: http.MethodDelete, Path: "/./api/v1/namespaces/" + env.namespace + "/configmaps"},
		{Method: http.MethodDelete, Path: "/api/v1/namespaces/" + env.namespace + "//configmaps"},
		{
			Method: http.MethodPost, Path: "/./apis/coordination.k8s.io/v1/namespaces/" + env.namespace + "/leases",
			Headers: []string{"Content-Type: application/json"},
			Body:    []byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"foreign"}}`),
		},
	}
	for _, path := range append(append([]string(nil), uncleanPaths...), escapingPaths...) {
		requests = append(requests, getRequest(names.Replace(path)), getRequest(widgetsVariant(names.Replace(path))))
	}
	for _, request := range requests {
		response, err := env.proxied.Do(t.Context(), request)
		if errors.Is(err, rawhttp.ErrClosed) {
			continue
		}
		check(t, err)
		if strings.Contains(string(response.Body), hop.OtherCluster) {
			t.Errorf("%s %s left the path of the server URL", request.Method, request.Path)
		}
		if isShard {
			assertNoForeign(t, response)
		}
		if cleaned := front.CleanedRequests(); len(cleaned) > 0 {
			t.Fatalf("%s %s was forwarded as %q, status %d", request.Method, request.Path, cleaned, response.Status)
		}
	}
}
