package story

import (
	"fmt"
	"maps"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	core "k8s.io/api/core/v1"
)

// This file has kubelet probe operators beside their sidecars.

// healthPort is where the operator answers kubelet. It is no port of the sidecar's.
const healthPort = 8081

// probe is soon done and patient: it finds out what is, not how fast a busy machine answers.
func probe(path string, tries int) map[string]any {
	return map[string]any{
		"httpGet":       map[string]any{"path": path, "port": healthPort},
		"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": tries,
	}
}

// isProbed: pods are ready as long as their operators say so, whose answer depends on the API server's to them. None is restarted, before
// or meanwhile.
func (o *operator) isProbed(t *testing.T) {
	t.Helper()
	o.restartedTimes(t, 0)
	o.apply(t, o.fault("unserved", "configmaps", "list", o.name, firstCode))
	for _, pod := range o.pods() {
		eventually(t, pod+" is not ready because its operator is not", func() error { return isReady(o.get(t, pod), false) })
	}
	o.kubectl(t, "", "delete", "--namespace="+o.name, "faultinjections/unserved")
	for _, pod := range o.pods() {
		eventually(t, pod+" is ready again", func() error { return isReady(o.get(t, pod), true) })
	}
	o.restartedTimes(t, 0)
}

// isReady is an error unless a pod is as its operator's container is, with a sidecar that is ready in any case.
func isReady(pod *core.Pod, want bool) error {
	found := map[string]bool{}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == core.PodReady {
			found["pod"] = condition.Status == core.ConditionTrue
		}
	}
	for _, name := range []string{mainContainer, proxyContainer} {
		status, _ := realnode.ContainerStatus(pod, name)
		found[name] = status.Ready
	}
	if !maps.Equal(found, map[string]bool{"pod": want, mainContainer: want, proxyContainer: true}) {
		return fmt.Errorf("ready are %v", found)
	}
	return nil
}

// restartedTimes demands that each container of all pods was started again so often.
func (o *operator) restartedTimes(t *testing.T, want int32) {
	t.Helper()
	for _, pod := range o.pods() {
		for _, name := range []string{mainContainer, proxyContainer} {
			if status, _ := realnode.ContainerStatus(o.get(t, pod), name); status.RestartCount != want {
				t.Errorf("%s of %s was started again %d times: %+v", name, pod, status.RestartCount, status.LastTerminationState)
			}
		}
	}
}

// restartsTheSick: an operator whose liveness probe fails is started again, and its sidecar is not.
func (s *story) restartsTheSick(t *testing.T) {
	o := s.operator("sick", []string{"team-i"})
	o.apply(t, o.permissions())
	o.apply(t, o.shardsByApp())
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Distributed", "--all", "shardingconfigs", "--timeout="+patience.String())
	pod := o.single(o.pod(0), true)
	container := pod["spec"].(map[string]any)["containers"].([]any)[0].(map[string]any)
	container["livenessProbe"] = probe("/nowhere", 1)
	o.apply(t, asYAML(pod))
	eventually(t, "the operator is started again", func() error {
		found := o.get(t, o.pod(0))
		sick, _ := realnode.ContainerStatus(found, mainContainer)
		sidecar, _ := realnode.ContainerStatus(found, proxyContainer)
		if sidecar.RestartCount != 0 {
			t.Fatalf("its sidecar is, too: %+v", sidecar.LastTerminationState)
		}
		if sick.RestartCount == 0 {
			return fmt.Errorf("it is not: %+v", sick.State)
		}
		return nil
	})
	o.kubectl(t, "", "delete", "--namespace="+o.name, "pod/"+o.pod(0), "--timeout="+patience.String())
}
