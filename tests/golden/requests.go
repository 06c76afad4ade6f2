package main

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
)

type requestInfo struct {
	Method        string   `json:"method"`
	Target        string   `json:"target"`
	Error         bool     `json:"error,omitempty"`
	IsResource    bool     `json:"isResource,omitempty"`
	Verb          string   `json:"verb,omitempty"`
	Prefix        string   `json:"prefix,omitempty"`
	Group         string   `json:"group,omitempty"`
	Version       string   `json:"version,omitempty"`
	Namespace     string   `json:"namespace,omitempty"`
	Resource      string   `json:"resource,omitempty"`
	Subresource   string   `json:"subresource,omitempty"`
	Name          string   `json:"name,omitempty"`
	Parts         []string `json:"parts,omitempty"`
	LabelSelector string   `json:"labelSelector,omitempty"`
	FieldSelector string   `json:"fieldSelector,omitempty"`
}

// resolver has the prefixes of the API server (pkg/server.NewRequestInfoResolver).
var resolver = request.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

func resolve(method, target string) requestInfo {
	out := requestInfo{Method: method, Target: target}
	// As net/http parses a request line; a URL that it refuses never reaches the resolver.
	parsed, err := url.ParseRequestURI(target)
	if err != nil {
		out.Error = true
		return out
	}
	info, err := resolver.NewRequestInfo(&http.Request{Method: method, URL: parsed})
	if err != nil {
		out.Error = true
		return out
	}
	out.IsResource, out.Verb = info.IsResourceRequest, info.Verb
	out.Prefix, out.Group, out.Version = info.APIPrefix, info.APIGroup, info.APIVersion
	out.Namespace, out.Resource, out.Subresource, out.Name = info.Namespace, info.Resource, info.Subresource, info.Name
	out.Parts, out.LabelSelector, out.FieldSelector = info.Parts, info.LabelSelector, info.FieldSelector
	return out
}

func requestInfos() []requestInfo {
	var out []requestInfo
	add := func(method string, targets ...string) {
		for _, target := range targets {
			out = append(out, resolve(method, target))
		}
	}
	paths := requestPaths()
	add("GET", paths.all...)
	for _, method := range []string{"HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE", "get"} {
		add(method, paths.all[:60]...)
	}
	in := newInputs(2)
	for _, path := range []string{"/api/v1/pods", "/api/v1/namespaces/n1/configmaps/c1", "/api/v1/watch/pods", "/healthz"} {
		for _, query := range requestQueries().all {
			in.add(path + "?" + query)
		}
	}
	add("GET", in.all...)
	for _, query := range requestQueries().all[:80] {
		add("DELETE", "/apis/apps/v1/namespaces/n1/deployments?"+query)
	}
	return out
}

