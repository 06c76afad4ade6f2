package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	authentication "k8s.io/api/authentication/v1"
)

// Group H of the catalogue: upgrades, identity, discovery. Streams to containers (H99) are in node_test.go, the lock
// (H106) is in lock_test.go.

var upgradeCases = []catalogueCase{
	{"H97_watch_over_websocket", testWatchOverWebSocket},
	{"H98_upgrade_of_a_list_is_a_list", func(t *testing.T, env *testEnv) {
		socket, response, err := env.proxied.Upgrade(t.Context(), getRequest(env.configMapsPath("")))
		check(t, err)
		if socket != nil {
			t.Fatal("the list was upgraded to a tunnel")
		}
		assertRefusedOrNarrowed(t, response)
		for _, upgrade := range []string{"h2c", "SPDY/3.1", "TLS/1.3", "websocket, h2c"} {
			request := rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: " + upgrade, "HTTP2-Settings: AAMAAABkAAQAAP__"}}
			assertRefusedOrNarrowed(t, must(env.proxied.Do(t.Context(), request))(t))
		}
	}},
	{"H99_streams_to_containers", testStreamsToContainers},
	{"H100_connection_header_names_credentials", testConnectionNamesCredentials},
	{"H101_impersonation_is_unchanged_and_in_order", func(t *testing.T, env *testEnv) {
		request := selfSubjectReview("Impersonate-User: jane", "Impersonate-Group: z", "Impersonate-Group: a", "Impersonate-Group: m",
			"Impersonate-Uid: 42", "Impersonate-Extra-Scopes: view", "Impersonate-Extra-Scopes: edit", "Impersonate-Extra-acme.com%2fproject: p")
		response := env.assertSameAsDirectExcept(t, request, "creationTimestamp")
		var review authentication.SelfSubjectReview
		check(t, json.Unmarshal(response.Body, &review))
		user := review.Status.UserInfo
		if user.Username != "jane" || !slices.Equal(user.Groups[:3], []string{"z", "a", "m"}) || user.UID != "42" || len(user.Extra["scopes"]) != 2 {
			t.Errorf("the API server saw %+v", user)
		}
	}},
	{"H102_ambiguous_framing_is_400", func(t *testing.T, env *testEnv) {
		for _, raw := range ambiguousFraming(env.configMapsPath("")) {
			expectRefused(t, env.proxied, raw)
		}
	}},
	{"H103_discovery_and_late_definitions", testDiscovery},
	{"H104_access_reviews_are_unchanged", testAccessReviews},
	{"H105_one_kind_in_two_groups_or_versions", func(t *testing.T, env *testEnv) {
		path := "/apis/e2e.ctrlmesh.dev/v1beta1/namespaces/" + env.namespace + "/widgets"
		env.assertMatchesDirect(t, getRequest(path), path+"?labelSelector=shard%3Da")
		assertNarrowed(t, env.get(t, path))
		createEvents(t, env.namespace)
		for _, prefix := range []string{"/api/v1", "/apis/events.k8s.io/v1"} {
			path := prefix + "/namespaces/" + env.namespace + "/events"
			env.assertMatchesDirect(t, getRequest(path), path+"?labelSelector=shard%3Da")
			assertNarrowed(t, env.get(t, path))
			env.readWatch(t, path+"?watch=1&timeoutSeconds=1")
		}
	}},
	{"H106_lock_has_one_name_outside_and_one_inside", testLockNames},
}

func testAccessReviews(t *testing.T, env *testEnv) {
	review := func(resource, body string) rawhttp.Request {
		return rawhttp.Request{
			Method: http.MethodPost, Path: "/apis/authorization.k8s.io/v1/" + resource,
			Headers: []string{"Content-Type: application/json"}, Body: []byte(body),
		}
	}
	env.assertSameAsDirectExcept(t, review("selfsubjectaccessreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview",
		"spec":{"resourceAttributes":{"verb":"list","resource":"configmaps"}}}`), "")
	// The API server returns rules in random order, so only the sorted bytes can be compared.
	rules := review("selfsubjectrulesreviews", `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`)
	want, got := must(env.direct.Do(t.Context(), rules))(t), must(env.proxied.Do(t.Context(), rules))(t)
	slices.Sort(want.Body)
	slices.Sort(got.Body)
	if got.Status != http.StatusCreated || !bytes.Equal(want.Body, got.Body) {
		t.Errorf("status %d, %d bytes, want %d", got.Status, len(got.Body), len(want.Body))
	}
}

// selfSubjectReview asks the API server for the user of the request.
func selfSubjectReview(headers ...string) rawhttp.Request {
	return rawhttp.Request{
		Method: http.MethodPost, Path: "/apis/authentication.k8s.io/v1/selfsubjectreviews",
		Headers: append([]string{"Content-Type: application/json"}, headers...),
		Body:    []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`),
	}
}

