package lifecycle

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

// This file derives from resource versions who handled an object while pods with the same name succeeded each other.

// stepWrite is an operator's write for a step: it creates the child, or records the step as observed.
type stepWrite struct {
	version       uint64
	key, writer   string
	step          int
	isChildObject bool
	seen          time.Time
}

// writeHistory records all writes of an operator, and when its pods without a sidecar ended.
type writeHistory struct {
	op      *operator
	streams []watch.Interface
	done    sync.WaitGroup

	mu     sync.Mutex
	writes []stepWrite
	// observedSteps are the last observed steps, by object.
	observedSteps map[string]int
	// podEnds are the resource versions at which the pods without a sidecar had ended, by name.
	podEnds map[string]uint64
	// initialSteps were requested before the recording began.
	initialSteps map[string]int
	// waitingSince is the time at which an object's pending step was requested.
	waitingSince map[string]time.Time
	// longestWait is the longest time that an object ever waited.
	longestWait time.Duration
}

// recordWrites begins when every requested step is handled.
func (op *operator) recordWrites(t *testing.T) *writeHistory {
	t.Helper()
	history := &writeHistory{op: op, observedSteps: map[string]int{}, podEnds: map[string]uint64{}, waitingSince: map[string]time.Time{}, initialSteps: maps.Clone(op.steps)}
	objects := op.node.Client.CoreV1().ConfigMaps("")
	list := must(objects.List(t.Context(), meta.ListOptions{LabelSelector: "app=" + op.name}))(t)
	observed := map[string]string{}
	for _, object := range list.Items {
		observed[object.Namespace+"/"+object.Name] = lastHandled(&object)
	}
	history.readStream(must(objects.Watch(t.Context(), meta.ListOptions{ResourceVersion: list.ResourceVersion}))(t), func(event watch.Event) {
		if object, ok := event.Object.(*core.ConfigMap); ok && event.Type != watch.Deleted {
			history.recordWrite(object, event.Type, observed)
		}
	})
	history.readStream(must(op.node.Client.CoreV1().Pods(op.name).Watch(t.Context(), meta.ListOptions{LabelSelector: "app=" + op.name}))(t), func(event watch.Event) {
		if pod, ok := event.Object.(*core.Pod); ok && isUninjected(pod) && (event.Type == watch.Deleted || hasEnded(pod)) {
			history.recordPodEnd(pod)
		}
	})
	t.Cleanup(history.stopRecording)
	return history
}

// isUninjected returns whether a pod was created before its workload asked for a sidecar.
func isUninjected(pod *core.Pod) bool { return pod.Labels[enableLabel] == "" }

// hasEnded returns whether no container runs or will run.
func hasEnded(pod *core.Pod) bool {
	return pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed
}

// lastHandled returns the last observed step of an object, and by whom.
func lastHandled(object *core.ConfigMap) string {
	return object.Data["observed"] + " by " + object.Data["by"]
}

func (history *writeHistory) readStream(stream watch.Interface, note func(watch.Event)) {
	history.streams = append(history.streams, stream)
	history.done.Go(func() {
		for event := range stream.ResultChan() {
			note(event)
		}
	})
}

func (history *writeHistory) stopRecording() {
	for _, stream := range history.streams {
		stream.Stop()
	}
	history.done.Wait()
}

func (history *writeHistory) recordPodEnd(pod *core.Pod) {
	history.mu.Lock()
	defer history.mu.Unlock()
	if history.podEnds[pod.Name] == 0 {
		history.podEnds[pod.Name] = resourceVersion(pod)
	}
}

// recordWrite records a child when it is created, and an object when another step was observed, or the same one by
// another pod.
func (history *writeHistory) recordWrite(object *core.ConfigMap, kind watch.EventType, observed map[string]string) {
	if !slices.Contains(slices.Concat(history.op.teams...), object.Namespace) {
		return
	}
	name, step, isChild := strings.Cut(object.Name, "-step-")
	w := stepWrite{version: resourceVersion(object), key: object.Namespace + "/" + name, writer: object.Data["by"], isChildObject: isChild, seen: time.Now()}
	if isChild && kind != watch.Added {
		return // the manager labels it
	}
	if !isChild {
		step = object.Data["observed"]
		if step == "" || observed[w.key] == lastHandled(object) {
			return
		}
		observed[w.key] = lastHandled(object)
	}
	number, err := strconv.Atoi(step)
	if err != nil {
		return // not an object of this operator
	}
	w.step = number
	history.mu.Lock()
	defer history.mu.Unlock()
	history.writes = append(history.writes, w)
	if !isChild {
		history.observedSteps[w.key] = max(history.observedSteps[w.key], number)
	}
	if since, waits := history.waitingSince[w.key]; waits && !isChild {
		history.longestWait = max(history.longestWait, w.seen.Sub(since))
		delete(history.waitingSince, w.key)
	}
}

// resourceVersion is the API server's order of writes.
func resourceVersion(object meta.Object) uint64 {
	number, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err) // resource versions are numbers: by contract since Kubernetes 1.35, in fact before
	}
	return number
}

// requestSteps requests a step of one object after another, each only once its previous step is handled, until the
// returned function is called. That function waits for pending steps.
func (history *writeHistory) requestSteps(t *testing.T) (stop func(*testing.T)) {
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
			key := history.nextObject()
			if key == "" {
				continue
			}
			if err := history.op.requestStep(t.Context(), key); err != nil && t.Context().Err() == nil {
				t.Errorf("request a step: %v", err)
				return
			}
		}
	}()
	return func(t *testing.T) {
		t.Helper()
		close(ended)
		<-done
		eventually(t, "every step is handled", func() error { return history.checkNoneWaiting() })
	}
}

// nextObject returns an object without a pending step, which has one from now on; empty if there is none.
func (history *writeHistory) nextObject() string {
	history.mu.Lock()
	defer history.mu.Unlock()
	var idle []string
	for key := range history.op.steps {
		if history.waitingSince[key].IsZero() {
			idle = append(idle, key)
		}
	}
	if len(idle) == 0 {
		return ""
	}
	key := idle[rand.IntN(len(idle))]
	history.waitingSince[key] = time.Now()
	return key
}

// checkCaughtUp returns an error while watch events of handled steps are missing.
func (history *writeHistory) checkCaughtUp() error {
	history.mu.Lock()
	defer history.mu.Unlock()
	if !maps.Equal(history.observedSteps, history.op.steps) {
		return fmt.Errorf("observed are %v of %v", history.observedSteps, history.op.steps)
	}
	return nil
}

// sortedWrites returns all writes in the API server's order.
func (history *writeHistory) sortedWrites() []stepWrite {
	return slices.SortedFunc(slices.Values(history.writes), func(a, b stepWrite) int { return cmp.Compare(a.version, b.version) })
}
