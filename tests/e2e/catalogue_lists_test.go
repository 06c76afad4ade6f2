package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	core "k8s.io/api/core/v1"
)

// Group E of the catalogue: lists.

var listCases = []catalogueCase{
	{"E49_existence_check_skips_foreign_pages", func(t *testing.T, env *testEnv) {
		// By name the three foreign objects come first.
		list := listPage(t, env, env.configMapsPath("limit=1"))
		if len(list.Items) != 1 || list.Items[0].Name != "mine-x" {
			t.Errorf("first page: %v", list)
		}
	}},
	{"E50_continue_is_kept", func(t *testing.T, env *testEnv) {
		version := listPage(t, env, env.configMapsPath("limit=1")).ResourceVersion
		exact := "&resourceVersion=" + version + "&resourceVersionMatch=Exact"
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("limit=1"+exact)), env.configMapsPath("limit=1&labelSelector=shard%3Da"+exact))
	}},
	{"E51_every_page_is_narrowed", testEveryPage},
	{"E52_other_rule_between_pages_is_expired", testRuleChangeBetweenPages},
	{"E53_remaining_item_count_is_upstreams", func(t *testing.T, env *testEnv) {
		// With a selector the API server omits the count, which would reveal the number of objects in other shards.
		if count := listPage(t, env, env.configMapsPath("limit=1")).RemainingItemCount; count != nil {
			t.Errorf("%d items remain", *count)
		}
	}},
	{"E54_resource_version_is_kept", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("resourceVersion=0")), env.configMapsPath("resourceVersion=0&labelSelector=shard%3Da"))
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("")), env.configMapsPath("labelSelector=shard%3Da"))
	}},
	{"E55_nothing_left_is_an_empty_list", func(t *testing.T, env *testEnv) {
		assertEmptyList(t, env.get(t, env.configMapsPath("fieldSelector=metadata.name%3Dforeign-x")))
		namespace := newNamespace(t)
		createConfigMap(t, namespace, "foreign", map[string]string{"shard": "b"}, nil)
		assertEmptyList(t, env.get(t, "/api/v1/namespaces/"+namespace+"/configmaps"))
	}},
	{"E56_custom_resources_are_narrowed_too", func(t *testing.T, env *testEnv) {
		path := "/apis/e2e.ctrlmesh.dev/v1/namespaces/" + env.namespace + "/widgets"
		env.assertMatchesDirect(t, getRequest(path), path+"?labelSelector=shard%3Da")
		assertNarrowed(t, env.get(t, path))
	}},
	{"E57_resource_that_ignores_selectors_is_as_upstream", func(t *testing.T, env *testEnv) {
		assertSameStatus(t, env, "/api/v1/componentstatuses")
	}},
	{"E58_a_status_passes", func(t *testing.T, env *testEnv) {
		token := must(shared.cluster.ServiceAccountToken(t.Context(), env.namespace, "nobody"))(t)
		env.assertSameAsDirect(t, rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{"Authorization: Bearer " + token}})
		env.assertSameAsDirect(t, rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{"Authorization: Bearer wrong"}})
		assertPassesUnchanged(t, env, "/api/v1/nosuchthings")
		assertPassesUnchanged(t, env, "/apis/e2e.ctrlmesh.dev/v1/nosuchthings")
	}},
	{"E59_large_objects_and_lists", testLargeObjects},
	{"E60_upstream_cut_in_mid_list_is_a_broken_transfer", testTruncatedList},
	{"E62_resource_version_semantics", testResourceVersions},
}

func listPage(t *testing.T, env *testEnv, path string) core.ConfigMapList {
	t.Helper()
	response := env.get(t, path)
	assertNarrowed(t, response)
	var list core.ConfigMapList
	check(t, json.Unmarshal(response.Body, &list))
	return list
}

// testEveryPage uses only the continue token on later pages: it holds a key and a resource version, but no selector.
func testEveryPage(t *testing.T, env *testEnv) {
	namespace := newNamespace(t)
	want := []string{}
	for i := range 12 {
		createConfigMap(t, namespace, fmt.Sprintf("foreign-%02d", i), map[string]string{"shard": "b"}, nil)
		createConfigMap(t, namespace, fmt.Sprintf("mine-%02d", i), map[string]string{"shard": "a"}, nil)
		createConfigMap(t, namespace, fmt.Sprintf("z-foreign-%02d", i), nil, nil)
		want = append(want, fmt.Sprintf("mine-%02d", i))
	}
	path := "/api/v1/namespaces/" + namespace + "/configmaps?limit=5"
	got := []string{}
	for next := ""; ; {
		list := listPage(t, env, path+next)
		for _, item := range list.Items {
			got = append(got, item.Name)
		}
		if list.Continue == "" {
			break
		}
		next = "&continue=" + url.QueryEscape(list.Continue)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages contain %v", got)
	}
}

func testLargeObjects(t *testing.T, env *testEnv) {
	namespace := newNamespace(t)
	big := strings.Repeat("0123456789abcdef", 900<<10/16)
	for i := range 8 {
		createConfigMap(t, namespace, fmt.Sprintf("mine-%d", i), map[string]string{"shard": "a"}, map[string]string{"big": big})
		createConfigMap(t, namespace, fmt.Sprintf("foreign-%d", i), map[string]string{"shard": "b"}, map[string]string{"big": big})
	}
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		headers := []string{"Accept: " + accept}
		env.assertMatchesDirect(t, rawhttp.Request{Path: path, Headers: headers}, path+"?labelSelector=shard%3Da")
	}
	if size := len(env.get(t, path).Body); size < 7<<20 {
		t.Errorf("the list has only %d bytes", size)
	}
}

func testResourceVersions(t *testing.T, env *testEnv) {
	version := listPage(t, env, env.configMapsPath("")).ResourceVersion
	for _, query := range []string{
		"resourceVersion=0", "resourceVersion=" + version, "resourceVersion=" + version + "&resourceVersionMatch=NotOlderThan",
		"resourceVersion=" + version + "&resourceVersionMatch=Exact", "resourceVersionMatch=Exact", "resourceVersion=x",
	} {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath(query)), env.configMapsPath(query+"&labelSelector=shard%3Da"))
	}
	// The server waits for a version in the future and then returns 504.
	future := env.get(t, env.configMapsPath("resourceVersion=999999999&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"))
	if future.Status != http.StatusGatewayTimeout || !bytes.Contains(future.Body, []byte(`"reason":"Timeout"`)) {
		t.Errorf("status %d: %s", future.Status, future.Body)
	}
}

// checkStatus returns an error with the body if the status code is unexpected.
func checkStatus(response *rawhttp.Response, want int) error {
	if response.Status != want {
		return fmt.Errorf("status %d, want %d: %.300s", response.Status, want, response.Body)
	}
	return nil
}

func assertSameStatus(t *testing.T, env *testEnv, path string) {
	t.Helper()
	want := must(env.direct.Do(t.Context(), getRequest(path)))(t)
	check(t, checkStatus(env.get(t, path), want.Status))
}