// assertSameAsDirectExcept asserts the status and JSON of a direct request, except for one timestamp in the metadata.
func (env *testEnv) assertSameAsDirectExcept(t *testing.T, request rawhttp.Request, field string) *rawhttp.Response {
	t.Helper()
	want, got := must(env.direct.Do(t.Context(), request))(t), must(env.proxied.Do(t.Context(), request))(t)
	bodies := [2]map[string]any{}
	for i, response := range []*rawhttp.Response{want, got} {
		check(t, json.Unmarshal(response.Body, &bodies[i]))
		if metadata, ok := bodies[i]["metadata"].(map[string]any); ok {
			delete(metadata, field)
			delete(metadata, "managedFields")
		}
	}
	if got.Status != want.Status || !reflect.DeepEqual(bodies[0], bodies[1]) {
		t.Fatalf("%s: status %d: %s\nwant %d: %s", request.Path, got.Status, got.Body, want.Status, want.Body)
	}
	return got
}

// testWatchOverWebSocket: a tunnel, a plain stream and a refusal are all fine, as long as S is in force.
func testWatchOverWebSocket(t *testing.T, env *testEnv) {
	for _, path := range []string{
		env.configMapsPath("watch=1"), env.configMapsPath("watch=1&labelSelector="), "/api/v1/watch/namespaces/" + env.namespace + "/configmaps",
	} {
		socket, response, err := env.proxied.Upgrade(t.Context(), getRequest(path+querySeparator(path)+"timeoutSeconds=2"))
		check(t, err)
		if socket == nil {
			assertRefusedOrNarrowed(t, response)
			continue
		}
		for _, want := range []string{"mine-x", "mine-y"} {
			message := must(socket.Message())(t)
			if bytes.Contains(message, []byte("foreign")) || !bytes.Contains(message, []byte(want)) {
				t.Errorf("%s: message %s", path, message)
			}
		}
		if message, err := socket.Message(); err == nil {
			t.Errorf("%s: unexpected message %s", path, message)
		}
		socket.Close()
	}
}

func querySeparator(path string) string {
	if bytes.ContainsRune([]byte(path), '?') {
		return "&"
	}
	return "?"
}

// testConnectionNamesCredentials: a proxy removes headers that `Connection` names. If it removed the identity that the
// client asks for, the request would get the sidecar's own.
func testConnectionNamesCredentials(t *testing.T, env *testEnv) {
	token := must(shared.cluster.ServiceAccountToken(t.Context(), env.namespace, "nobody"))(t)
	for _, headers := range [][]string{
		{"Connection: Impersonate-User", "Impersonate-User: nobody"},
		{"Connection: close, impersonate-user", "Impersonate-User: nobody"},
		{"Connection: close", "Connection: Impersonate-User", "Impersonate-User: nobody"},
		{"Connection: Impersonate-Group", "Impersonate-User: admin", "Impersonate-Group: nobodies"},
		{"Connection: Authorization", "Authorization: Bearer " + token},
		{"Connection: close,Authorization ,x", "Authorization: Bearer " + token},
		{"Connection: keep-alive", "Connection: AUTHORIZATION", "Authorization: Bearer " + token},
	} {
		response := must(env.proxied.Do(t.Context(), rawhttp.Request{Path: "/api/v1/namespaces/kube-system/secrets", Headers: headers}))(t)
		if response.Status != http.StatusBadRequest && response.Status != http.StatusForbidden {
			t.Errorf("%q: status %d: %.200s", headers, response.Status, response.Body)
		}
	}
	// A client must not use the API server's trust in front proxies either, or hide its identity.
	for _, headers := range [][]string{{"X-Remote-User: system:admin", "X-Remote-Group: system:masters", "Authorization: Bearer " + token}, {"Authorization: "}, {"Authorization: Bearer"}, {"Authorization: Basic Og=="}} {
		request := selfSubjectReview(headers...)
		want, got := must(env.direct.Do(t.Context(), request))(t), must(env.proxied.Do(t.Context(), request))(t)
		if got.Status < 400 && bytes.Contains(got.Body, []byte("system:masters")) && !bytes.Contains(want.Body, []byte("system:masters")) {
			t.Errorf("%q became %s", headers, got.Body)
		}
	}
}

func testDiscovery(t *testing.T, env *testEnv) {
	aggregated := "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	for _, path := range []string{"/api", "/apis"} {
		first := env.assertSameAsDirect(t, rawhttp.Request{Path: path, Headers: []string{aggregated}})
		tag := first.Header.Get("ETag")
		second := env.assertSameAsDirect(t, rawhttp.Request{Path: path, Headers: []string{aggregated, "If-None-Match: " + tag}})
		if tag == "" || second.Status != http.StatusNotModified {
			t.Errorf("%s: tag %q, then status %d", path, tag, second.Status)
		}
	}
	for _, path := range []string{"/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1", "/openapi/v3/apis/e2e.ctrlmesh.dev/v1"} {
		env.assertSameAsDirect(t, getRequest(path))
		env.assertSameAsDirect(t, rawhttp.Request{Path: path, Headers: []string{"Accept-Encoding: gzip"}})
	}
	// This kind is created after the sidecar started; its rule names the group.
	check(t, createDefinition(t.Context(), shared.cluster.AdminConfig(), "late.ctrlmesh.dev", "gadgets", "Gadget"))
	path := "/apis/late.ctrlmesh.dev/v1/namespaces/" + env.namespace + "/gadgets"
	createGadgets(t, env.namespace)
	env.assertMatchesDirect(t, getRequest(path), path+"?labelSelector=shard%3Da")
	assertNarrowed(t, env.get(t, path))
}
