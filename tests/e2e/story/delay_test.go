package story

import (
	"encoding/json"
	"fmt"
	"maps"
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
	// lives are how many pods of each kind live once.
	lives = 8
	// startBound is how much later an operator may start for its sidecar.
	startBound = time.Second
	// endBound is how much longer our sidecar may take than one that ends as soon as it is told to.
	endBound = 300 * time.Millisecond
	// idleContainer is that one.
	idleContainer = "idle"
)

// kinds of pods, and their native sidecars.
var kinds = map[string]string{"plain": "", "idle": idleContainer, "mesh": proxyContainer}

// life of a pod.
type life struct {
	// start is from the request that makes the pod to the operator's first word; sidecar, to the sidecar's.
	start, sidecar time.Duration
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
	found := map[string][]life{}
	for i := range lives {
		for kind, l := range o.livesOnce(t, i) {
			found[kind] = append(found[kind], l)
		}
	}
	begins := func(l life) time.Duration { return l.start }
	ends := func(l life) time.Duration { return l.end }
	for kind := range kinds {
		t.Logf("%s: start %s; gone %s", kind, figures(all(found[kind], begins)), figures(all(found[kind], ends)))
	}
	t.Logf("our sidecar's first word: %s", figures(all(found["mesh"], func(l life) time.Duration { return l.sidecar })))
	last := func(l life) time.Duration { return l.last }
	for _, kind := range []string{"idle", "mesh"} {
		t.Logf("%s: the sidecar ended %s after the operator", kind, figures(all(found[kind], last)))
	}
	more := func(of func(life) time.Duration, than string) time.Duration {
		return percentile(all(found["mesh"], of), 50) - percentile(all(found[than], of), 50)
	}
	start, end := more(begins, "plain"), more(last, "idle")
	t.Logf("with our sidecar an operator starts %s later, %s later than with an idle one", rounded(start), rounded(more(begins, "idle")))
	t.Logf("and its pod goes %s later, %s later than with an idle one, of which the sidecar took %s", rounded(more(ends, "plain")), rounded(more(ends, "idle")), rounded(end))
	if start >= startBound {
		t.Errorf("an operator starts %s later", rounded(start))
	}
	if end >= endBound {
		t.Errorf("our sidecar takes %s longer to end than one that does nothing", rounded(end))
	}
}

func all(lives []life, of func(life) time.Duration) []time.Duration {
	var found []time.Duration
	for _, l := range lives {
		found = append(found, of(l))
	}
	return found
}

// livesOnce runs a pod of each kind, one after the other, each time in another order, and ends them all.
func (o *operator) livesOnce(t *testing.T, round int) map[string]life {
	t.Helper()
	order := []string{"plain", "idle", "mesh"}
	order = append(order[round%3:], order[:round%3]...)
	found := map[string]life{}
	for _, kind := range order {
		found[kind] = o.begins(t, kind, podName(kind, round))
	}
	// Kubelet has nothing else to do for them then.
	for _, kind := range order {
		o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Ready", "pod/"+podName(kind, round), "--timeout="+patience.String())
	}
	o.end(t, round, found)
	return found
}

func podName(kind string, round int) string { return fmt.Sprintf("delay-%d-%s", round, kind) }

// begins runs one pod of the operator until it has begun to work.
func (o *operator) begins(t *testing.T, kind, name string) life {
	t.Helper()
	manifest := o.single(name, kind == "mesh")
	if kind == "idle" {
		manifest["spec"].(map[string]any)["initContainers"] = []any{map[string]any{
			"name": idleContainer, "image": realnode.WorkloadImage, "args": []string{"sleep"}, "restartPolicy": core.ContainerRestartPolicyAlways,
		}}
	}
	var pod core.Pod
	check(t, json.Unmarshal([]byte(asYAML(manifest)), &pod))
	begin := time.Now()
	must(o.node.Client.CoreV1().Pods(o.name).Create(t.Context(), &pod, meta.CreateOptions{}))(t)
	var l life
	eventually(t, name+" works", func() error {
		first, err := o.firstWord(t, name, mainContainer)
		l.start = first.Sub(begin)
		return err
	})
	if kind == "mesh" {
		first, err := o.firstWord(t, name, proxyContainer)
		check(t, err)
		l.sidecar = first.Sub(begin)
	}
	return l
}

// end deletes the pods of a round and notes how long each takes to go.
func (o *operator) end(t *testing.T, round int, found map[string]life) {
	t.Helper()
	pods := o.node.Client.CoreV1().Pods(o.name)
	begun, between := map[string]time.Time{}, map[string]func() time.Duration{}
	for kind, sidecar := range kinds {
		between[kind] = o.between(t, podName(kind, round), mainContainer, sidecar)
	}
	for kind := range kinds {
		begun[kind] = time.Now()
		check(t, pods.Delete(t.Context(), podName(kind, round), meta.DeleteOptions{}))
	}
	eventually(t, "the pods are gone", func() error {
		for kind, begin := range begun {
			if _, err := pods.Get(t.Context(), podName(kind, round), meta.GetOptions{}); kerrors.IsNotFound(err) {
				l := found[kind]
				l.end, l.last = time.Since(begin), between[kind]()
				found[kind] = l
				delete(begun, kind)
			}
		}
		if len(begun) > 0 {
			return fmt.Errorf("there are %v", slices.Collect(maps.Keys(begun)))
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

// firstWord is when a container wrote its first line, by the clock of this machine.
func (o *operator) firstWord(t *testing.T, pod, container string) (time.Time, error) {
	t.Helper()
	options := &core.PodLogOptions{Container: container, Timestamps: true}
	log, err := o.node.Client.CoreV1().Pods(o.name).GetLogs(pod, options).DoRaw(t.Context())
	if err != nil {
		return time.Time{}, err
	}
	stamp, _, isLine := strings.Cut(string(log), " ")
	if !isLine {
		return time.Time{}, fmt.Errorf("%s has written nothing", container)
	}
	return time.Parse(time.RFC3339Nano, stamp)
}
