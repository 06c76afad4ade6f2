package lifecycle

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file measures how long pods take to start and to end: without a sidecar, with a native sidecar that does
// nothing, and with ours.

const (
	// podsPerKind pods of each kind run once, podsAtATime of them side by side.
	podsPerKind, podsAtATime = 8, 2
	// startBound is how much later an operator may start because of its sidecar, on an otherwise idle machine: there an
	// operator without a sidecar starts within quietStart. If that takes longer, the bound grows in proportion, up to
	// maxSlowdown times.
	startBound, quietStart, maxSlowdown = time.Second, 700 * time.Millisecond, 2.0
	// debugBound is startBound for debug builds, which compile plugins more slowly than release builds.
	debugBound = 1500 * time.Millisecond
	// endBound is how much longer our sidecar may take to end than one that exits on SIGTERM at once.
	endBound = 300 * time.Millisecond
	// idleSidecar is the sidecar that does nothing.
	idleSidecar = "idle"
)

// podKinds maps kinds of pods to their native sidecars.
var podKinds = map[string]string{"plain": "", "idle": idleSidecar, "mesh": proxyContainer}

// podTimings are the measurements of one pod.
type podTimings struct {
	kind, pod string
	// start is from the request that creates the pod to the operator's first log line, sidecar to the sidecar's first
	// line, and chain until the sidecar's chain is in force.
	start, sidecar, chain time.Duration
	// end is from the request that deletes the pod until it is gone.
	end time.Duration
	// last is from the exit of the operator to the exit of the sidecar.
	last time.Duration
}

func (l *lifecycle) testPodLatency(t *testing.T) {
	op := l.newOperator("delay", []string{"team-o"})
	l.apply(t, op.permissions())
	l.apply(t, op.shardingConfigsByApp())
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Distributed", "--all", "shardingconfigs", "--timeout="+waitTimeout.String())
	found := map[string][]*podTimings{}
	for range podsPerKind / podsAtATime {
		for _, timings := range op.runPods(t) {
			found[timings.kind] = append(found[timings.kind], timings)
		}
	}
	begins := func(timings *podTimings) time.Duration { return timings.start }
	ends := func(timings *podTimings) time.Duration { return timings.end }
	for kind := range podKinds {
		t.Logf("%s: start %s; gone %s", kind, summary(durationsOf(found[kind], begins)), summary(durationsOf(found[kind], ends)))
	}
	t.Logf("our sidecar's first log line: %s", summary(durationsOf(found["mesh"], func(timings *podTimings) time.Duration { return timings.sidecar })))
	t.Logf("its chain in force: %s", summary(durationsOf(found["mesh"], func(timings *podTimings) time.Duration { return timings.chain })))
	last := func(timings *podTimings) time.Duration { return timings.last }
	for _, kind := range []string{"idle", "mesh"} {
		t.Logf("%s: the sidecar ended %s after the operator", kind, summary(durationsOf(found[kind], last)))
	}
	more := func(of func(*podTimings) time.Duration, than string) time.Duration {
		return percentile(durationsOf(found["mesh"], of), 50) - percentile(durationsOf(found[than], of), 50)
	}
	start, end := more(begins, "plain"), more(last, "idle")
	t.Logf("with our sidecar an operator starts %s later, %s later than with an idle one", rounded(start), rounded(more(begins, "idle")))
	t.Logf("its pod ends %s later, %s later than with an idle one; the sidecar took %s of that", rounded(more(ends, "plain")), rounded(more(ends, "idle")), rounded(end))
	bound := startBound
	if os.Getenv(imagesVariable) == "" {
		bound = debugBound
	}
	busy := min(maxSlowdown, max(1, percentile(durationsOf(found["plain"], begins), 50).Seconds()/quietStart.Seconds()))
	if bound := time.Duration(busy * float64(bound)); start >= bound {
		t.Errorf("an operator starts %s later, the bound is %s", rounded(start), rounded(bound))
	}
	if end >= endBound {
		t.Errorf("our sidecar takes %s longer to end than one that does nothing", rounded(end))
	}
}

func durationsOf(lives []*podTimings, of func(*podTimings) time.Duration) []time.Duration {
	var found []time.Duration
	for _, timings := range lives {
		found = append(found, of(timings))
	}
	return found
}

