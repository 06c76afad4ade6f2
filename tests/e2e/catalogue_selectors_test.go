package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group D of the catalogue: selectors.

var selectorCases = []catalogueCase{
	{"D41_contradicting_client_selector_is_an_empty_list", testContradictingSelector},
	{"D42_field_selector_by_name", testFieldSelectorByName},
	{"D43_field_selector_by_namespace", func(t *testing.T, env *testEnv) {
		query := "fieldSelector=metadata.namespace%3D" + env.namespace
		env.assertMatchesDirect(t, getRequest("/api/v1/configmaps?"+query), "/api/v1/configmaps?"+query+"&labelSelector=shard%3Da")
		assertNarrowed(t, env.get(t, "/api/v1/configmaps?"+query))
	}},
	{"D44_field_selector_by_uid_is_400", func(t *testing.T, env *testEnv) {
		response := env.get(t, env.configMapsPath("fieldSelector=metadata.uid%3D1"))
		if response.Status != http.StatusBadRequest {
			t.Errorf("status %d: %s", response.Status, response.Body)
		}
	}},
	{"D45_invalid_selector_of_a_plugin_follows_its_failure_policy", testInvalidPluginSelector},
	{"D46_matching_nothing", func(t *testing.T, env *testEnv) {
		rule := shardRule("s0", "a")
		rule.Limits[0].Selector.MatchExpressions = append(rule.Limits[0].Selector.MatchExpressions,
			sidecar.Requirement{Key: "shard", Operator: "NotIn", Values: []string{"a"}})
		assertEmptyList(t, must(sidecarTarget(startShardSidecar(t, rule)).Do(t.Context(), getRequest(env.configMapsPath(""))))(t))
	}},
	{"D47_mine_or_unlabelled", testMineOrUnlabelled},
	{"D48_client_selector_is_never_widened", func(t *testing.T, env *testEnv) {
		client := "app in (x,y),app!=y,!none,app"
		_, event := env.doAudited(t, getRequest(env.configMapsPath("labelSelector="+url.QueryEscape(client))))
		arrived := must(url.Parse(event.RequestURI))(t).Query().Get("labelSelector")
		for _, part := range []string{"app!=y", "!none", "shard"} {
			if !strings.Contains(arrived, part) {
				t.Errorf("upstream got %q, without %q", arrived, part)
			}
		}
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("labelSelector="+url.QueryEscape(client))), env.configMapsPath("labelSelector="+url.QueryEscape(client+",shard=a")))
	}},
}

// assertEmptyList asserts a list that clients accept: 200, `items` empty but not null, and a resource version.
func assertEmptyList(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	var list core.ConfigMapList
	if response.Status != http.StatusOK || json.Unmarshal(response.Body, &list) != nil {
		t.Fatalf("status %d: %s", response.Status, response.Body)
	}
	if len(list.Items) != 0 || list.ResourceVersion == "" || !bytes.Contains(response.Body, []byte(`"items":[]`)) {
		t.Fatalf("not an empty list: %s", response.Body)
	}
}

func testContradictingSelector(t *testing.T, env *testEnv) {
	assertEmptyList(t, env.get(t, env.configMapsPath("labelSelector=shard%3Db")))
	stream := must(env.proxied.Open(t.Context(), getRequest(env.configMapsPath(
		"labelSelector=shard%3Db&watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"))))(t)
	defer stream.Close()
	line := must(stream.Line())(t)
	if !bytes.Contains(line, []byte(`"type":"BOOKMARK"`)) || !bytes.Contains(line, []byte("k8s.io/initial-events-end")) {
		t.Errorf("first event: %s", line)
	}
}

// testFieldSelectorByName: authorizers read the name from the field selector, so it must arrive unchanged.
func testFieldSelectorByName(t *testing.T, env *testEnv) {
	assertNarrowed(t, env.get(t, env.configMapsPath("fieldSelector=metadata.name%3Dmine-x")))
	assertEmptyList(t, env.get(t, env.configMapsPath("fieldSelector=metadata.name%3Dforeign-x")))
	env.readWatch(t, env.configMapsPath("fieldSelector=metadata.name%3Dmine-x&watch=1&timeoutSeconds=1"))

	token := must(shared.cluster.ServiceAccountToken(t.Context(), env.namespace, "reader"))(t)
	role := &rbac.Role{
		ObjectMeta: meta.ObjectMeta{Name: "reader"},
		Rules:      []rbac.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}, ResourceNames: []string{"mine-x"}}},
	}
	_, err := shared.client.RbacV1().Roles(env.namespace).Create(t.Context(), role, meta.CreateOptions{})
	check(t, err)
	binding := &rbac.RoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: "reader"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: env.namespace, Name: "reader"}},
	}
	_, err = shared.client.RbacV1().RoleBindings(env.namespace).Create(t.Context(), binding, meta.CreateOptions{})
	check(t, err)
	credentials := "Authorization: Bearer " + token
	eventually(t, "the role is in force", func() error {
		return checkStatus(env.get(t, env.configMapsPath("fieldSelector=metadata.name%3Dmine-x"), credentials), http.StatusOK)
	})
	for _, query := range []string{"", "fieldSelector=metadata.name%3Dforeign-x"} {
		check(t, checkStatus(env.get(t, env.configMapsPath(query), credentials), http.StatusForbidden))
	}
}

func testMineOrUnlabelled(t *testing.T, env *testEnv) {
	rule := shardRule("s0", "a")
	rule.Limits[0].Selector.MatchExpressions = []sidecar.Requirement{{Key: "shard", Operator: "NotIn", Values: []string{"b"}}}
	response := must(sidecarTarget(startShardSidecar(t, rule)).Do(t.Context(), getRequest(env.configMapsPath("labelSelector=app%3Dx"))))(t)
	var list core.ConfigMapList
	check(t, json.Unmarshal(response.Body, &list))
	if len(list.Items) != 2 || list.Items[0].Name != "foreign-none" || list.Items[1].Name != "mine-x" {
		t.Errorf("got %s", response.Body)
	}
}

// testInvalidPluginSelector: a plugin that returns an invalid selector fails the request, or is ignored, as its entry's
// onFailure says. Another entry's S stays in force in both cases.
func testInvalidPluginSelector(t *testing.T, env *testEnv) {
	shard, scripted := readPlugin(t, "shard-selector"), readPlugin(t, "scripted")
	for _, invalid := range []string{"-a=b", "a=b=c", "shard in (", "a=" + strings.Repeat("x", 64), ""} {
		script := map[string]any{
			"subscribe": []any{map[string]any{"resources": []string{"configmaps"}}},
			"onRequest": []any{map[string]any{"then": map[string]any{"proceed": []any{map[string]any{"andLabelSelector": invalid}}}}},
		}
		for policy, status := range map[string]int{"Closed": http.StatusInternalServerError, "Open": http.StatusOK} {
			entry := sidecar.NewEntry("shard-selector/s0", shard, shardRule("s0", "a"))
			broken := sidecar.NewEntry("scripted/broken", scripted, script)
			broken.OnFailure, broken.Order = policy, 50
			chain := sidecar.NewChain(1, broken, entry).WithPlugins(shard, scripted)
			s := startSidecar(t, sidecar.Options{Chain: &chain})
			response := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath(""))))(t)
			assertNoForeign(t, response)
			if response.Status != status {
				t.Errorf("selector %.20q with policy %s: status %d: %.300s", invalid, policy, response.Status, response.Body)
			}
		}
	}
}
