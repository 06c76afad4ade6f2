package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file uninstalls ctrlmesh with the commands of docs/install.md.

const groupPrefix = "ctrlmesh.kusionstack.io/"

func (l *lifecycle) testUninstall(t *testing.T) {
	all := append([]*operator{l.mainOperator}, l.otherOperators...)
	forEachOperator(t, "sidecars removed", all, (*operator).removeSidecars)
	steps := sectionCommands(t, "Uninstalling", "-k deploy/", "-k "+l.overlay)
	if len(steps) != 3 {
		t.Fatalf("docs/install.md has other steps than pods, rules and the installation: %q", steps)
	}
	eventually(t, "no pod asks for a sidecar", func() error {
		if pods := l.runKubectl(t, steps[0]); pods != "" {
			return fmt.Errorf("%s still exist", pods)
		}
		return nil
	})
	l.runKubectl(t, steps[1])
	l.runQuoted(t, "Uninstalling", "kubectl label namespaces --all "+groupPrefix+"control=false --overwrite")
	l.waitLabelsGone(t)
	l.runKubectl(t, steps[2])
	l.assertNothingInstalled(t)
	forEachOperator(t, "alone again", all, (*operator).assertWorksWithoutSidecars)
	l.deleteRemains(t)
}

// forEachOperator runs a subtest for several operators in parallel.
func forEachOperator(t *testing.T, what string, all []*operator, tell func(*operator, *testing.T)) {
	t.Helper()
	if !t.Run(what, func(t *testing.T) {
		for _, op := range all {
			t.Run(op.name, func(t *testing.T) {
				t.Parallel()
				tell(op, t)
			})
		}
	}) {
		t.FailNow()
	}
}

// removeSidecars scales an operator to zero and back, and removes its label and its shards.
func (op *operator) removeSidecars(t *testing.T) {
	t.Helper()
	replicas := fmt.Sprintf(`"replicas": %d`, op.replicas)
	for _, command := range sectionCommands(t, "Turning it off again", "NAMESPACE", op.name, "statefulset/operator", "statefulset/"+op.name,
		"app=operator", "app="+op.name, `"replicas": 3`, replicas, "operator-a operator-b", "--all") {
		if !slices.Contains(command, "patch") {
			op.runKubectl(t, command)
			continue
		}
		if pods := op.kubectl(t, "", "get", "pods", "--namespace="+op.name, "-l", "app="+op.name, "--output=name"); pods != "" {
			t.Errorf("the label of %s is removed although there are still %s", op.name, pods)
		}
		op.runKubectl(t, command)
		op.waitReady(t)
	}
}

// removeSidecarsWhileRunning deletes the shards of a running operator, whose pods the manager replaces, and then removes
// its label.
func (op *operator) removeSidecarsWhileRunning(t *testing.T) {
	t.Helper()
	op.apply(t, strings.ReplaceAll(op.shardingConfigs(), "\nspec:\n", "\nspec:\n  reshard: Restart\n"))
	op.waitEnforced(t)
	before := op.podIDs(t)
	begin := time.Now()
	op.kubectl(t, "", "delete", "--namespace="+op.name, "shardingconfigs", "--all", "--timeout="+waitTimeout.String())
	op.waitReady(t)
	replaced := 0
	for pod, id := range op.podIDs(t) {
		if id != before[pod] {
			replaced++
		}
	}
	if replaced != op.replicas-1 {
		t.Errorf("%d of %d pods were replaced: all but those of one shard should be", replaced, op.replicas)
	}
	t.Logf("the shards of a running operator were gone %s after they had been deleted", rounded(time.Since(begin)))
	patch := fmt.Sprintf(`{"spec": {"template": {"metadata": {"labels": {%q: null}}}}}`, enableLabel)
	op.kubectl(t, "", "patch", "--namespace="+op.name, "statefulset/"+op.name, "--type=merge", "--patch="+patch)
	op.waitReady(t)
}

