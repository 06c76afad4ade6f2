package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// This file creates objects that operators handle, requests steps, and checks who handled the last one.

// objectSet is a set of objects of one kind, spread over namespaces and shards.
type objectSet struct {
	// app is the value of the label `app`. Empty: the objects have no labels.
	app   string
	kind  string
	plane controlPlane
	// objects maps namespace/name to what is owned as a whole: the value of the label `shard`, or the object itself.
	objects map[string]string
	names   []string
	// interval is the time between two steps of a load; loadInterval if zero.
	interval time.Duration

	mu    sync.Mutex
	steps map[string]int
}

// newObjectSet creates `each` objects for each shard in each of `namespaces` new namespaces. The kind is ConfigMap or Widget.
func newObjectSet(t *testing.T, plane controlPlane, kind string, namespaces, each int, shards ...string) *objectSet {
	t.Helper()
	set := &objectSet{app: uniqueName("objects"), kind: kind, plane: plane, objects: map[string]string{}, steps: map[string]int{}}
	for range namespaces {
		namespace := uniqueName("e2e")
		_, err := plane.client.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace}}, meta.CreateOptions{})
		check(t, err)
		for _, shard := range shards {
			for i := range each {
				name := fmt.Sprintf("%s-%s-%d", set.app, shard, i)
				set.create(t, namespace, name, map[string]string{"app": set.app, "shard": shard})
				key := namespace + "/" + name
				set.objects[key] = shard
				set.names = append(set.names, key)
			}
		}
	}
	return set
}

func (set *objectSet) create(t *testing.T, namespace, name string, labels map[string]string) {
	t.Helper()
	if set.kind == "ConfigMap" {
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}
		_, err := set.plane.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, meta.CreateOptions{})
		check(t, err)
		return
	}
	_, err := set.widgets(t).Namespace(namespace).Create(t.Context(), newWidget(name, labels), meta.CreateOptions{})
	check(t, err)
}

func (set *objectSet) widgets(t *testing.T) dynamic.NamespaceableResourceInterface {
	t.Helper()
	return must(dynamic.NewForConfig(set.plane.cluster.AdminConfig()))(t).Resource(widgetResource)
}

// listOptions select the objects of the set. If these have no labels, all objects are selected.
func (set *objectSet) listOptions() meta.ListOptions {
	if set.app == "" {
		return meta.ListOptions{}
	}
	return meta.ListOptions{LabelSelector: "app=" + set.app}
}

func (set *objectSet) contains(key string) bool {
	_, isIn := set.objects[key]
	return isIn
}

// keysOf returns the objects of the given shards.
func (set *objectSet) keysOf(shards ...string) []string {
	found := []string{}
	for _, key := range set.names {
		for _, shard := range shards {
			if set.objects[key] == shard {
				found = append(found, key)
			}
		}
	}
	return found
}

// requestStep asks for the next step of an object.
func (set *objectSet) requestStep(ctx context.Context, client dynamic.Interface, key string) error {
	set.mu.Lock()
	set.steps[key]++
	next := fmt.Sprint(set.steps[key])
	set.mu.Unlock()
	field, resource := "data", core.SchemeGroupVersion.WithResource("configmaps")
	if set.kind != "ConfigMap" {
		field, resource = "spec", widgetResource
	}
	patch, err := json.Marshal(map[string]any{field: map[string]any{"step": next}})
	if err != nil {
		return err
	}
	namespace, name := splitKey(key)
	_, err = client.Resource(resource).Namespace(namespace).Patch(ctx, name, types.MergePatchType, patch, meta.PatchOptions{})
	return err
}

func splitKey(key string) (namespace, name string) {
	for i := range key {
		if key[i] == '/' {
			return key[:i], key[i+1:]
		}
	}
	return "", key
}

// requestStepOfEach asks for one step of each object.
func (set *objectSet) requestStepOfEach(t *testing.T) {
	t.Helper()
	client := must(dynamic.NewForConfig(set.plane.cluster.AdminConfig()))(t)
	for _, key := range set.names {
		check(t, set.requestStep(t.Context(), client, key))
	}
}

// loadInterval gives 100 steps a second over all objects: more than one replica at a time is busy, and a small machine
// is not overloaded.
const loadInterval = 10 * time.Millisecond

// startLoad requests steps of random objects until the returned function is called, which returns their number.
// Failures count only if `strict` is set, because an API server that is restarted fails.
func (set *objectSet) startLoad(t *testing.T, strict bool) (stop func() int) {
	t.Helper()
	client := must(dynamic.NewForConfig(set.plane.cluster.AdminConfig()))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() {
		tick := time.NewTicker(cmp.Or(set.interval, loadInterval))
		defer tick.Stop()
		requested := 0
		for {
			select {
			case <-ctx.Done():
				done <- requested
				return
			case <-tick.C:
			}
			err := set.requestStep(ctx, client, set.names[rand.IntN(len(set.names))])
			if err != nil && ctx.Err() == nil && strict {
				t.Errorf("step: %v", err)
			}
			requested++
		}
	}()
	return func() int {
		cancel()
		return <-done
	}
}

// assertHandledByOwners waits until the last step of every object is handled, and asserts that its owner handled it.
func (set *objectSet) assertHandledByOwners(t *testing.T, owners map[string]*operatorProcess) {
	t.Helper()
	eventually(t, "every last step is handled", func() error {
		for key, state := range set.states(t) {
			if state.step != state.observed {
				return fmt.Errorf("%s is at step %q, observed is %q by %q", key, state.step, state.observed, state.by)
			}
		}
		return nil
	})
	for key, state := range set.states(t) {
		if owner := owners[set.objects[key]]; state.step != "" && owner != nil && state.by != owner.id {
			t.Errorf("%s of shard %s was handled by %s, not by %s", key, set.objects[key], state.by, owner.id)
		}
	}
}

type handledState struct{ step, observed, by string }

func (set *objectSet) states(t *testing.T) map[string]handledState {
	t.Helper()
	states := map[string]handledState{}
	options := set.listOptions()
	if set.kind == "ConfigMap" {
		list := must(set.plane.client.CoreV1().ConfigMaps("").List(t.Context(), options))(t)
		for _, o := range list.Items {
			states[o.Namespace+"/"+o.Name] = handledState{o.Data["step"], o.Data["observed"], o.Data["by"]}
		}
	} else {
		list := must(set.widgets(t).List(t.Context(), options))(t)
		for _, o := range list.Items {
			text := func(fields ...string) string {
				value, _, _ := unstructured.NestedString(o.Object, fields...)
				return value
			}
			states[o.GetNamespace()+"/"+o.GetName()] = handledState{text("spec", "step"), text("status", "observed"), text("status", "by")}
		}
	}
	maps.DeleteFunc(states, func(key string, _ handledState) bool { return !set.contains(key) })
	if len(states) != len(set.names) {
		t.Fatalf("%d objects of %d exist", len(states), len(set.names))
	}
	return states
}
