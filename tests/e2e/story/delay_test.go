package story

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

// This file compares how long pods take to start and to go: without a sidecar, with a native sidecar that does nothing, and with ours.

const (
	// lives are how many pods of each kind live once, and beside each other so many.
	lives, atATime = 8, 2
	// startBound is how much later an operator may start for its sidecar, on a machine that has little else to do: there one without a
	// sidecar starts within quietStart. Where that takes longer, so may this, as much, up to mostBusy times.
	startBound, quietStart, mostBusy = time.Second, 700 * time.Millisecond, 2.0
	// debugBound is the same of debug programs, which compile plugins for longer than those of the images that people install.
	debugBound = 1500 * time.Millisecond
	// endBound is how much longer our sidecar may take than one that ends as soon as it is told to.
	endBound = 300 * time.Millisecond
	// idleContainer is that one.
	idleContainer = "idle"
)

// kinds of pods, and their native sidecars.
var kinds = map[string]string{"plain": "", "idle": idleContainer, "mesh": proxyContainer}

// life of a pod.
type life struct {
	kind, pod string
	// start is from the request that makes the pod to the operator's first word; sidecar, to the sidecar's; chain, until that has one.
	start, sidecar, chain time.Duration
	// end is from the request that deletes the pod until it is gone.
	end time.Duration
	// last is from the end of the operator's process to that of the sidecar's.
	last time.Duration
}

func (s *story) isNotSlowed(t *testing.T) {
	o := s.operator("delay", []string{"team-o"})
	s.apply(t, o.permissions())
	s.apply(t, o.shardsByApp())
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Distributed", "--all", "shardingconfigs", "--timeout="+patience.String())
	found := map[string][]*life{}
	for range lives / atATime {
		for _, l := range o.live(t) {
			found[l.kind] = append(found[l.kind], l)
		}
	}
	begins := func(l *life) time.Duration { return l.start }
	ends := func(l *life) time.Duration { return l.end }
	for kind := range kinds {
		t.Logf("%s: start %s; gone %s", kind, figures(all(found[kind], begins)), figures(all(found[kind], ends)))
	}
	t.Logf("our sidecar's first word: %s", figures(all(found["mesh"], func(l *life) time.Duration { return l.sidecar })))
	t.Logf("its chain in force: %s", figures(all(found["mesh"], func(l *life) time.Duration { return l.chain })))
	last := func(l *life) time.Duration { return l.last }
	for _, kind := range []string{"idle", "mesh"} {
		t.Logf("%s: the sidecar ended %s after the operator", kind, figures(all(found[kind], last)))
	}
	more := func(of func(*life) time.Duration, than string) time.Duration {
		return percentile(all(found["mesh"], of), 50) - percentile(all(found[than], of), 50)
	}
	start, end := more(begins, "plain"), more(last, "idle")
	t.Logf("with our sidecar an operator starts %s later, %s later than with an idle one", rounded(start), rounded(more(begins, "idle")))
	t.Logf("and its pod goes %s later, %s later than with an idle one, of which the sidecar took %s", rounded(more(ends, "plain")), rounded(more(ends, "idle")), rounded(end))
	bound := startBound
	if os.Getenv(imagesVariable) == "" {
		bound = debugBound
	}
	busy := min(mostBusy, max(1, percentile(all(found["plain"], begins), 50).Seconds()/quietStart.Seconds()))
	if bound := time.Duration(busy * float64(bound)); start >= bound {
		t.Errorf("an operator starts %s later, and may %s", rounded(start), rounded(bound))
	}
	if end >= endBound {
		t.Errorf("our sidecar takes %s longer to end than one that does nothing", rounded(end))
	}
}

func all(lives []*life, of func(*life) time.Duration) []time.Duration {
	var found []time.Duration
	for _, l := range lives {
		found = append(found, of(l))
	}
	return found
}

// live runs pods of all kinds, one after the other, each time in another order, and ends them all.
func (o *operator) live(t *testing.T) []*life {
	t.Helper()
	var found []*life
	for i := range atATime {
		for _, k := range rand.Perm(len(kinds)) {
			kind := slices.Sorted(maps.Keys(kinds))[k]
			l := &life{kind: kind, pod: fmt.Sprintf("%s-%d", kind, i)}
			o.begin(t, l)
			found = append(found, l)
		}
	}
	// Kubelet has nothing else to do for them then.
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Ready", "pods", "--all", "--timeout="+patience.String())
	o.end(t, found)
	return found
}

// begin runs one pod of the operator until it has begun to work.
func (o *operator) begin(t *testing.T, l *life) {
	t.Helper()
	manifest := o.single(l.pod, l.kind == "mesh")
	if l.kind == "idle" {
		manifest["spec"].(map[string]any)["initContainers"] = []any{map[string]any{
			"name": idleContainer, "image": realnode.WorkloadImage, "args": []string{"sleep"}, "restartPolicy": core.ContainerRestartPolicyAlways,
		}}
	}
	var pod core.Pod
	check(t, json.Unmarshal([]byte(asYAML(manifest)), &pod))
	begin := time.Now()
	must(o.node.Client.CoreV1().Pods(o.name).Create(t.Context(), &pod, meta.CreateOptions{}))(t)
	eventually(t, l.pod+" works", func() error {
		first, err := o.said(t, l.pod, mainContainer, "")
		l.start = first.Sub(begin)
		return err
	})
	if l.kind == "mesh" {
		l.sidecar = must(o.said(t, l.pod, proxyContainer, ""))(t).Sub(begin)
		l.chain = must(o.said(t, l.pod, proxyContainer, "chain is in force"))(t).Sub(begin)
	}
}

// end deletes pods and notes how long each takes to go.
func (o *operator) end(t *testing.T, all []*life) {
	t.Helper()
	pods := o.node.Client.CoreV1().Pods(o.name)
	begun, between := map[*life]time.Time{}, map[*life]func() time.Duration{}
	for _, l := range all {
		between[l] = o.between(t, l.pod, mainContainer, kinds[l.kind])
	}
	for _, l := range all {
		begun[l] = time.Now()
		check(t, pods.Delete(t.Context(), l.pod, meta.DeleteOptions{}))
	}
	eventually(t, "the pods are gone", func() error {
		for l, begin := range begun {
			if _, err := pods.Get(t.Context(), l.pod, meta.GetOptions{}); kerrors.IsNotFound(err) {
				l.end, l.last = time.Since(begin), between[l]()
				delete(begun, l)
			}
		}
		if len(begun) > 0 {
			return fmt.Errorf("there are %d", len(begun))
		}
		return nil
	})
}

// between is how long one container of a pod runs after the end of another, once both have ended. Without the former it is nothing.
func (o *operator) between(t *testing.T, pod, first, last string) func() time.Duration {
	t.Helper()
	if last == "" {
		return func() time.Duration { return 0 }
	}
	firstEnds, lastEnds := must(o.node.End(t.Context(), o.name, pod, first))(t), must(o.node.End(t.Context(), o.name, pod, last))(t)
	return func() time.Duration {
		t.Helper()
		return must(lastEnds())(t).Sub(must(firstEnds())(t))
	}
}

// said is when a container wrote its first line with this in it, by the clock of this machine.
func (o *operator) said(t *testing.T, pod, container, text string) (time.Time, error) {
	t.Helper()
	options := &core.PodLogOptions{Container: container, Timestamps: true}
	log, err := o.node.Client.CoreV1().Pods(o.name).GetLogs(pod, options).DoRaw(t.Context())
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
