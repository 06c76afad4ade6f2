package story

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// This file brings an operator at work another version of its sidecar, in the words of docs/install.md.

// isUpgraded: the managers are told of another image, and a restart of the operator brings it, pod by pod.
func (s *story) isUpgraded(t *testing.T) {
	o := s.main
	name, _ := nameAndTag(s.proxyImage)
	next := name + ":next"
	check(t, s.node.TagImage(t.Context(), s.proxyImage, next))
	l := o.follow(t)
	ready := o.countsReady(t)
	stop := l.work(t)
	s.proxyImage = next
	s.writeOverlay(t)
	begin := time.Now()
	s.documented(t, "Upgrading", "-k deploy/", "-k "+s.overlay, "NAMESPACE", o.name, "statefulset/operator", "statefulset/"+o.name)
	t.Logf("%d pods had the other sidecar %s after the overlay was applied", o.replicas, rounded(time.Since(begin)))
	stop(t)
	o.hasSidecar(t, next, ready())
	l.judgeShards(t)
}

// hasSidecar demands that each pod has this sidecar and its share of the work after a restart, pod by pod: all but one were ready at any time,
// `fewest` at the least.
func (o *operator) hasSidecar(t *testing.T, image string, fewest int) {
	t.Helper()
	for _, pod := range o.pods() {
		if found := sidecarImage(o.get(t, pod)); found != image {
			t.Errorf("the sidecar of %s is %s", pod, found)
		}
	}
	if fewest != o.replicas-1 {
		t.Errorf("of %d pods %d were ready at one time", o.replicas, fewest)
	}
	o.enforced(t)
	o.handled(t)
	for i, pod := range o.pods() {
		o.sees(t, pod, o.teams[i]...)
	}
	o.leads(t)
}

func sidecarImage(pod *core.Pod) string {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if container.Name == proxyContainer {
			return container.Image
		}
	}
	return ""
}

// countsReady returns a function that tells how many of the operator's pods were ready at a time since, at least.
func (o *operator) countsReady(t *testing.T) (fewest func() int) {
	t.Helper()
	pods := o.node.Client.CoreV1().Pods(o.name)
	options := meta.ListOptions{LabelSelector: "app=" + o.name}
	list := must(pods.List(t.Context(), options))(t)
	ready := map[string]bool{}
	for _, pod := range list.Items {
		ready[pod.Name] = isReady(&pod, true) == nil
	}
	options.ResourceVersion = list.ResourceVersion
	stream := must(pods.Watch(t.Context(), options))(t)
	count := func() (n int) {
		for _, is := range ready {
			if is {
				n++
			}
		}
		return n
	}
	least := count()
	var done sync.WaitGroup
	done.Go(func() {
		for event := range stream.ResultChan() {
			if pod, ok := event.Object.(*core.Pod); ok {
				ready[pod.Name] = event.Type != watch.Deleted && isReady(pod, true) == nil
				least = min(least, count())
			}
		}
	})
	return func() int {
		stream.Stop()
		done.Wait()
		return least
	}
}

// judgeShards demands of every write that it is by the pod of its shard, and of every step that it was handled.
func (l *ledger) judgeShards(t *testing.T) {
	t.Helper()
	eventually(t, "every step is noted", l.behind)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.sorted() {
		if team, _, _ := strings.Cut(w.key, "/"); w.by != l.o.owner(team) {
			t.Errorf("step %d of %s was handled by %s", w.step, w.key, w.by)
		}
	}
	l.allHandled(t)
	t.Logf("%d writes, each by the pod of its shard; an object waited for %s at most", len(l.writes), rounded(l.longest))
}
