package story

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// This file tells from the API server's order of things who handled an object while pods with one name followed each other.

// write is what an operator wrote about a step: the child that it makes, or that it has observed the step.
type write struct {
	version uint64
	key, by string
	step    int
	isChild bool
	seen    time.Time
}

// ledger notes all writes of an operator, and when its pods without a sidecar ended.
type ledger struct {
	o       *operator
	streams []watch.Interface
	done    sync.WaitGroup

	mu     sync.Mutex
	writes []write
	// noted are the last steps that were observed.
	noted map[string]int
	// ended is the version at which the pod of this name without a sidecar had ended.
	ended map[string]uint64
	// before are the steps that were asked for before it began.
	before map[string]int
	// asked is since when an object waits for its step.
	asked map[string]time.Time
	// longest an object ever waited.
	longest time.Duration
}

// follow begins when everything that was asked for is handled.
func (o *operator) follow(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{o: o, noted: map[string]int{}, ended: map[string]uint64{}, asked: map[string]time.Time{}, before: maps.Clone(o.steps)}
	objects := o.node.Client.CoreV1().ConfigMaps("")
	list := must(objects.List(t.Context(), meta.ListOptions{LabelSelector: "app=" + o.name}))(t)
	observed := map[string]string{}
	for _, object := range list.Items {
		observed[object.Namespace+"/"+object.Name] = deedOf(&object)
	}
	l.watch(must(objects.Watch(t.Context(), meta.ListOptions{ResourceVersion: list.ResourceVersion}))(t), func(event watch.Event) {
		if object, ok := event.Object.(*core.ConfigMap); ok && event.Type != watch.Deleted {
			l.noteWrite(object, event.Type, observed)
		}
	})
	l.watch(must(o.node.Client.CoreV1().Pods(o.name).Watch(t.Context(), meta.ListOptions{LabelSelector: "app=" + o.name}))(t), func(event watch.Event) {
		if pod, ok := event.Object.(*core.Pod); ok && isBare(pod) && (event.Type == watch.Deleted || hasEnded(pod)) {
			l.noteEnd(pod)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// isBare tells a pod that was made before its workload asked for a sidecar.
func isBare(pod *core.Pod) bool { return pod.Labels[enableLabel] == "" }

// hasEnded: no container runs, and none will.
func hasEnded(pod *core.Pod) bool {
	return pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
}

// deedOf an object is the last step that was observed, and by whom.
func deedOf(object *core.ConfigMap) string {
	return object.Data["observed"] + " by " + object.Data["by"]
}

func (l *ledger) watch(stream watch.Interface, note func(watch.Event)) {
	l.streams = append(l.streams, stream)
	l.done.Go(func() {
		for event := range stream.ResultChan() {
			note(event)
		}
	})
}

func (l *ledger) stop() {
	for _, stream := range l.streams {
		stream.Stop()
	}
	l.done.Wait()
}

func (l *ledger) noteEnd(pod *core.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended[pod.Name] == 0 {
		l.ended[pod.Name] = version(pod)
	}
}

// noteWrite takes a child when it is made, and an object when another step was observed, or the same by another pod.
func (l *ledger) noteWrite(object *core.ConfigMap, kind watch.EventType, observed map[string]string) {
	if !slices.Contains(slices.Concat(l.o.teams...), object.Namespace) {
		return
	}
	name, step, isChild := strings.Cut(object.Name, "-step-")
	w := write{version: version(object), key: object.Namespace + "/" + name, by: object.Data["by"], isChild: isChild, seen: time.Now()}
	if isChild && kind != watch.Added {
		return // the manager labels it
	}
	if !isChild {
		step = object.Data["observed"]
		if step == "" || observed[w.key] == deedOf(object) {
			return
		}
		observed[w.key] = deedOf(object)
	}
	number, err := strconv.Atoi(step)
	if err != nil {
		return // no object of ours
	}
	w.step = number
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes = append(l.writes, w)
	if !isChild {
		l.noted[w.key] = max(l.noted[w.key], number)
	}
	if since, waits := l.asked[w.key]; waits && !isChild {
		l.longest = max(l.longest, w.seen.Sub(since))
		delete(l.asked, w.key)
	}
}

// version is the API server's order of all that is written.
func version(object meta.Object) uint64 {
	number, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err) // since Kubernetes 1.35 it is a number by contract, before it was one in fact
	}
	return number
}

// work asks for a step of one object after the other whose last step was handled, until the returned function is called. That one
// waits for what is under way.
func (l *ledger) work(t *testing.T) (stop func(*testing.T)) {
	t.Helper()
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(loadInterval)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-t.Context().Done():
				return
			case <-tick.C:
			}
			key := l.next()
			if key == "" {
				continue
			}
			if err := l.o.step(t.Context(), key); err != nil && t.Context().Err() == nil {
				t.Errorf("ask for a step: %v", err)
				return
			}
		}
	}()
	return func(t *testing.T) {
		t.Helper()
		close(ended)
		<-done
		eventually(t, "every step is handled", func() error { return l.left() })
	}
}

// next is an object that waits for nothing; from now on it does. Empty if there is none.
func (l *ledger) next() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var idle []string
	for key := range l.o.steps {
		if l.asked[key].IsZero() {
			idle = append(idle, key)
		}
	}
	if len(idle) == 0 {
		return ""
	}
	key := idle[rand.IntN(len(idle))]
	l.asked[key] = time.Now()
	return key
}

// behind is an error while the API server's word of a step that was handled is under way.
func (l *ledger) behind() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !maps.Equal(l.noted, l.o.steps) {
		return fmt.Errorf("noted are %v of %v", l.noted, l.o.steps)
	}
	return nil
}

// sorted are all writes in the API server's order.
func (l *ledger) sorted() []write {
	return slices.SortedFunc(slices.Values(l.writes), func(a, b write) int { return cmp.Compare(a.version, b.version) })
}
