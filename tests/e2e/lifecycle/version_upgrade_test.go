package lifecycle

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/earlier"
)

// This file upgrades from an earlier commit (docs/adr/0042): managers before sidecars with kustomize, and sidecars
// before managers with Helm, while an operator works.

const (
	earlierManagerImage = "localhost/ctrlmesh-e2e/manager:earlier"
	earlierProxyImage   = "localhost/ctrlmesh-e2e/proxy:earlier"
	// outdatedReason is the reason of an object that is held back because sidecars do not support it.
	outdatedReason = "SidecarOutdated"
)

// versionUpgrade is a lifecycle with two versions of everything.
type versionUpgrade struct {
	*lifecycle
	earlier earlier.Installation
	// currentProxyImage and currentManagerImage are the images of this checkout.
	currentProxyImage, currentManagerImage string
}

func TestUpgradeKeepsOperatorRunning(t *testing.T) {
	u := &versionUpgrade{lifecycle: newLifecycle(t)}
	u.runSteps(t, []step{
		{"earlier_version_is_installed", u.installEarlier},
		{"managers_are_upgraded_first", u.testManagersFirst},
		{"sidecars_are_upgraded_second", u.testSidecarsSecond},
		{"everything_is_uninstalled", u.uninstall},
		{"earlier_version_is_installed_by_helm", u.installEarlierByHelm},
		{"sidecars_are_upgraded_first", u.testSidecarsFirst},
		{"managers_are_upgraded_second", u.testManagersSecond},
		{"everything_is_uninstalled_by_helm", u.helmUninstall},
	})
}

// installEarlier installs the earlier version, and runs an operator with it.
func (u *versionUpgrade) installEarlier(t *testing.T) {
	u.earlier = must(earlier.Find())(t)
	u.loadImages(t)
	u.loadOperator(t)
	u.currentManagerImage, u.currentProxyImage = u.managerImage, u.proxyImage
	u.managerImage, u.proxyImage = earlierManagerImage, earlierProxyImage
	u.loadPrograms(t, u.earlier.Manager, u.earlier.Proxy)
	u.overlay = u.writeOverlayOn(t, u.earlier.Deploy)
	u.applyOverlay(t)
	u.mainOperator = u.newOperator("upgraded", []string{"team-a"}, []string{"team-b"})
	u.mainOperator.makeItems(t)
	u.mainOperator.deployInMesh(t)
	u.mainOperator.assertStepsHandled(t)
	u.apply(t, u.mainOperator.faultManifest("before", "events", "list", "default", firstStatusCode))
	u.waitRuleEnforced(t, "before")
	u.mainOperator.waitListCode(t, "events", firstStatusCode)
}

// testManagersFirst upgrades the managers only. Sidecars keep their chain, with the plugins of the earlier version. A rule
// that needs more than they support is held back, and its condition names their pods.
func (u *versionUpgrade) testManagersFirst(t *testing.T) {
	op := u.mainOperator
	born := op.allContainers(t)
	history := op.recordWrites(t)
	stop := history.requestSteps(t)
	u.managerImage, u.proxyImage = u.currentManagerImage, u.currentProxyImage
	u.overlay = u.writeOverlay(t)
	u.applyOverlay(t)
	u.apply(t, op.faultManifest("after", "configmaps", "list", "default", firstStatusCode+1))
	u.apply(t, op.faultManifest("before", "events", "list", "default", firstStatusCode+2))
	for _, rule := range []string{"after", "before"} {
		u.waitRuleHeldBack(t, rule)
	}
	stop(t)
	op.assertStepsHandled(t)
	history.assertShardOwners(t)
	history.stopRecording()
	op.waitListCode(t, "events", firstStatusCode)
	op.waitListCode(t, "configmaps", http.StatusOK)
	for pod, now := range op.allContainers(t) {
		if now != born[pod] {
			t.Errorf("%s was\n%s\nand is\n%s", pod, born[pod], now)
		}
	}
}

// testSidecarsSecond upgrades the sidecars, pod by pod; shards stay in force. The rules that were held back are in force
// afterwards, and shards can be changed.
func (u *versionUpgrade) testSidecarsSecond(t *testing.T) {
	op := u.mainOperator
	u.restartUnderLoad(t, u.currentProxyImage)
	for _, rule := range []string{"after", "before"} {
		u.waitRuleEnforced(t, rule)
	}
	op.waitListCode(t, "events", firstStatusCode+2)
	op.waitListCode(t, "configmaps", firstStatusCode+1)
	op.waitEnforced(t)
	was := map[string]string{"team-a": op.ownerPod("team-a"), "team-b": op.ownerPod("team-b")}
	op.teams[0], op.teams[1] = op.teams[1], op.teams[0]
	op.apply(t, op.shardingConfigs())
	op.waitEnforced(t)
	op.assertStepsHandled(t)
	op.assertOneOwnerAtATime(t, was)
}

