package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// This file changes a shard's rule while clients watch: their watches must end so that they list again.

func testReshardEndsWatches(t *testing.T, env *testEnv) {
	s := startShardSidecar(t, shardRule("s0", "a"))
	open := func(path string) *watcher {
		w := &watcher{must(sidecarTarget(s).Open(t.Context(), getRequest(path)))(t), t, env.namespace}
		t.Cleanup(w.Close)
		return w
	}
	narrowedWatch := open(env.configMapsPath("watch=1"))
	narrowedWatch.expect("ADDED", "mine-x")
	narrowedWatch.expect("ADDED", "mine-y")
	untouched := open("/apis/coordination.k8s.io/v1/namespaces/" + env.namespace + "/leases?watch=1&" + initialEvents)
	untouched.expect("BOOKMARK", "")

	check(t, s.Apply(t.Context(), shardChain(t, 2, shardRule("s0", "b"))))
	end := narrowedWatch.expect("ERROR", "")
	if end.Object.Kind != "Status" || end.Object.Code != http.StatusGone || end.Object.Reason != "Expired" {
		t.Errorf("the watch ended with %s", end.raw)
	}
	if e, err := readEvent(narrowedWatch.Stream); err == nil {
		t.Errorf("the stream continues with %s", e.raw)
	}
	// A watch that the rule does not narrow stays open: it still gets the next event.
	createLease(t, env.namespace, "after")
	untouched.expect("ADDED", "after")

	response := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath("labelSelector=app%3Dx"))))(t)
	if text := string(response.Body); response.Status != http.StatusOK || !strings.Contains(text, "foreign-x") || strings.Contains(text, "mine-x") {
		t.Errorf("the list after the change: status %d, %s", response.Status, text)
	}
}

// testRuleChangeBetweenPages: the second page of a list that began under another rule would miss objects that no watch
// reports later, and so would a watch from a resource version of another rule.
func testRuleChangeBetweenPages(t *testing.T, env *testEnv) {
	s := startShardSidecar(t, shardRule("s0", "a"))
	first := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath("limit=1"))))(t)
	assertNarrowed(t, first)
	var list core.ConfigMapList
	check(t, json.Unmarshal(first.Body, &list))
	check(t, s.Apply(t.Context(), shardChain(t, 2, shardRule("s0", "a", "b"))))

	second := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath("limit=1&continue="+url.QueryEscape(list.Continue)))))(t)
	if second.Status != http.StatusGone || !strings.Contains(string(second.Body), `"reason":"Expired"`) {
		t.Errorf("the second page: status %d: %s", second.Status, second.Body)
	}
	resumed := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath("watch=1&timeoutSeconds=1&resourceVersion="+list.ResourceVersion))))(t)
	if !strings.Contains(string(resumed.Body), `"reason":"Expired"`) {
		t.Errorf("a watch from the first page's version: status %d: %s", resumed.Status, resumed.Body)
	}
	// A new list, as pagers and reflectors send it after 410, is served, including its last page and a watch.
	restarted := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath("limit=3"))))(t)
	check(t, checkStatus(restarted, http.StatusOK))
	check(t, json.Unmarshal(restarted.Body, &list))
	last := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath("limit=3&continue="+url.QueryEscape(list.Continue)))))(t)
	check(t, checkStatus(last, http.StatusOK))
	watched := must(sidecarTarget(s).Do(t.Context(), getRequest(env.configMapsPath("watch=1&timeoutSeconds=1&resourceVersion="+list.ResourceVersion))))(t)
	if watched.Status != http.StatusOK || strings.Contains(string(watched.Body), "ERROR") {
		t.Errorf("a watch after a new list: status %d: %s", watched.Status, watched.Body)
	}
}

// testReshardWatchListClient: client-go's informer streams its initial list since 1.35. In the end it holds exactly the
// new shard.
func testReshardWatchListClient(t *testing.T, env *testEnv) {
	s := startShardSidecar(t, shardRule("s0", "a"))
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	informer := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(env.namespace)).Core().V1().ConfigMaps().Informer()
	go informer.Run(t.Context().Done())
	holds := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprint("the informer holds ", want), func() error {
			found := []string{}
			for _, item := range informer.GetStore().List() {
				found = append(found, item.(*core.ConfigMap).Name)
			}
			slices.Sort(found)
			if !informer.HasSynced() || !slices.Equal(found, want) {
				return fmt.Errorf("the informer holds %v", found)
			}
			return nil
		})
	}
	holds("mine-x", "mine-y")
	check(t, s.Apply(t.Context(), shardChain(t, 2, shardRule("s0", "b"))))
	holds("foreign-x", "foreign-y")
	check(t, s.Apply(t.Context(), shardChain(t, 3, shardRule("s0", "a", "b"))))
	holds("foreign-x", "foreign-y", "mine-x", "mine-y")
	check(t, s.Apply(t.Context(), sidecar.NewChain(4)))
	holds("foreign-none", "foreign-x", "foreign-y", "mine-x", "mine-y")
}
