// Package lifecycle does, on a real node, what a platform engineer does with ctrlmesh: install it, give an
// unmodified operator sidecars, shard, re-shard, cause failures, uninstall. It uses kubectl, as the documents say.
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

func TestInstallUseAndUninstall(t *testing.T) {
	l := newLifecycle(t)
	// Settings for the registry in the cluster, which speaks plain HTTP, and for all sidecars (see
	// pod_settings_test.go).
	l.settings = map[string]string{
		"CTRLMESH_INSECURE_REGISTRIES": registryHost, "CTRLMESH_PROXY_EXTRA_ENVS": extraEnvs,
		"CTRLMESH_PROXY_LOG": proxyLog, "CTRLMESH_PROXY_MEMORY": proxyMemory,
	}
	l.runSteps(t, []step{
		{"managers_are_installed", l.testInstall},
		{"operator_is_sharded", l.testSharding},
		{"objects_move_to_other_shard", l.testReshard},
		{"breaker_takes_effect", l.testBreaker},
		{"rules_take_effect_soon", l.testRuleLatency},
		{"fault_takes_effect", l.testFault},
		{"plugin_comes_from_registry", l.testRegistryPlugin},
		{"probes_report_the_operator", func(t *testing.T) { l.mainOperator.testProbes(t) }},
		{"no_container_has_restarted", l.assertNotRestarted},
		{"containers_crash", l.testContainerCrashes},
		{"leading_manager_crashes", l.testLeaderCrash},
		{"hung_sidecar_is_named", l.testHungSidecar},
		{"pods_run_without_managers", l.testWithoutManagers},
		{"pod_settings_take_effect", l.testPodSettings},
		{"sidecars_are_upgraded", l.testSidecarUpgrade},
		{"other_injection_modes_work", l.testInjectionModes},
		{"pods_start_and_end_in_time", l.testPodLatency},
		{"everything_is_uninstalled", l.testUninstall},
	})
}

type step struct {
	name string
	run  func(*testing.T)
}

// newLifecycle starts a node.
func newLifecycle(t *testing.T) *lifecycle {
	t.Helper()
	l := &lifecycle{node: realnode.StartForTest(t, realnode.Options{})}
	t.Cleanup(func() {
		if t.Failed() {
			l.logClusterState(t)
		}
	})
	return l
}

// runSteps runs steps in order, up to the first that fails.
func (l *lifecycle) runSteps(t *testing.T, chapters []step) {
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
func (l *lifecycle) kubectl(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	return must(l.node.Kubectl(t.Context(), input, arguments...))(t)
}

func (l *lifecycle) apply(t *testing.T, manifest string) {
	t.Helper()
	l.kubectl(t, manifest, "apply", "--filename=-")
}

// logClusterState is called when a step failed: the node still runs, but the test's context is cancelled.
func (l *lifecycle) logClusterState(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	show := func(arguments ...string) {
		output, err := l.node.Kubectl(ctx, "", arguments...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	show("get", "pods", "--all-namespaces", "--output=wide")
	show("get", "shardingconfigs,circuitbreakers,faultinjections", "--all-namespaces", "--output=yaml")
	show("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
	pods, err := l.node.Client.CoreV1().Pods("").List(ctx, meta.ListOptions{})
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
