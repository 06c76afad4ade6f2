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

// This file breaks watches of client-go: they end, they expire, they are late, they are not what a new client hopes for.

// asked notes what a reflector asks for, and in which way.
type asked struct {
	next http.RoundTripper
	mu   sync.Mutex
	// ways: `list`; `stream`, a list as the beginning of a watch; `watch`, what has happened since.
	ways []string
}

func (a *asked) RoundTrip(request *http.Request) (*http.Response, error) {
	way := "list"
	if query := request.URL.Query(); query.Get("sendInitialEvents") == "true" {
		way = "stream"
	} else if query.Get("watch") == "true" {
		way = "watch"
	}
	a.mu.Lock()
	a.ways = append(a.ways, way)
	a.mu.Unlock()
	return a.next.RoundTrip(request)
}

func (a *asked) first(n int) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.ways[:min(n, len(a.ways))])
}

// brokenWatches are faults of an informer's first watch, and what it asks for then.
var brokenWatches = map[string]struct {
	do   any
	ways []string
}{
	"E5_expired": {fields{"expire": fields{"after": "100ms"}}, []string{"stream", "stream"}},
	// Late enough for the initial list.
	"E6_closed":    {fields{"close": fields{"after": "2s"}}, []string{"stream", "watch"}},
	"E7_refused":   {fields{"refuse": fields{"retryAfter": 1}}, []string{"stream", "stream"}},
	"R5_no_stream": {"noWatchList", []string{"stream", "list", "watch"}},
}

// TestBrokenWatches: what an informer asks for shows what it made of the end of its watch. In the end it has everything.
func TestBrokenWatches(t *testing.T) {
	t.Parallel()
	namespaces, faults := map[string]string{}, []fields{}
	for name, b := range brokenWatches {
		namespaces[name] = newNamespace(t)
		faults = append(faults, fields{
			"name": name, "do": b.do, "first": 1, "match": fields{"resources": []fields{inNamespace(namespaces[name], "watch")}},
		})
	}
	s := startPlugins(t, faultInject, fields{"class": "server", "faults": faults})
	for name, b := range brokenWatches {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			createConfigMap(t, namespaces[name], "before", nil, nil)
			informer, asks := inform(t, s, namespaces[name])
			eventually(t, "the informer has asked again", func() error {
				if ways := asks.first(len(b.ways)); !slices.Equal(ways, b.ways) {
					return fmt.Errorf("it asked for %v", ways)
				}
				return nil
			})
			createConfigMap(t, namespaces[name], "after", nil, nil)
			eventually(t, "the informer has all objects", func() error {
				if keys := informer.GetStore().ListKeys(); len(keys) != 2 {
					return fmt.Errorf("it has %v", keys)
				}
				return nil
			})
			if seen := report[struck](t, s, faultInject, name); seen.Fired != 1 {
				t.Errorf("the fault tells %+v", seen)
			}
		})
	}
}

// inform runs an informer for a namespace's ConfigMaps.
func inform(t *testing.T, s *sidecar.Sidecar, namespace string) (cache.SharedIndexInformer, *asked) {
	t.Helper()
	asks := &asked{}
	config := clientConfig(s)
	config.Timeout = 0 // informers watch for minutes
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { asks.next = next; return asks })
	client := must(kubernetes.NewForConfig(config))(t)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	go informer.Run(t.Context().Done())
	return informer, asks
}

// TestHeldWatch holds back what happens, and the answer to what is done (E1, A1): both come late, whole and in order.
func TestHeldWatch(t *testing.T) {
	t.Parallel()
	const held = 3 * time.Second
	namespace := newNamespace(t)
	s := startPlugins(t, faultInject, fields{"faults": []fields{
		holds("E1", inNamespace(namespace, "watch"), held), holds("A1", inNamespace(namespace, "update"), held),
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
			t.Errorf("%s came after %s", want, waited)
		}
	}
	answersLate(t, s, namespace, held)
}

func holds(name string, resources fields, held time.Duration) fields {
	return fields{"name": name, "match": fields{"resources": []fields{resources}}, "do": fields{"hold": fields{"for": held.String()}}}
}

// answersLate demands that a controller sees the event of its own write before the answer.
func answersLate(t *testing.T, s *sidecar.Sidecar, namespace string, held time.Duration) {
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
		t.Fatalf("the answer came first: %v", err)
	}
	if err := <-answered; err != nil || time.Since(begin) < held {
		t.Errorf("the answer came after %s: %v", time.Since(begin), err)
	}
}
