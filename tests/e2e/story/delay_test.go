package story

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file compares how long pods take to start and to go, with a sidecar and without.

const (
	// lives are how many pods of each kind live once.
	lives = 3
	// endBound is how much longer a pod with a sidecar may take to go. Kubelet looks once a second whether containers have ended, and
	// once more for the pod, so that two seconds are chance. Whoever is waited for takes all of the grace period.
	endBound = 3 * time.Second
)

// life of a pod.
type life struct {
	// start is from the request that makes the pod to the operator's first word; sidecar, to the sidecar's.
	start, sidecar time.Duration
	// end is from the request that deletes the pod until it is gone.
	end time.Duration
}

func (s *story) isNotSlowed(t *testing.T) {
	o := s.operator("delay", []string{"team-o"})
	s.apply(t, o.permissions())
	s.apply(t, strings.ReplaceAll(o.shards(), "statefulset.kubernetes.io/pod-name: "+o.pod(0), "app: "+o.name))
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Distributed", "--all", "shardingconfigs", "--timeout="+patience.String())
	found := map[bool]map[string][]time.Duration{true: {}, false: {}}
	for i := range lives {
		for mesh, all := range found {
			l := o.lives(t, fmt.Sprintf("delay-%d-%t", i, mesh), mesh)
			all["start"] = append(all["start"], l.start)
			all["end"] = append(all["end"], l.end)
			if mesh {
				all["sidecar"] = append(all["sidecar"], l.sidecar)
			}
		}
	}
	for _, what := range []string{"start", "end"} {
		with, without := found[true][what], found[false][what]
		t.Logf("%s without a sidecar: %s", what, figures(without))
		t.Logf("%s with a sidecar: %s", what, figures(with))
		t.Logf("%s: %s more", what, rounded(percentile(with, 50)-percentile(without, 50)))
	}
	t.Logf("the sidecar's first word: %s", figures(found[true]["sidecar"]))
	if more := percentile(found[true]["end"], 50) - percentile(found[false]["end"], 50); more > endBound {
		t.Errorf("pods with a sidecar take %s longer to go", rounded(more))
	}
}

// lives runs one pod of the operator until it has begun to work.
func (o *operator) lives(t *testing.T, name string, mesh bool) life {
	t.Helper()
	pod := o.template(mesh)
	pod["apiVersion"], pod["kind"] = "v1", "Pod"
	metadata := pod["metadata"].(map[string]any)
	metadata["name"], metadata["namespace"] = name, o.name
	text := string(must(json.Marshal(pod))(t))
	begin := time.Now()
	o.apply(t, text)
	var l life
	eventually(t, name+" works", func() error {
		first, err := o.firstWord(t, name, mainContainer)
		l.start = first.Sub(begin)
		return err
	})
	if mesh {
		first, err := o.firstWord(t, name, proxyContainer)
		check(t, err)
		l.sidecar = first.Sub(begin)
	}
	pods := o.node.Client.CoreV1().Pods(o.name)
	begin = time.Now()
	check(t, pods.Delete(t.Context(), name, meta.DeleteOptions{}))
	eventually(t, name+" is gone", func() error {
		_, err := pods.Get(t.Context(), name, meta.GetOptions{})
		if kerrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there (%w)", err)
	})
	l.end = time.Since(begin)
	return l
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
