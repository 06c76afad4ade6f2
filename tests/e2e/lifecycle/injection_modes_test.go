package lifecycle

import (
	"slices"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	core "k8s.io/api/core/v1"
)

// This file runs the operator in the other injection modes.

// testInjectionModes runs one operator in each mode, in parallel.
func (l *lifecycle) testInjectionModes(t *testing.T) {
	for name, tell := range map[string]func(*testing.T){
		"redirected":             l.testRedirected,
		"classic":                l.testClassicSidecar,
		"redirected and classic": l.testRedirectedClassicSidecar,
		"liveness":               l.testLivenessRestart,
		"rolling restart":        l.testRollingRestart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t)
		})
	}
}

// testRedirected: the operator has only the in-cluster configuration, and its traffic is redirected.
func (l *lifecycle) testRedirected(t *testing.T) {
	op := l.newOperator("redirected", []string{"team-r"}, []string{"team-s"})
	op.labels = map[string]string{"ctrlmesh.kusionstack.io/enable-iptables": "true"}
	op.hasInitContainer = true
	op.assertSharded(t)
	for i, pod := range op.podNames() {
		op.assertInitContainerListed(t, pod, op.teams[i]...)
		found := op.getPod(t, pod)
		assertNative(t, found, true)
		for _, container := range found.Spec.Containers {
			if hasMountedKubeconfig(container) {
				t.Errorf("%s of %s has a kubeconfig", container.Name, pod)
			}
		}
		if _, ok := realnode.ContainerStatus(found, "ctrlmesh-init"); !ok {
			t.Errorf("%s has no init container that redirects", pod)
		}
	}
}

// testClassicSidecar: the sidecar is an ordinary container beside the operator's.
func (l *lifecycle) testClassicSidecar(t *testing.T) {
	op := l.newOperator("classic", []string{"team-k"}, []string{"team-l"})
	op.annotations = map[string]string{"ctrlmesh.kusionstack.io/native-sidecar": "false"}
	op.assertSharded(t)
	for _, pod := range op.podNames() {
		assertNative(t, op.getPod(t, pod), false)
	}
	for _, pod := range l.mainOperator.podNames() {
		assertNative(t, l.mainOperator.getPod(t, pod), true)
	}
}

// testRedirectedClassicSidecar combines both.
func (l *lifecycle) testRedirectedClassicSidecar(t *testing.T) {
	op := l.newOperator("both", []string{"team-x"}, []string{"team-y"})
	op.labels = map[string]string{"ctrlmesh.kusionstack.io/enable-iptables": "true"}
	op.annotations = map[string]string{"ctrlmesh.kusionstack.io/native-sidecar": "false"}
	op.assertSharded(t)
	for _, pod := range op.podNames() {
		assertNative(t, op.getPod(t, pod), false)
	}
}

// assertSharded runs an operator and asserts that each of its pods has its share.
func (op *operator) assertSharded(t *testing.T) {
	t.Helper()
	op.makeItems(t)
	op.deployInMesh(t)
	op.assertStepsHandled(t)
	op.assertOneOwnerAtATime(t, nil)
	for i, pod := range op.podNames() {
		op.assertVisible(t, pod, op.teams[i]...)
	}
	op.assertLeaders(t)
	op.testProbes(t)
	op.addToUninstall()
}

// addToUninstall makes the operator lose its sidecars with all others, at the end.
func (op *operator) addToUninstall() {
	op.lifecycle.mu.Lock()
	defer op.lifecycle.mu.Unlock()
	op.lifecycle.otherOperators = append(op.lifecycle.otherOperators, op)
}

func hasMountedKubeconfig(container core.Container) bool {
	return slices.ContainsFunc(container.Env, func(v core.EnvVar) bool { return v.Name == "KUBECONFIG" })
}

// assertNative asserts that a pod's sidecar is a restartable init container, or the first of its containers.
func assertNative(t *testing.T, pod *core.Pod, want bool) {
	t.Helper()
	restarts := func(c core.Container) bool {
		return c.Name == proxyContainer && c.RestartPolicy != nil && *c.RestartPolicy == core.ContainerRestartPolicyAlways
	}
	native := slices.ContainsFunc(pod.Spec.InitContainers, restarts)
	classic := pod.Spec.Containers[0].Name == proxyContainer
	if native != want || classic == want {
		t.Errorf("%s: native %t, classic %t", pod.Name, native, classic)
	}
}