// runPods runs pods of all kinds, one after the other in random order, and then deletes them all.
func (op *operator) runPods(t *testing.T) []*podTimings {
	t.Helper()
	var found []*podTimings
	for i := range podsAtATime {
		for _, k := range rand.Perm(len(podKinds)) {
			kind := slices.Sorted(maps.Keys(podKinds))[k]
			timings := &podTimings{kind: kind, pod: fmt.Sprintf("%s-%d", kind, i)}
			op.startPod(t, timings)
			found = append(found, timings)
		}
	}
	// Kubelet has nothing else to do for them then.
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Ready", "pods", "--all", "--timeout="+waitTimeout.String())
	op.deletePods(t, found)
	return found
}

// startPod starts one pod and waits until its operator works.
func (op *operator) startPod(t *testing.T, timings *podTimings) {
	t.Helper()
	manifest := op.singlePod(timings.pod, timings.kind == "mesh")
	if timings.kind == "idle" {
		manifest["spec"].(map[string]any)["initContainers"] = []any{map[string]any{
			"name": idleSidecar, "image": realnode.WorkloadImage, "args": []string{"sleep"}, "restartPolicy": core.ContainerRestartPolicyAlways,
		}}
	}
	var pod core.Pod
	check(t, json.Unmarshal([]byte(asYAML(manifest)), &pod))
	begin := time.Now()
	must(op.node.Client.CoreV1().Pods(op.name).Create(t.Context(), &pod, meta.CreateOptions{}))(t)
	eventually(t, timings.pod+" works", func() error {
		first, err := op.logTime(t, timings.pod, operatorContainer, "")
		timings.start = first.Sub(begin)
		return err
	})
	if timings.kind == "mesh" {
		timings.sidecar = must(op.logTime(t, timings.pod, proxyContainer, ""))(t).Sub(begin)
		timings.chain = must(op.logTime(t, timings.pod, proxyContainer, "chain in force"))(t).Sub(begin)
	}
}

// deletePods deletes pods and records how long each takes to end.
func (op *operator) deletePods(t *testing.T, all []*podTimings) {
	t.Helper()
	pods := op.node.Client.CoreV1().Pods(op.name)
	begun, between := map[*podTimings]time.Time{}, map[*podTimings]func() time.Duration{}
	for _, timings := range all {
		between[timings] = op.exitGap(t, timings.pod, operatorContainer, podKinds[timings.kind])
	}
	for _, timings := range all {
		begun[timings] = time.Now()
		check(t, pods.Delete(t.Context(), timings.pod, meta.DeleteOptions{}))
	}
	eventually(t, "the pods are gone", func() error {
		for timings, begin := range begun {
			if _, err := pods.Get(t.Context(), timings.pod, meta.GetOptions{}); kerrors.IsNotFound(err) {
				timings.end, timings.last = time.Since(begin), between[timings]()
				delete(begun, timings)
			}
		}
		if len(begun) > 0 {
			return fmt.Errorf("%d pods are left", len(begun))
		}
		return nil
	})
}

// exitGap returns a function for the time between the exits of two containers, once both have exited. Without the
// second container it is zero.
func (op *operator) exitGap(t *testing.T, pod, first, last string) func() time.Duration {
	t.Helper()
	if last == "" {
		return func() time.Duration { return 0 }
	}
	firstEnds, lastEnds := must(op.node.WatchExit(t.Context(), op.name, pod, first))(t), must(op.node.WatchExit(t.Context(), op.name, pod, last))(t)
	return func() time.Duration {
		t.Helper()
		return must(lastEnds())(t).Sub(must(firstEnds())(t))
	}
}

// logTime returns when a container wrote its first line that contains a text, by this machine's clock.
func (op *operator) logTime(t *testing.T, pod, container, text string) (time.Time, error) {
	t.Helper()
	options := &core.PodLogOptions{Container: container, Timestamps: true}
	log, err := op.node.Client.CoreV1().Pods(op.name).GetLogs(pod, options).DoRaw(t.Context())
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(log)) {
		if stamp, rest, _ := strings.Cut(line, " "); strings.Contains(rest, text) {
			return time.Parse(time.RFC3339Nano, stamp)
		}
	}
	return time.Time{}, fmt.Errorf("%s has not written %q", container, text)
}