// uninstall removes the kustomize installation. The operator's objects stay.
func (u *versionUpgrade) uninstall(t *testing.T) {
	u.mainOperator.removeSidecars(t)
	u.kubectl(t, "", "delete", "circuitbreakers,faultinjections", "--all", "-A", "--timeout="+waitTimeout.String())
	u.kubectl(t, "", "delete", "--kustomize="+u.overlay, "--timeout="+waitTimeout.String())
	u.assertNothingInstalled(t)
	u.mainOperator.assertWorksWithoutSidecars(t)
	u.runQuoted(t, "Uninstalling", "kubectl delete configmaps,secrets -A -l app.kubernetes.io/managed-by=ctrlmesh-manager")
	u.kubectl(t, "", "delete", "--namespace="+u.mainOperator.name, "statefulset/"+u.mainOperator.name, "--cascade=foreground", "--timeout="+waitTimeout.String())
}

func (u *versionUpgrade) installEarlierByHelm(t *testing.T) {
	begin := time.Now()
	chart := filepath.Join(u.earlier.Deploy, "helm", "ctrlmesh")
	u.helm(t, append([]string{"install", "ctrlmesh", chart, "--create-namespace"}, chartImages(earlierManagerImage, earlierProxyImage)...)...)
	u.kubectl(t, "", "label", "namespace", "ctrlmesh", "pod-security.kubernetes.io/enforce=restricted", groupPrefix+"control=false")
	u.waitManagersReady(t)
	t.Logf("managers were ready %s after helm install", rounded(time.Since(begin)))
	u.mainOperator.deployInMesh(t)
	u.mainOperator.assertStepsHandled(t)
}

// testSidecarsFirst: the earlier managers inject this checkout's sidecars.
func (u *versionUpgrade) testSidecarsFirst(t *testing.T) {
	chart := filepath.Join(u.earlier.Deploy, "helm", "ctrlmesh")
	u.helm(t, append([]string{"upgrade", "ctrlmesh", chart}, chartImages(earlierManagerImage, u.currentProxyImage)...)...)
	u.waitManagersReady(t)
	u.restartUnderLoad(t, u.currentProxyImage)
	u.apply(t, u.mainOperator.faultManifest("before", "events", "list", "default", firstStatusCode))
	u.waitRuleEnforced(t, "before")
	u.mainOperator.waitListCode(t, "events", firstStatusCode)
}

// testManagersSecond upgrades the managers as docs/install.md says, while the operator works. Nothing is held back.
func (u *versionUpgrade) testManagersSecond(t *testing.T) {
	op := u.mainOperator
	born := op.allContainers(t)
	history := op.recordWrites(t)
	stop := history.requestSteps(t)
	u.helmUpgrade(t)
	u.waitManagersReady(t)
	u.apply(t, op.faultManifest("after", "configmaps", "list", "default", firstStatusCode+1))
	u.waitRuleEnforced(t, "after")
	op.waitEnforced(t)
	stop(t)
	op.assertStepsHandled(t)
	history.assertShardOwners(t)
	op.waitListCode(t, "events", firstStatusCode)
	op.waitListCode(t, "configmaps", firstStatusCode+1)
	for pod, now := range op.allContainers(t) {
		if now != born[pod] {
			t.Errorf("%s was\n%s\nand is\n%s", pod, born[pod], now)
		}
	}
}

// helmUpgrade uses the flags of docs/install.md, and enables the hook that deletes shards before managers.
func (u *versionUpgrade) helmUpgrade(t *testing.T) {
	t.Helper()
	const documented = "helm upgrade ctrlmesh deploy/helm/ctrlmesh --namespace ctrlmesh --reset-then-reuse-values"
	if !strings.Contains(sectionText(t, "Upgrading"), documented) {
		t.Fatalf("docs/install.md does not say `%s`", documented)
	}
	chart := must(filepath.Abs(filepath.Join(deployDir, "helm", "ctrlmesh")))(t)
	u.helm(t, append([]string{"upgrade", "ctrlmesh", chart, "--reset-then-reuse-values", "--set=uninstall.deleteShardingConfigs=true"},
		chartImages(u.currentManagerImage, u.currentProxyImage)...)...)
}

