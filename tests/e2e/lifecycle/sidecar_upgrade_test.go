package lifecycle

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

// This file upgrades the sidecars of a busy operator as docs/install.md says.

// testSidecarUpgrade configures another image in the managers, and restarts the operator, pod by pod.
func (l *lifecycle) testSidecarUpgrade(t *testing.T) {
	op := l.mainOperator
	name, _ := nameAndTag(l.proxyImage)
	next := name + ":next"
	check(t, l.node.TagImage(t.Context(), l.proxyImage, next))
	history := op.recordWrites(t)
	ready := op.trackReady(t)
	stop := history.requestSteps(t)
	l.proxyImage = next
	l.writeOverlay(t)
	begin := time.Now()
	l.runSection(t, "Upgrading", "-k FOLDER", "-k "+l.overlay, "NAMESPACE", op.name, "statefulset/operator", "statefulset/"+op.name)
	t.Logf("%d pods had the new sidecar %s after the overlay was applied", op.replicas, rounded(time.Since(begin)))
	stop(t)
	op.assertSidecarRolledOut(t, next, ready())
	history.assertShardOwners(t)
}

// assertSidecarRolledOut asserts that each pod has this sidecar and its share of the work after a restart, pod by pod:
// at least all but one were ready at any time; `fewest` is the smallest number.
func (op *operator) assertSidecarRolledOut(t *testing.T, image string, fewest int) {
	t.Helper()
	for _, pod := range op.podNames() {
		if found := sidecarImage(op.getPod(t, pod)); found != image {
			t.Errorf("the sidecar of %s is %s", pod, found)
		}
	}
	if fewest != op.replicas-1 {
		t.Errorf("of %d pods only %d were ready at one time", op.replicas, fewest)
	}
	op.waitEnforced(t)
	op.assertStepsHandled(t)
	for i, pod := range op.podNames() {
		op.assertVisible(t, pod, op.teams[i]...)
	}
	op.assertLeaders(t)
}

func sidecarImage(pod *core.Pod) string {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if container.Name == proxyContainer {
			return container.Image
		}
	}
	return ""
}

// trackReady returns a function for the smallest number of the operator's pods that were ready at one time since.
func (op *operator) trackReady(t *testing.T) (fewest func() int) {
	t.Helper()
	pods := op.node.Client.CoreV1().Pods(op.name)
	options := meta.ListOptions{LabelSelector: "app=" + op.name}
	list := must(pods.List(t.Context(), options))(t)
	ready := map[string]bool{}
	for _, pod := range list.Items {
		ready[pod.Name] = checkReady(&pod, true) == nil
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
				ready[pod.Name] = event.Type != watch.Deleted && checkReady(pod, true) == nil
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

// assertShardOwners asserts that every write is by the pod of its shard, and that every step was handled.
func (history *writeHistory) assertShardOwners(t *testing.T) {
	t.Helper()
	eventually(t, "every step is recorded", history.checkCaughtUp)
	history.mu.Lock()
	defer history.mu.Unlock()
	for _, w := range history.sortedWrites() {
		if team, _, _ := strings.Cut(w.key, "/"); w.writer != history.op.ownerPod(team) {
			t.Errorf("step %d of %s was handled by %s", w.step, w.key, w.writer)
		}
	}
	history.assertAllHandled(t)
	t.Logf("%d writes, each by the pod of its shard; an object waited for %s at most", len(history.writes), rounded(history.longestWait))
}