// requestPaths returns upstream's own test paths, group B of the catalogue, combinations, and mutations of all of them.
func requestPaths() *inputs {
	in := newInputs(1,
		"/", "/api", "/apis", "/api/", "/api/v1", "/api/v1/", "/apis/g", "/apis/g/v", "/apis/g/v/", "/version", "/healthz/ping",
		"/api/v1/namespaces", "/api/v1/namespaces/n1", "/api/v1/namespaces/n1/pods", "/api/v1/namespaces/n1/pods/p",
		"/api/v1/namespaces/n1/pods/p/log", "/api/v1/namespaces/n1/pods/p/exec/a/b", "/api/v1/pods", "/api/v1/nodes/n",
		"/api/v1/nodes/n/proxy/pods", "/api/v1/namespaces/n1/services/s/proxy/api/v1/pods",
		"/api/v1/namespaces/n1/status", "/api/v1/namespaces/n1/finalize", "/api/v1/namespaces/n1/status/x",
		"/api/v1/namespaces/status", "/api/v1/namespaces/status/status", "/api/v1/namespaces//status", "/api/v1/namespaces/n1/Status",
		"/api/v1/watch", "/api/v1/watch/", "/api/v1/watch/pods", "/api/v1/watch/namespaces", "/api/v1/watch/namespaces/n1",
		"/api/v1/watch/namespaces/n1/configmaps/c1", "/api/v1/watch/namespaces/n1/status", "/api/v1/watch/watch/pods",
		"/api/v1/proxy", "/api/v1/proxy/pods", "/api/v1/proxy/nodes/n", "/api/v1/proxy/nodes/n/a/b",
		"/api/v1/proxy/namespaces/n1/services/s/x", "/apis/g/v/watch/pods", "/apis/g/v/watch", "/apis/g/v/proxy/nodes/n/x",
		"/apis/apps/v1/namespaces/n1/deployments/d/scale", "/apis/apps/v1/deployments", "/apis/apps/v1",
		"/api/v1/configmaps/", "/api/v1/configmaps/c1/", "/api/v1/namespaces//configmaps", "/api/v1/namespaces/n1%2Fconfigmaps",
		"/api/v1/namespaces/n1%2fconfigmaps%2Fc1", "/api/v1/%63onfigmaps", "//api/v1/configmaps", "/api/v1//x", "/api//v1/x",
		"/api/v1/./configmaps", "/api/v1/../configmaps", "/api/v1/configmaps;x=1", "/API/v1/configmaps", "/apI/v1/configmaps",
		"/%61pi/v1/pods", "/api%2Fv1%2Fpods", "%2Fapi/v1/pods", "/api/v1/pods%2F", "/api/v1/pods%2f%2f", "/api/v1/%2Fpods",
		"/api/v1/pods/%", "/api/v1/pods/%4", "/api/v1/pods/%zz", "/api/v1/pods/%00", "/api/v1/pods/a%ffb", "/api/v1/pods/a+b",
		"/api/v1/pods/a%20b", "/api/v1/pods/a b", "/api/v1/pods/%C3%A4", "/api/v1/pods/\u00e4", "/api/v1/pods/\x7f", "/api/v1/pods/\x01",
		"/api/v1/pods/%25", "/api/v1/pods/%2525", "/api/v1/pods/..", "/api/v1/pods/%2e%2e", "/api/v1/pods/a:b", "/api/v1/pods/\"{}|^`",
		"/debug/pprof/profile", "/openapi/v3", "/apis/g/v/namespaces", "/apis/g/v/namespaces/n1", "/apis//v/pods", "/apis/g//pods", "///", "*",
	)
	in.combine(
		[]string{"/api/v1", "/apis/g/v", "/apis/g"},
		[]string{"", "/watch", "/proxy", "//"},
		[]string{"", "/namespaces/n1", "/namespaces/", "/namespaces"},
		[]string{"", "/pods", "/status", "/"},
		[]string{"", "/p", "/p/log", "/p/proxy/x/y"},
	)
	in.mutate(600, []string{"/", "//", "%2F", "%", "%2f", "a", ".", "..", ";", "namespaces", "watch", "/proxy", "status", "api", "%61", "%ff", "\x02"})
	// A request target begins with a slash, or is a single star.
	in.all = slices.DeleteFunc(in.all, func(path string) bool { return path != "*" && !strings.HasPrefix(path, "/") })
	return in
}

// requestQueries returns group A of the catalogue, and queries that decide verb and name.
func requestQueries() *inputs {
	in := newInputs(3, queryInputs()[:70]...)
	in.add(
		"watch", "watch=", "watch=yes", "watch=T", "watch=0", "watch=00", "watch=false", "watch=FALSE", "watch=fAlse",
		"watch=fal%C5%BFe", "watch=fal%C5%BFe&limit=x", "watch=FAL%C5%BFE", "watch=0&watch=1", "watch=1&watch=0", "Watch=1",
		"wat%63h=1", "watch=1;", "watch=%zz&watch=1", "watch=+false", "watch=1&limit=x", "watch=0&limit=x", "watch=false&limit=",
		"limit=x", "limit=", "limit=5", "limit=+5", "limit=-5", "limit=9223372036854775808", "limit=1_0", "limit=0x1", "limit=5&limit=x",
		"timeoutSeconds=x", "timeoutSeconds=5s", "timeoutSeconds=30", "resourceVersion=x", "allowWatchBookmarks=x", "continue=%zz",
		"sendInitialEvents=true&watch=1", "resourceVersionMatch=nonsense", "shardSelector=nonsense",
	)
	in.combine(
		[]string{"", "watch=1&", "limit=x&", "limit=5&", "labelSelector=a%3D1&", "labelSelector=a%3D%3D%3D&", "fieldSelector=&"},
		[]string{"fieldSelector="},
		[]string{
			"metadata.name%3Dx", "metadata.name=x", "metadata.name%3D%3Dx", "metadata.name!%3Dx", "metadata.name%3D", "metadata.name",
			"a%3Db,metadata.name%3Dx", "metadata.name%3Dx,metadata.name%3Dy", "metadata.name%3D..", "metadata.name%3D.", "metadata.name%3Da%2Fb",
			"metadata.name%3Da%2525", "metadata.name%3Dx%5C,y", "metadata.name%3Dx%5C", "metadata.namespace%3Dn", "metadata.name+%3Dx", "%FF",
		},
	)
	in.mutate(150, []string{"&", "=", "%3D", ";", "%", "+", "watch=1", "labelSelector=", "fieldSelector=metadata.name=z", ",", "x"})
	return in
}
