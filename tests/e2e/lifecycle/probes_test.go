package lifecycle

import (
	"fmt"
	"maps"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	core "k8s.io/api/core/v1"
)

// This file lets kubelet probe operators beside their sidecars.

// healthPort is the port of the operator's probes. It differs from the sidecar's ports.
const healthPort = 8081

// probeSpec has a short period and a long timeout: it tests the result of a probe, not how fast a busy machine answers.
func probeSpec(path string, tries int) map[string]any {
	return map[string]any{
		"httpGet":       map[string]any{"path": path, "port": healthPort},
		"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": tries,
	}
}

// testProbes: pods are ready as long as their operators are, whose readiness depends on the API server's responses. No
// container restarts before or meanwhile.
func (op *operator) testProbes(t *testing.T) {
	t.Helper()
	op.assertRestartCount(t, 0)
	op.apply(t, op.faultManifest("unserved", "configmaps", "list", op.name, firstStatusCode))
	for _, pod := range op.podNames() {
		eventually(t, pod+" is not ready because its operator is not", func() error { return checkReady(op.getPod(t, pod), false) })
	}
	op.kubectl(t, "", "delete", "--namespace="+op.name, "faultinjections/unserved")
	for _, pod := range op.podNames() {
		eventually(t, pod+" is ready again", func() error { return checkReady(op.getPod(t, pod), true) })
	}
	op.assertRestartCount(t, 0)
}

// checkReady returns an error unless a pod's readiness is that of its operator, with a sidecar that is ready in any
// case.
func checkReady(pod *core.Pod, want bool) error {
	found := map[string]bool{}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == core.PodReady {
			found["pod"] = condition.Status == core.ConditionTrue
		}
	}
	for _, name := range []string{operatorContainer, proxyContainer} {
		status, _ := realnode.ContainerStatus(pod, name)
		found[name] = status.Ready
	}
	if !maps.Equal(found, map[string]bool{"pod": want, operatorContainer: want, proxyContainer: true}) {
		return fmt.Errorf("the containers' readiness is %v", found)
	}
	return nil
}

// assertRestartCount asserts how often each container of all pods was restarted.
func (op *operator) assertRestartCount(t *testing.T, want int32) {
	t.Helper()
	for _, pod := range op.podNames() {
		for _, name := range []string{operatorContainer, proxyContainer} {
			if status, _ := realnode.ContainerStatus(op.getPod(t, pod), name); status.RestartCount != want {
				t.Errorf("%s of %s was restarted %d times: %+v", name, pod, status.RestartCount, status.LastTerminationState)
			}
		}
	}
}

// testLivenessRestart: an operator whose liveness probe fails is restarted, and its sidecar is not.
func (l *lifecycle) testLivenessRestart(t *testing.T) {
	op := l.newOperator("sick", []string{"team-i"})
	op.apply(t, op.permissions())
	op.apply(t, op.shardingConfigsByApp())
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Distributed", "--all", "shardingconfigs", "--timeout="+waitTimeout.String())
	pod := op.singlePod(op.podName(0), true)
	container := pod["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	container["livenessProbe"] = probeSpec("/nowhere", 1)
	op.apply(t, asYAML(pod))
	eventually(t, "the operator is restarted", func() error {
		found := op.getPod(t, op.podName(0))
		sick, _ := realnode.ContainerStatus(found, operatorContainer)
		sidecar, _ := realnode.ContainerStatus(found, proxyContainer)
		if sidecar.RestartCount != 0 {
			t.Fatalf("the sidecar was restarted too: %+v", sidecar.LastTerminationState)
		}
		if sick.RestartCount == 0 {
			return fmt.Errorf("the operator is not restarted: %+v", sick.State)
		}
		return nil
	})
	op.kubectl(t, "", "delete", "--namespace="+op.name, "pod/"+op.podName(0), "--timeout="+waitTimeout.String())
}
