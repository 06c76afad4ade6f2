package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	audit "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// This file tests parts of a hand-over: limits that no object meets, which it sets in between, and reads that are no
// older than the hand-over.

// conjunctionRule makes a limit of each selector; an object must meet all of them.
func conjunctionRule(selectors ...[]sidecar.Requirement) sidecar.ShardRule {
	rule := sidecar.ShardRule{Shard: "s0"}
	for _, expressions := range selectors {
		limit := shardRule("s0").Limits[0]
		limit.Selector = sidecar.Selector{MatchExpressions: expressions}
		rule.Limits = append(rule.Limits, limit)
	}
	return rule
}

func TestUnsatisfiableLimitsShowNothing(t *testing.T) {
	in := func(value string) []sidecar.Requirement {
		return []sidecar.Requirement{{Key: "shard", Operator: "In", Values: []string{value}}}
	}
	both := []sidecar.Requirement{{Key: "shard", Operator: "Exists"}, {Key: "shard", Operator: "DoesNotExist"}}
	code := readPlugin(t, "shard-selector")
	apart := sidecar.NewChain(1,
		sidecar.NewEntry("shard-selector/one", code, conjunctionRule(in("a"))),
		sidecar.NewEntry("shard-selector/two", code, conjunctionRule(in("b"))),
	).WithPlugins(code)
	for name, chain := range map[string]sidecar.Chain{
		"two_limits":  shardChain(t, 1, conjunctionRule(in("a"), in("b"))),
		"two_entries": apart,
		"one_limit":   shardChain(t, 1, conjunctionRule(both)),
	} {
		for _, content := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			t.Run(name+"_"+strings.TrimPrefix(content, "application/"), func(t *testing.T) {
				t.Parallel()
				s := startSidecar(t, sidecar.Options{Chain: &chain})
				config := rest.CopyConfig(clientConfig(s))
				config.ContentType, config.AcceptContentTypes = content, content
				testUnsatisfiableLimits(t, s, must(kubernetes.NewForConfig(config))(t))
			})
		}
	}
}

func testUnsatisfiableLimits(t *testing.T, s *sidecar.Sidecar, client *kubernetes.Clientset) {
	namespace := newNamespace(t)
	seedNamespace(t, namespace)
	maps := client.CoreV1().ConfigMaps(namespace)
	list := must(maps.List(t.Context(), meta.ListOptions{}))(t)
	if len(list.Items) != 0 || list.ResourceVersion == "" {
		t.Fatalf("a list of nothing: %v", list)
	}
	open := must(maps.Watch(t.Context(), meta.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	defer open.Stop()
	createConfigMap(t, namespace, "foreign-late", map[string]string{"shard": "b"}, nil)
	createConfigMap(t, namespace, "mine-late", map[string]string{"shard": "a"}, nil)
	check(t, s.Apply(t.Context(), shardChain(t, 2, shardRule("s0", "a"))))
	event, isOpen := <-open.ResultChan()
	if err := errors.FromObject(event.Object); !isOpen || event.Type != watch.Error || !errors.IsResourceExpired(err) {
		t.Fatalf("the watch of nothing ends with %v %v", event, err)
	}
	list = must(maps.List(t.Context(), meta.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	if found := namesOfConfigMaps(list.Items); !slices.Equal(found, []string{"mine-late", "mine-x", "mine-y"}) {
		t.Errorf("after the widening: %v", found)
	}
}

func namesOfConfigMaps(items []core.ConfigMap) []string {
	names := []string{}
	for _, item := range items {
		names = append(names, item.Name)
	}
	slices.Sort(names)
	return names
}

// TestReadsBypassCachesAfterHandOver: when an informer's shard has gained objects, its reads bypass caches of the API
// server that may be older than the hand-over, and the API server accepts these requests.
func TestReadsBypassCachesAfterHandOver(t *testing.T) {
	s := startShardSidecar(t, shardRule("s0", "a"))
	namespace := newNamespace(t)
	seedNamespace(t, namespace)
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	informer := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace)).Core().V1().ConfigMaps().Informer()
	running, stop := context.WithCancel(t.Context())
	defer stop()
	go informer.Run(running.Done())
	holds := func(count int) {
		t.Helper()
		eventually(t, fmt.Sprint("the informer holds ", count), func() error {
			if found := len(informer.GetStore().List()); !informer.HasSynced() || found != count {
				return fmt.Errorf("the informer holds %d", found)
			}
			return nil
		})
	}
	holds(2)
	gained := shardRule("s0", "a", "b")
	gained.ConsistentReads = true
	check(t, s.Apply(t.Context(), shardChain(t, 2, gained)))
	holds(4)
	for _, query := range []string{
		"resourceVersion=0", "resourceVersion=1", "resourceVersion=1&resourceVersionMatch=NotOlderThan",
		"watch=1&timeoutSeconds=1&resourceVersion=0",
		"watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=1",
	} {
		response := must(sidecarTarget(s).Do(t.Context(), getRequest("/api/v1/namespaces/"+namespace+"/configmaps?"+query)))(t)
		if response.Status != http.StatusOK || !strings.Contains(string(response.Body), "foreign-y") || strings.Contains(string(response.Body), "ERROR") {
			t.Errorf("%s: status %d: %s", query, response.Status, response.Body)
		}
	}
	stop() // an open watch is audited when it ends
	eventually(t, "the requests are audited", func() error {
		return checkConsistentReads(auditedRequests(t, shared.controlPlane, namespace, "list", "watch"))
	})
}

// checkConsistentReads returns an error unless all initial reads of the wider shard have arrived, without a resource
// version.
func checkConsistentReads(events []audit.Event) error {
	freshReads := 0
	for _, event := range events {
		target, err := url.Parse(event.RequestURI)
		if err != nil {
			return err
		}
		query := target.Query()
		isState := event.Verb == "list" || query.Get("sendInitialEvents") == "true" || query.Get("resourceVersion") == ""
		if query.Get("labelSelector") != "shard in (a,b)" || !isState {
			continue
		}
		freshReads++
		if query.Has("resourceVersion") {
			return fmt.Errorf("the response may have an older state: %s", event.RequestURI)
		}
	}
	if freshReads < 6 {
		return fmt.Errorf("%d requests, want the five of the test and the informer's", freshReads)
	}
	return nil
}
