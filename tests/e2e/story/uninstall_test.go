package story

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file takes ctrlmesh away again, by the commands of docs/install.md.

const ours = "ctrlmesh.kusionstack.io/"

func (s *story) isUninstalled(t *testing.T) {
	all := append([]*operator{s.main}, s.others...)
	together(t, "out of the mesh", all, (*operator).leavesMesh)
	steps := commands(t, "Uninstalling", "-k deploy/", "-k "+s.overlay)
	if len(steps) != 3 {
		t.Fatalf("docs/install.md has other steps than pods, rules and the installation: %q", steps)
	}
	eventually(t, "no pod asks for a sidecar", func() error {
		if pods := s.run(t, steps[0]); pods != "" {
			return fmt.Errorf("there are %s", pods)
		}
		return nil
	})
	s.run(t, steps[1])
	s.quoted(t, "Uninstalling", "kubectl label namespaces --all "+ours+"control=false --overwrite")
	s.labelsGo(t)
	s.run(t, steps[2])
	s.nothingIsInstalled(t)
	together(t, "alone again", all, (*operator).worksAlone)
	s.restGoes(t)
}

// together tells the same of several operators at the same time.
func together(t *testing.T, what string, all []*operator, tell func(*operator, *testing.T)) {
	t.Helper()
	if !t.Run(what, func(t *testing.T) {
		for _, o := range all {
			t.Run(o.name, func(t *testing.T) {
				t.Parallel()
				tell(o, t)
			})
		}
	}) {
		t.FailNow()
	}
}

// leavesMesh takes an operator through zero, and its label and its shards away.
func (o *operator) leavesMesh(t *testing.T) {
	t.Helper()
	replicas := fmt.Sprintf(`"replicas": %d`, o.replicas)
	for _, command := range commands(t, "Turning it off again", "NAMESPACE", o.name, "statefulset/operator", "statefulset/"+o.name,
		"app=operator", "app="+o.name, `"replicas": 3`, replicas) {
		if !slices.Contains(command, "patch") {
			o.run(t, command)
			continue
		}
		if pods := o.kubectl(t, "", "get", "pods", "--namespace="+o.name, "-l", "app="+o.name, "--output=name"); pods != "" {
			t.Errorf("%s loses its label while there are %s", o.name, pods)
		}
		o.run(t, command)
		o.ready(t)
	}
}

// labelsGo waits until the manager has taken off what it labelled, namespaces and objects in them.
func (s *story) labelsGo(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"namespaces", "configmaps", "pods"} {
		eventually(t, "no "+kind+" have labels of shards", func() error {
			for _, label := range []string{"shard-hash", "namespace"} {
				if found := s.kubectl(t, "", "get", kind, "-A", "-l", ours+label, "--output=name"); found != "" {
					return fmt.Errorf("%s is on %s", label, strings.ReplaceAll(found, "\n", " "))
				}
			}
			return nil
		})
	}
}

// nothingIsInstalled looks for whatever has the name, of every kind that an installation consists of.
func (s *story) nothingIsInstalled(t *testing.T) {
	t.Helper()
	kinds := "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
	eventually(t, "nothing of the installation is there", func() error {
		found := s.kubectl(t, "", "get", kinds, "--output=name")
		if left := slices.Collect(strings.Lines(found)); slices.ContainsFunc(left, func(name string) bool { return strings.Contains(name, "ctrlmesh") }) {
			return fmt.Errorf("there are %q", left)
		}
		return nil
	})
	for _, kind := range []string{"roles", "rolebindings"} {
		if found := s.kubectl(t, "", "get", kind, "-A", "--output=name"); strings.Contains(found, "ctrlmesh") {
			t.Errorf("there are %s", found)
		}
	}
}

// worksAlone demands that an operator without sidecars handles everything, as it did before: by one leader.
func (o *operator) worksAlone(t *testing.T) {
	t.Helper()
	for key := range o.steps {
		check(t, o.step(t.Context(), key))
	}
	eventually(t, o.name+" handles all objects by one leader", func() error {
		list := must(o.node.Client.CoreV1().ConfigMaps("").List(t.Context(), meta.ListOptions{LabelSelector: "app=" + o.name}))(t)
		by := map[string]bool{}
		for _, item := range list.Items {
			if item.Data["step"] != item.Data["observed"] {
				return fmt.Errorf("%s/%s is at step %s, handled is %s", item.Namespace, item.Name, item.Data["step"], item.Data["observed"])
			}
			by[item.Data["by"]] = true
		}
		if len(by) != 1 {
			t.Errorf("they were handled by %v", by)
		}
		return nil
	})
	for _, pod := range o.pods() {
		for _, container := range o.get(t, pod).Spec.Containers {
			if container.Name == proxyContainer || hasKubeconfig(container) {
				t.Errorf("%s still has %s with %v", pod, container.Name, container.Env)
			}
		}
	}
}

// restGoes removes what the document says that stays, by the commands that it gives, and looks for anything else.
func (s *story) restGoes(t *testing.T) {
	t.Helper()
	s.quoted(t, "Uninstalling", "kubectl delete configmaps,secrets -A -l app.kubernetes.io/managed-by=ctrlmesh-manager")
	for _, kind := range []string{"configmaps", "secrets"} {
		if found := s.kubectl(t, "", "get", kind, "-A", "--output=name"); strings.Contains(found, "ctrlmesh") {
			t.Errorf("the document does not say how these go:\n%s", found)
		}
	}
	for _, o := range append([]*operator{s.main}, s.others...) {
		for _, pod := range o.pods() {
			s.kubectl(t, "", "delete", "lease", "--namespace="+o.name, lock+"---"+pod)
		}
		if left := s.kubectl(t, "", "get", "leases", "--namespace="+o.name, "--output=name"); strings.TrimSpace(left) != "lease.coordination.k8s.io/"+lock {
			t.Errorf("beside the lock of %s there are %s", o.name, left)
		}
	}
}