// helmUninstall: Helm's hook deletes the shards of an operator that was scaled to zero and back, and then Helm deletes
// everything but the CRDs.
func (u *versionUpgrade) helmUninstall(t *testing.T) {
	op := u.mainOperator
	op.kubectl(t, "", "scale", "--namespace="+op.name, "statefulset/"+op.name, "--replicas=0")
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=delete", "pod", "--selector=app="+op.name, "--timeout="+waitTimeout.String())
	begin := time.Now()
	u.helm(t, "uninstall", "ctrlmesh", "--timeout="+waitTimeout.String())
	t.Logf("helm uninstall took %s", rounded(time.Since(begin)))
	if left := op.kubectl(t, "", "get", "shardingconfigs", "--all-namespaces", "--output=name"); left != "" {
		t.Errorf("%s still exist", left)
	}
	u.kubectl(t, "", "delete", "crd", "--selector=app.kubernetes.io/part-of=ctrlmesh", "--timeout="+waitTimeout.String())
	u.kubectl(t, "", "delete", "namespace", "ctrlmesh", "--timeout="+waitTimeout.String())
	u.assertNothingInstalled(t)
	op.apply(t, op.statefulSet(false))
	op.waitReady(t)
	op.assertWorksWithoutSidecars(t)
}

// restartUnderLoad re-creates the operator's pods, one by one, and asserts that each then has this sidecar, and that no
// pod handled an object of another one meanwhile.
func (u *versionUpgrade) restartUnderLoad(t *testing.T, image string) {
	t.Helper()
	op := u.mainOperator
	history := op.recordWrites(t)
	ready := op.trackReady(t)
	stop := history.requestSteps(t)
	begin := time.Now()
	for _, command := range []string{"restart", "status"} {
		op.kubectl(t, "", "rollout", command, "--namespace="+op.name, "statefulset/"+op.name)
	}
	t.Logf("%d pods had the other sidecar after %s", op.replicas, rounded(time.Since(begin)))
	stop(t)
	op.assertSidecarRolledOut(t, image, ready())
	history.assertShardOwners(t)
}

func (u *versionUpgrade) waitRuleEnforced(t *testing.T, rule string) {
	t.Helper()
	u.kubectl(t, "", "wait", "--namespace="+u.mainOperator.name, "--for=condition=Enforced", "faultinjections/"+rule, "--timeout="+waitTimeout.String())
}

// waitRuleHeldBack waits until a rule's condition names all pods of the operator, whose sidecars do not support it.
func (u *versionUpgrade) waitRuleHeldBack(t *testing.T, rule string) {
	t.Helper()
	eventually(t, rule+" is held back", func() error {
		const path = `--output=jsonpath={.status.conditions[?(@.type=="Distributed")]}`
		condition := u.kubectl(t, "", "get", "--namespace="+u.mainOperator.name, "faultinjections/"+rule, path)
		for _, word := range append([]string{`"False"`, outdatedReason}, u.mainOperator.podNames()...) {
			if !strings.Contains(condition, word) {
				return fmt.Errorf("the condition is %s", condition)
			}
		}
		return nil
	})
	eventually(t, "an Event names the outdated sidecars", func() error {
		events := u.kubectl(t, "", "get", "events", "--namespace="+u.mainOperator.name, "--field-selector=reason="+outdatedReason)
		if !strings.Contains(events, rule) {
			return fmt.Errorf("the events are %s", events)
		}
		return nil
	})
}

// waitListCode waits until every sidecar responds to a list in one namespace with this code.
func (op *operator) waitListCode(t *testing.T, resource string, code int) {
	t.Helper()
	for _, pod := range op.podNames() {
		address, end, err := op.node.Forward(t.Context(), op.name, pod, sidecarPort)
		check(t, err)
		eventually(t, fmt.Sprintf("%s answers %d to a list of %s", pod, code, resource), func() error {
			if got := listCode(t, address, resource); got != code {
				return fmt.Errorf("a sidecar responds %d", got)
			}
			return nil
		})
		end()
	}
}

// listCode returns a sidecar's status code for a list in one namespace.
func listCode(t *testing.T, address, resource string) int {
	t.Helper()
	response := must(http.Get("http://" + address + "/api/v1/namespaces/default/" + resource))(t)
	defer response.Body.Close()
	must(io.Copy(io.Discard, response.Body))(t)
	return response.StatusCode
}

// helm runs Helm with the arguments of docs/install.md.
func (l *lifecycle) helm(t *testing.T, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), must(binaries.Path("helm"))(t), append(arguments, "--namespace=ctrlmesh", "--kubeconfig="+l.node.Kubeconfig)...)
	command.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return string(output)
}

// chartImages returns the chart's values for the images.
func chartImages(manager, proxy string) []string {
	managerName, managerTag := nameAndTag(manager)
	proxyName, proxyTag := nameAndTag(proxy)
	return []string{
		"--set=image.repository=" + managerName, "--set-string=image.tag=" + managerTag,
		"--set=proxy.image.repository=" + proxyName, "--set-string=proxy.image.tag=" + proxyTag,
	}
}
