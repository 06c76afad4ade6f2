// Package hop is a reverse proxy in front of an API server that cleans paths before it forwards them: it decodes them,
// takes backslashes for slashes, merges slashes and resolves dot segments, as nginx (`merge_slashes`, `proxy_pass` with
// a path) and gateways do. It serves a cluster below a path prefix, as Rancher does.
package hop

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
)

// Prefix is the path prefix of the cluster.
const Prefix = "/k8s/clusters/c-1"

// OtherCluster is the response to every path outside of Prefix.
const OtherCluster = "foreign objects of another cluster"

// Hop is a running reverse proxy.
type Hop struct {
	server *httptest.Server

	mu      sync.Mutex
	cleaned []string
}

// Start starts forwarding to the API server.
func Start(apiServer *url.URL, config *tls.Config) *Hop {
	hop := &Hop{}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = apiServer.Scheme, apiServer.Host
			r.Out.URL.Path = strings.TrimPrefix(Clean(r.In.URL.Path), Prefix)
			r.Out.URL.RawPath = ""
		},
		Transport:     &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true},
		FlushInterval: -1,
	}
	hop.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cleaned := Clean(r.URL.Path)
		if cleaned != r.URL.Path {
			hop.mu.Lock()
			hop.cleaned = append(hop.cleaned, r.Method+" "+r.RequestURI)
			hop.mu.Unlock()
		}
		if !strings.HasPrefix(cleaned, Prefix+"/") {
			_, _ = w.Write([]byte(OtherCluster))
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	return hop
}

// URL is the server URL of the cluster, for a kubeconfig.
func (h *Hop) URL() string { return h.server.URL + Prefix }

// CleanedRequests returns the requests whose path the proxy reads differently than the API server.
func (h *Hop) CleanedRequests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.cleaned...)
}

// Stop closes the proxy.
func (h *Hop) Stop() { h.server.Close() }

// Clean returns the cleaned form of a decoded path.
func Clean(decoded string) string {
	slashed := strings.ReplaceAll(decoded, `\`, "/")
	cleaned := path.Clean("/" + slashed)
	if strings.HasSuffix(slashed, "/") && cleaned != "/" {
		cleaned += "/"
	}
	return cleaned
}
