package story

import (
	"slices"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	core "k8s.io/api/core/v1"
)

// This file leads the same operator to its sidecar in the other ways, in pods of the other shape.

// hasOtherWays tells of operators of their own, at the same time.
func (s *story) hasOtherWays(t *testing.T) {
	for name, tell := range map[string]func(*testing.T){
		"redirected":             s.isRedirected,
		"classic":                s.isClassic,
		"redirected and classic": s.isRedirectedClassic,
		"liveness":               s.restartsTheSick,
		"into the mesh":          s.joinsMesh,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t)
		})
	}
}

// isRedirected: the operator has the in-cluster configuration alone, and its traffic is redirected.
func (s *story) isRedirected(t *testing.T) {
	o := s.operator("redirected", []string{"team-r"}, []string{"team-s"})
	o.labels = map[string]string{"ctrlmesh.kusionstack.io/enable-iptables": "true"}
	o.looksFirst = true
	o.isSharded(t)
	for i, pod := range o.pods() {
		o.hasLooked(t, pod, o.teams[i]...)
		found := o.get(t, pod)
		isNative(t, found, true)
		for _, container := range found.Spec.Containers {
			if hasKubeconfig(container) {
				t.Errorf("%s of %s has a kubeconfig", container.Name, pod)
			}
		}
		if _, ok := realnode.ContainerStatus(found, "ctrlmesh-init"); !ok {
			t.Errorf("%s has no container that redirects", pod)
		}
	}
}

// isClassic: the sidecar is a container beside the operator's.
func (s *story) isClassic(t *testing.T) {
	o := s.operator("classic", []string{"team-k"}, []string{"team-l"})
	o.annotations = map[string]string{"ctrlmesh.kusionstack.io/native-sidecar": "false"}
	o.isSharded(t)
	for _, pod := range o.pods() {
		isNative(t, o.get(t, pod), false)
	}
	for _, pod := range s.main.pods() {
		isNative(t, s.main.get(t, pod), true)
	}
}

// isRedirectedClassic is both.
func (s *story) isRedirectedClassic(t *testing.T) {
	o := s.operator("both", []string{"team-x"}, []string{"team-y"})
	o.labels = map[string]string{"ctrlmesh.kusionstack.io/enable-iptables": "true"}
	o.annotations = map[string]string{"ctrlmesh.kusionstack.io/native-sidecar": "false"}
	o.isSharded(t)
	for _, pod := range o.pods() {
		isNative(t, o.get(t, pod), false)
	}
}

// isSharded runs an operator and demands that each of its pods has its part.
func (o *operator) isSharded(t *testing.T) {
	t.Helper()
	o.makeItems(t)
	o.starts(t)
	o.handled(t)
	o.oneOwnerAtATime(t, nil)
	for i, pod := range o.pods() {
		o.sees(t, pod, o.teams[i]...)
	}
	o.leads(t)
	o.isProbed(t)
	o.joinsOthers()
}

// joinsOthers has the operator leave the mesh with all others, at the end.
func (o *operator) joinsOthers() {
	o.story.mu.Lock()
	defer o.story.mu.Unlock()
	o.story.others = append(o.story.others, o)
}

func hasKubeconfig(container core.Container) bool {
	return slices.ContainsFunc(container.Env, func(v core.EnvVar) bool { return v.Name == "KUBECONFIG" })
}

// isNative demands that a pod's sidecar is a restartable init container, or the first of its containers.
func isNative(t *testing.T, pod *core.Pod, want bool) {
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
