// Package story tells, on a real node, what a platform engineer does with ctrlmesh from the first to the last day: install it, give
// an unmodified operator to it, shard, re-shard, break things, uninstall. By kubectl, as the documents say.
//
// Its chapters build on each other. What each part does in every case is told by the tests beside this package.
package story

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// patience bounds every wait. A quiet machine needs seconds; one on which others build needs longer than one likes.
	patience     = 3 * time.Minute
	pollInterval = 50 * time.Millisecond
)

// story is what chapters share.
type story struct {
	node *realnode.Node
	// managerImage and proxyImage are what is installed, with their tags.
	managerImage, proxyImage string
	// overlay is the directory that was applied.
	overlay string
	// settings of the managers in it, by variable.
	settings map[string]string
	// main is the operator of most chapters.
	main *operator
	// others are those of later chapters.
	mu     sync.Mutex
	others []*operator
	// born are the containers of its pods, as they were first.
	born map[string]string
}

func TestStory(t *testing.T) {
	s := newStory(t)
	// Of a registry in the cluster, which speaks plain HTTP, and of all sidecars (see says_test.go).
	s.settings = map[string]string{
		"CTRLMESH_INSECURE_REGISTRIES": registryHost, "CTRLMESH_PROXY_EXTRA_ENVS": extraEnvs,
		"CTRLMESH_PROXY_LOG": proxyLog, "CTRLMESH_PROXY_MEMORY": proxyMemory,
	}
	s.tell(t, []chapter{
		{"installed", s.isInstalled},
		{"sharded", s.isSharded},
		{"re-sharded", s.isResharded},
		{"breaker", s.obeysBreaker},
		{"rules come soon", s.takesRulesSoon},
		{"fault", s.obeysFault},
		{"plugin from a registry", s.takesPlugin},
		{"probes", func(t *testing.T) { s.main.isProbed(t) }},
		{"without a restart", s.neverRestarted},
		{"sidecar crashes", s.survivesCrash},
		{"manager crashes", s.survivesLeader},
		{"sidecar hangs", s.namesWhoHangs},
		{"no manager", s.survivesManagers},
		{"what pods say", s.obeysPods},
		{"upgraded", s.isUpgraded},
		{"other ways", s.hasOtherWays},
		{"start and end", s.isNotSlowed},
		{"uninstalled", s.isUninstalled},
	})
}

type chapter struct {
	name string
	tell func(*testing.T)
}

// newStory begins on a node of its own.
func newStory(t *testing.T) *story {
	t.Helper()
	s := &story{node: realnode.StartForTest(t, realnode.Options{})}
	t.Cleanup(func() {
		if t.Failed() {
			s.logs(t)
		}
	})
	return s
}

// tell runs chapters in their order, up to the first that fails.
func (s *story) tell(t *testing.T, chapters []chapter) {
	t.Helper()
	begin := time.Now()
	for _, chapter := range chapters {
		if !t.Run(chapter.name, chapter.tell) {
			break // what follows builds on it
		}
	}
	t.Logf("told in %s", rounded(time.Since(begin)))
}

// kubectl runs a command that must succeed.
func (s *story) kubectl(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	return must(s.node.Kubectl(t.Context(), input, arguments...))(t)
}

func (s *story) apply(t *testing.T, manifest string) {
	t.Helper()
	s.kubectl(t, manifest, "apply", "--filename=-")
}

// logs of a story that went wrong. The node is still there, the test's context is not.
func (s *story) logs(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	show := func(arguments ...string) {
		output, err := s.node.Kubectl(ctx, "", arguments...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	show("get", "pods", "--all-namespaces", "--output=wide")
	show("get", "shardingconfigs,circuitbreakers,faultinjections", "--all-namespaces", "--output=yaml")
	show("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
	pods, err := s.node.Client.CoreV1().Pods("").List(ctx, meta.ListOptions{})
	if err != nil {
		t.Log(err)
		return
	}
	for _, pod := range pods.Items {
		show("logs", "--namespace="+pod.Namespace, pod.Name, "--all-containers", "--tail=40", "--prefix")
	}
}

// eventually polls until the condition no longer returns an error.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-tick.C:
		}
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

// figures are what a person wants to know of many durations.
func figures(all []time.Duration) string {
	return fmt.Sprintf("p50 %s, p95 %s, max %s, of %d", rounded(percentile(all, 50)), rounded(percentile(all, 95)), rounded(percentile(all, 100)), len(all))
}

// percentile is the least duration that so many percent are no longer than.
func percentile(all []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}
