package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// This file breaks watches of client-go: they end, expire, are late, or are refused.

// requestRecorder records which kinds of requests a reflector sends.
type requestRecorder struct {
	next http.RoundTripper
	mu   sync.Mutex
	// kinds are `list`, `stream` (a list as the beginning of a watch) and `watch` (only later changes).
	kinds []string
}

func (a *requestRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	way := "list"
	if query := request.URL.Query(); query.Get("sendInitialEvents") == "true" {
		way = "stream"
	} else if query.Get("watch") == "true" {
		way = "watch"
	}
	a.mu.Lock()
	a.kinds = append(a.kinds, way)
	a.mu.Unlock()
	return a.next.RoundTrip(request)
}

func (a *requestRecorder) firstKinds(n int) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.kinds[:min(n, len(a.kinds))])
}

// brokenWatches maps each fault of an informer's first watch to the requests that must follow.
var brokenWatches = map[string]struct {
	do   any
	ways []string
}{
	"E5_expired": {jsonFields{"expire": jsonFields{"after": "100ms"}}, []string{"stream", "stream"}},
	// Late enough for the initial list.
	"E6_closed":    {jsonFields{"close": jsonFields{"after": "2s"}}, []string{"stream", "watch"}},
	"E7_refused":   {jsonFields{"refuse": jsonFields{"retryAfter": 1}}, []string{"stream", "stream"}},
	"R5_no_stream": {"noWatchList", []string{"stream", "list", "watch"}},
}

// TestInformerRecoversFromBrokenWatches: the requests of an informer show how it understood the end of its watch. In
// the end it has all objects.
func TestInformerRecoversFromBrokenWatches(t *testing.T) {
	t.Parallel()
	namespaces, faults := map[string]string{}, []jsonFields{}
	for name, b := range brokenWatches {
		namespaces[name] = newNamespace(t)
		faults = append(faults, jsonFields{
			"name": name, "do": b.do, "first": 1, "match": jsonFields{"resources": []jsonFields{configMapsMatch(namespaces[name], "watch")}},
		})
	}
	s := startPlugin(t, faultInject, jsonFields{"class": "server", "faults": faults})
	for name, b := range brokenWatches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			createConfigMap(t, namespaces[name], "before", nil, nil)
			informer, asks := startInformer(t, s, namespaces[name])
			eventually(t, "the informer has sent new requests", func() error {
				if ways := asks.firstKinds(len(b.ways)); !slices.Equal(ways, b.ways) {
					return fmt.Errorf("the informer sent %v", ways)
				}
				return nil
			})
			createConfigMap(t, namespaces[name], "after", nil, nil)
			eventually(t, "the informer has all objects", func() error {
				if keys := informer.GetStore().ListKeys(); len(keys) != 2 {
					return fmt.Errorf("the informer holds %v", keys)
				}
				return nil
			})
			if seen := readReport[faultReport](t, s, faultInject, name); seen.Fired != 1 {
				t.Errorf("the fault reports %+v", seen)
			}
		})
	}
}

// startInformer runs an informer for ConfigMaps of one namespace.
func startInformer(t *testing.T, s *sidecar.Sidecar, namespace string) (cache.SharedIndexInformer, *requestRecorder) {
	t.Helper()
	asks := &requestRecorder{}
	config := clientConfig(s)
	config.Timeout = 0 // informers watch for minutes
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { asks.next = next; return asks })
	client := must(kubernetes.NewForConfig(config))(t)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	go informer.Run(t.Context().Done())
	return informer, asks
}

// TestDelayedEventsArriveInOrder delays watch events, and responses to writes (E1, A1): all arrive late, complete and
// in order.
func TestDelayedEventsArriveInOrder(t *testing.T) {
	t.Parallel()
	const held = 3 * time.Second
	namespace := newNamespace(t)
	s := startPlugin(t, faultInject, jsonFields{"faults": []jsonFields{
		holdSettings("E1", configMapsMatch(namespace, "watch"), held), holdSettings("A1", configMapsMatch(namespace, "update"), held),
	}})
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	configMaps := client.CoreV1().ConfigMaps(namespace)
	begin := time.Now()
	late := must(configMaps.Watch(t.Context(), meta.ListOptions{}))(t)
	defer late.Stop()
	object := must(configMaps.Create(t.Context(), &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "x"}}, meta.CreateOptions{}))(t)
	check(t, configMaps.Delete(t.Context(), "x", meta.DeleteOptions{}))
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		if event := <-late.ResultChan(); event.Type != want || event.Object.(*core.ConfigMap).UID != object.UID {
			t.Errorf("event %s %v, want %s", event.Type, event.Object, want)
		}
		if waited := time.Since(begin); waited < held {
			t.Errorf("%s arrived after %s", want, waited)
		}
	}
	assertEventBeforeResponse(t, s, namespace, held)
}

func holdSettings(name string, resources jsonFields, held time.Duration) jsonFields {
	return jsonFields{"name": name, "match": jsonFields{"resources": []jsonFields{resources}}, "do": jsonFields{"hold": jsonFields{"for": held.String()}}}
}

// assertEventBeforeResponse asserts that a controller sees the event of its own write before the response.
func assertEventBeforeResponse(t *testing.T, s *sidecar.Sidecar, namespace string, held time.Duration) {
	t.Helper()
	object := createConfigMap(t, namespace, "y", nil, nil)
	events := must(shared.client.CoreV1().ConfigMaps(namespace).Watch(t.Context(), meta.ListOptions{ResourceVersion: object.ResourceVersion}))(t)
	defer events.Stop()
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	answered := make(chan error)
	begin := time.Now()
	go func() {
		object.Data = map[string]string{"k": "v"}
		_, err := client.CoreV1().ConfigMaps(namespace).Update(t.Context(), object, meta.UpdateOptions{})
		answered <- err
	}()
	select {
	case <-events.ResultChan():
	case err := <-answered:
		t.Fatalf("the response came before the event: %v", err)
	}
	if err := <-answered; err != nil || time.Since(begin) < held {
		t.Errorf("the response came after %s: %v", time.Since(begin), err)
	}
}
