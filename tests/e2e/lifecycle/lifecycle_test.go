// Package lifecycle does, on a real node, what a platform engineer does with ctrlmesh: install it, bring an unmodified
// operator into the mesh, shard, re-shard, cause failures, uninstall. It uses kubectl, as the documents say.
//
// Its steps build on each other. The tests beside this package cover each part in more cases.
package lifecycle

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
	// waitTimeout bounds every wait. An idle machine needs seconds; one that also runs builds needs much longer.
	waitTimeout  = 3 * time.Minute
	pollInterval = 50 * time.Millisecond
)

// lifecycle is what the steps share.
type lifecycle struct {
	node *realnode.Node
	// managerImage and proxyImage are the installed images, with tags.
	managerImage, proxyImage string
	// overlay is the directory that was applied.
	overlay string
	// settings of the managers in the overlay, by variable.
	settings map[string]string
	// mainOperator is the operator of most steps.
	mainOperator *operator
	// otherOperators are those of later steps.
	mu             sync.Mutex
	otherOperators []*operator
	// firstContainers identifies the containers of its pods after the installation.
	firstContainers map[string]string
}

func TestLifecycle(t *testing.T) {
	s := newLifecycle(t)
	// Settings for the registry in the cluster, which speaks plain HTTP, and for all sidecars (see
	// pod_settings_test.go).
	s.settings = map[string]string{
		"CTRLMESH_INSECURE_REGISTRIES": registryHost, "CTRLMESH_PROXY_EXTRA_ENVS": extraEnvs,
		"CTRLMESH_PROXY_LOG": proxyLog, "CTRLMESH_PROXY_MEMORY": proxyMemory,
	}
	s.runSteps(t, []step{
		{"managers_are_installed", s.testInstall},
		{"operator_is_sharded", s.testSharding},
		{"objects_move_to_other_shard", s.testReshard},
		{"breaker_takes_effect", s.testBreaker},
		{"rules_take_effect_soon", s.testRuleLatency},
		{"fault_takes_effect", s.testFault},
		{"plugin_comes_from_registry", s.testRegistryPlugin},
		{"probes_report_the_operator", func(t *testing.T) { s.mainOperator.testProbes(t) }},
		{"no_container_has_restarted", s.assertNotRestarted},
		{"containers_crash", s.testContainerCrashes},
		{"leading_manager_crashes", s.testLeaderCrash},
		{"hung_sidecar_is_named", s.testHungSidecar},
		{"pods_run_without_managers", s.testWithoutManagers},
		{"pod_settings_take_effect", s.testPodSettings},
		{"sidecars_are_upgraded", s.testSidecarUpgrade},
		{"other_injection_modes_work", s.testInjectionModes},
		{"pods_start_and_end_in_time", s.testPodLatency},
		{"everything_is_uninstalled", s.testUninstall},
	})
}

type step struct {
	name string
	run  func(*testing.T)
}

// newLifecycle starts a node.
func newLifecycle(t *testing.T) *lifecycle {
	t.Helper()
	s := &lifecycle{node: realnode.StartForTest(t, realnode.Options{})}
	t.Cleanup(func() {
		if t.Failed() {
			s.logClusterState(t)
		}
	})
	return s
}

// runSteps runs steps in order, up to the first that fails.
func (s *lifecycle) runSteps(t *testing.T, chapters []step) {
	t.Helper()
	begin := time.Now()
	for _, chapter := range chapters {
		if !t.Run(chapter.name, chapter.run) {
			break // later steps build on it
		}
	}
	t.Logf("all steps took %s", rounded(time.Since(begin)))
}

// kubectl runs a command that must succeed.
func (s *lifecycle) kubectl(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	return must(s.node.Kubectl(t.Context(), input, arguments...))(t)
}

func (s *lifecycle) apply(t *testing.T, manifest string) {
	t.Helper()
	s.kubectl(t, manifest, "apply", "--filename=-")
}

// logClusterState is called when a step failed: the node still runs, but the test's context is cancelled.
func (s *lifecycle) logClusterState(t *testing.T) {
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
	deadline := time.After(waitTimeout)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within %s: %v", what, waitTimeout, err)
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

// summary describes the distribution of durations.
func summary(all []time.Duration) string {
	return fmt.Sprintf("p50 %s, p95 %s, max %s, of %d", rounded(percentile(all, 50)), rounded(percentile(all, 95)), rounded(percentile(all, 100)), len(all))
}

// percentile returns the smallest duration that so many percent do not exceed.
func percentile(all []time.Duration, percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, (len(sorted)*percent+99)/100-1)]
}