// podIDs returns the UID of each pod that exists.
func (op *operator) podIDs(t *testing.T) map[string]types.UID {
	t.Helper()
	found := map[string]types.UID{}
	for _, pod := range must(op.node.Client.CoreV1().Pods(op.name).List(t.Context(), meta.ListOptions{LabelSelector: "app=" + op.name}))(t).Items {
		found[pod.Name] = pod.UID
	}
	return found
}

// waitLabelsGone waits until the manager has removed the labels from namespaces and objects.
func (l *lifecycle) waitLabelsGone(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"namespaces", "configmaps", "pods"} {
		eventually(t, "no "+kind+" have labels of shards", func() error {
			for _, label := range []string{"shard-hash", "namespace"} {
				if found := l.kubectl(t, "", "get", kind, "-A", "-l", groupPrefix+label, "--output=name"); found != "" {
					return fmt.Errorf("%s is on %s", label, strings.ReplaceAll(found, "\n", " "))
				}
			}
			return nil
		})
	}
}

// assertNothingInstalled looks for our objects, of every kind that an installation contains.
func (l *lifecycle) assertNothingInstalled(t *testing.T) {
	t.Helper()
	kinds := "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
	eventually(t, "nothing of the installation is left", func() error {
		found := l.kubectl(t, "", "get", kinds, "--output=name")
		if left := slices.Collect(strings.Lines(found)); slices.ContainsFunc(left, func(name string) bool { return strings.Contains(name, "ctrlmesh") }) {
			return fmt.Errorf("%q still exist", left)
		}
		return nil
	})
	for _, kind := range []string{"roles", "rolebindings"} {
		if found := l.kubectl(t, "", "get", kind, "-A", "--output=name"); strings.Contains(found, "ctrlmesh") {
			t.Errorf("%s still exist", found)
		}
	}
}

// assertWorksWithoutSidecars asserts that an operator without sidecars handles everything, with one leader, as before.
func (op *operator) assertWorksWithoutSidecars(t *testing.T) {
	t.Helper()
	for key := range op.steps {
		check(t, op.requestStep(t.Context(), key))
	}
	eventually(t, op.name+" handles all objects by one leader", func() error {
		list := must(op.node.Client.CoreV1().ConfigMaps("").List(t.Context(), meta.ListOptions{LabelSelector: "app=" + op.name}))(t)
		by := map[string]bool{}
		for _, item := range list.Items {
			if item.Data["step"] != item.Data["observed"] {
				return fmt.Errorf("%s/%s is at step %s, observed is %s", item.Namespace, item.Name, item.Data["step"], item.Data["observed"])
			}
			by[item.Data["by"]] = true
		}
		if len(by) != 1 {
			t.Errorf("the objects were handled by %v", by)
		}
		return nil
	})
	for _, pod := range op.podNames() {
		for _, container := range op.getPod(t, pod).Spec.Containers {
			if container.Name == proxyContainer || hasMountedKubeconfig(container) {
				t.Errorf("%s still has %s with %v", pod, container.Name, container.Env)
			}
		}
	}
}

// deleteRemains deletes what the document says that stays, with its commands, and looks for anything else.
func (l *lifecycle) deleteRemains(t *testing.T) {
	t.Helper()
	l.runQuoted(t, "Uninstalling", "kubectl delete configmaps,secrets -A -l app.kubernetes.io/managed-by=ctrlmesh-manager")
	for _, kind := range []string{"configmaps", "secrets"} {
		if found := l.kubectl(t, "", "get", kind, "-A", "--output=name"); strings.Contains(found, "ctrlmesh") {
			t.Errorf("the document does not say how to delete these:\n%s", found)
		}
	}
	for _, op := range append([]*operator{l.mainOperator}, l.otherOperators...) {
		for _, pod := range op.podNames() {
			l.kubectl(t, "", "delete", "lease", "--namespace="+op.name, lock+"---"+pod)
		}
		if left := l.kubectl(t, "", "get", "leases", "--namespace="+op.name, "--output=name"); strings.TrimSpace(left) != "lease.coordination.k8s.io/"+lock {
			t.Errorf("beside the lock of %s there are %s", op.name, left)
		}
	}
}
