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

var catalogueE = []catalogueCase{
	{"E49_existence_check_skips_foreign_pages", func(t *testing.T, v *view) {
		// By name the three foreign objects come first.
		list := page(t, v, v.configMaps("limit=1"))
		if len(list.Items) != 1 || list.Items[0].Name != "mine-x" {
			t.Errorf("first page: %v", list)
		}
	}},
	{"E50_continue_is_kept", func(t *testing.T, v *view) {
		version := page(t, v, v.configMaps("limit=1")).ResourceVersion
		exact := "&resourceVersion=" + version + "&resourceVersionMatch=Exact"
		v.like(t, get(v.configMaps("limit=1"+exact)), v.configMaps("limit=1&labelSelector=shard%3Da"+exact))
	}},
	{"E51_every_page_is_narrowed", everyPage},
	{"E52_other_rule_between_pages_is_expired", otherRuleBetweenPages},
	{"E53_remaining_item_count_is_upstreams", func(t *testing.T, v *view) {
		// With a selector a server leaves the count out: it would tell of other shards.
		if count := page(t, v, v.configMaps("limit=1")).RemainingItemCount; count != nil {
			t.Errorf("%d items remain", *count)
		}
	}},
	{"E54_resource_version_is_kept", func(t *testing.T, v *view) {
		v.like(t, get(v.configMaps("resourceVersion=0")), v.configMaps("resourceVersion=0&labelSelector=shard%3Da"))
		v.like(t, get(v.configMaps("")), v.configMaps("labelSelector=shard%3Da"))
	}},
	{"E55_nothing_left_is_an_empty_list", func(t *testing.T, v *view) {
		empty(t, v.get(t, v.configMaps("fieldSelector=metadata.name%3Dforeign-x")))
		namespace := newNamespace(t)
		createConfigMap(t, namespace, "foreign", map[string]string{"shard": "b"}, nil)
		empty(t, v.get(t, "/api/v1/namespaces/"+namespace+"/configmaps"))
	}},
	{"E56_custom_resources_are_narrowed_too", func(t *testing.T, v *view) {
		path := "/apis/e2e.ctrlmesh.dev/v1/namespaces/" + v.namespace + "/widgets"
		v.like(t, get(path), path+"?labelSelector=shard%3Da")
		narrowed(t, v.get(t, path))
	}},
	{"E57_resource_that_ignores_selectors_is_as_upstream", func(t *testing.T, v *view) {
		sameStatus(t, v, "/api/v1/componentstatuses")
	}},
	{"E58_a_status_passes", func(t *testing.T, v *view) {
		token := must(shared.cluster.ServiceAccountToken(t.Context(), v.namespace, "nobody"))(t)
		v.asUpstream(t, rawhttp.Request{Path: v.configMaps(""), Headers: []string{"Authorization: Bearer " + token}})
		v.asUpstream(t, rawhttp.Request{Path: v.configMaps(""), Headers: []string{"Authorization: Bearer wrong"}})
		sameBytes(t, v, "/api/v1/nosuchthings")
		sameBytes(t, v, "/apis/e2e.ctrlmesh.dev/v1/nosuchthings")
	}},
	{"E59_large_objects_and_lists", largeObjects},
	{"E60_upstream_cut_in_mid_list_is_a_broken_transfer", cutInMidList},
	{"E62_resource_version_semantics", resourceVersions},
}

func page(t *testing.T, v *view, path string) core.ConfigMapList {
	t.Helper()
	response := v.get(t, path)
	narrowed(t, response)
	var list core.ConfigMapList
	check(t, json.Unmarshal(response.Body, &list))
	return list
}

// everyPage follows the token alone: it holds a key and a resource version, but no selector.
func everyPage(t *testing.T, v *view) {
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
		list := page(t, v, path+next)
		for _, item := range list.Items {
			got = append(got, item.Name)
		}
		if list.Continue == "" {
			break
		}
		next = "&continue=" + url.QueryEscape(list.Continue)
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages hold %v", got)
	}
}

func largeObjects(t *testing.T, v *view) {
	namespace := newNamespace(t)
	big := strings.Repeat("0123456789abcdef", 900<<10/16)
	for i := range 8 {
		createConfigMap(t, namespace, fmt.Sprintf("mine-%d", i), map[string]string{"shard": "a"}, map[string]string{"big": big})
		createConfigMap(t, namespace, fmt.Sprintf("foreign-%d", i), map[string]string{"shard": "b"}, map[string]string{"big": big})
	}
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	for _, accept := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		headers := []string{"Accept: " + accept}
		v.like(t, rawhttp.Request{Path: path, Headers: headers}, path+"?labelSelector=shard%3Da")
	}
	if size := len(v.get(t, path).Body); size < 7<<20 {
		t.Errorf("the list has %d bytes only", size)
	}
}

func resourceVersions(t *testing.T, v *view) {
	version := page(t, v, v.configMaps("")).ResourceVersion
	for _, query := range []string{
		"resourceVersion=0", "resourceVersion=" + version, "resourceVersion=" + version + "&resourceVersionMatch=NotOlderThan",
		"resourceVersion=" + version + "&resourceVersionMatch=Exact", "resourceVersionMatch=Exact", "resourceVersion=x",
	} {
		v.like(t, get(v.configMaps(query)), v.configMaps(query+"&labelSelector=shard%3Da"))
	}
	// The server waits for a version of the future and then gives up with 504.
	future := v.get(t, v.configMaps("resourceVersion=999999999&resourceVersionMatch=NotOlderThan&timeoutSeconds=1"))
	if future.Status != http.StatusGatewayTimeout || !bytes.Contains(future.Body, []byte(`"reason":"Timeout"`)) {
		t.Errorf("status %d: %s", future.Status, future.Body)
	}
}

// statusIs is an error that shows the body of an unexpected answer.
func statusIs(response *rawhttp.Response, want int) error {
	if response.Status != want {
		return fmt.Errorf("status %d, want %d: %.300s", response.Status, want, response.Body)
	}
	return nil
}

func sameStatus(t *testing.T, v *view, path string) {
	t.Helper()
	want := must(v.direct.Do(t.Context(), get(path)))(t)
	check(t, statusIs(v.get(t, path), want.Status))
}
