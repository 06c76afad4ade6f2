package story

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

// This file upgrades from an earlier commit (docs/adr/0042): managers before sidecars with kustomize, and sidecars before managers with
// Helm, under an operator at work.

const (
	earlierManagerImage = "localhost/ctrlmesh-e2e/manager:earlier"
	earlierProxyImage   = "localhost/ctrlmesh-e2e/proxy:earlier"
	// heldReason is why an object is not distributed that needs more than a sidecar supports.
	heldReason = "SidecarOutdated"
)

// upgrade is a story with two versions of everything.
type upgrade struct {
	*story
	earlier earlier.Installation
	// proxyNow and managerNow are the images of this checkout.
	proxyNow, managerNow string
}

func TestUpgrade(t *testing.T) {
	u := &upgrade{story: newStory(t)}
	u.tell(t, []chapter{
		{"earlier", u.isEarlier},
		{"managers first", u.managersFirst},
		{"then sidecars", u.thenSidecars},
		{"away", u.isAway},
		{"earlier by Helm", u.isEarlierByHelm},
		{"sidecars first", u.sidecarsFirst},
		{"then managers", u.thenManagers},
		{"away by Helm", u.isAwayByHelm},
	})
}

// isEarlier installs what there was, and gives an operator to it.
func (u *upgrade) isEarlier(t *testing.T) {
	u.earlier = must(earlier.Find())(t)
	u.loadImages(t)
	u.loadOperator(t)
	u.managerNow, u.proxyNow = u.managerImage, u.proxyImage
	u.managerImage, u.proxyImage = earlierManagerImage, earlierProxyImage
	u.loadPrograms(t, u.earlier.Manager, u.earlier.Proxy)
	u.overlay = u.writeOverlayOn(t, u.earlier.Deploy)
	u.appliesOverlay(t)
	u.main = u.operator("upgraded", []string{"team-a"}, []string{"team-b"})
	u.main.makeItems(t)
	u.main.starts(t)
	u.main.handled(t)
	u.apply(t, u.main.fault("before", "events", "list", "default", firstCode))
	u.ruleIsEnforced(t, "before")
	u.main.obeys(t, "events", firstCode)
}

// managersFirst: sidecars go on with what they have. What needs more than they support is held back, and says for whom.
func (u *upgrade) managersFirst(t *testing.T) {
	o := u.main
	born := o.incarnations(t)
	l := o.follow(t)
	stop := l.work(t)
	u.managerImage, u.proxyImage = u.managerNow, u.proxyNow
	u.overlay = u.writeOverlay(t)
	u.appliesOverlay(t)
	u.apply(t, o.fault("after", "configmaps", "list", "default", firstCode+1))
	u.apply(t, o.fault("before", "events", "list", "default", firstCode+2))
	for _, rule := range []string{"after", "before"} {
		u.isHeld(t, rule)
	}
	stop(t)
	o.handled(t)
	l.judgeShards(t)
	l.stop()
	// Shards need nothing new: they change as ever.
	was := map[string]string{"team-a": o.owner("team-a"), "team-b": o.owner("team-b")}
	o.teams[0], o.teams[1] = o.teams[1], o.teams[0]
	o.apply(t, o.shards())
	o.enforced(t)
	o.handled(t)
	o.oneOwnerAtATime(t, was)
	o.obeys(t, "events", firstCode)
	o.obeys(t, "configmaps", http.StatusOK)
	for pod, now := range o.incarnations(t) {
		if now != born[pod] {
			t.Errorf("%s was\n%s\nand is\n%s", pod, born[pod], now)
		}
	}
}

// thenSidecars: pod by pod, sharded all the time. What was held back is in force then.
func (u *upgrade) thenSidecars(t *testing.T) {
	o := u.main
	u.restartsUnderLoad(t, u.proxyNow)
	for _, rule := range []string{"after", "before"} {
		u.ruleIsEnforced(t, rule)
	}
	o.obeys(t, "events", firstCode+2)
	o.obeys(t, "configmaps", firstCode+1)
}

// isAway makes room for Helm. The operator's objects stay.
func (u *upgrade) isAway(t *testing.T) {
	u.main.leavesMesh(t)
	u.kubectl(t, "", "delete", "circuitbreakers,faultinjections", "--all", "-A", "--timeout="+patience.String())
	u.kubectl(t, "", "delete", "--kustomize="+u.overlay, "--timeout="+patience.String())
	u.nothingIsInstalled(t)
	u.main.worksAlone(t)
	u.quoted(t, "Uninstalling", "kubectl delete configmaps,secrets -A -l app.kubernetes.io/managed-by=ctrlmesh-manager")
	u.kubectl(t, "", "delete", "--namespace="+u.main.name, "statefulset/"+u.main.name, "--cascade=foreground", "--timeout="+patience.String())
}

func (u *upgrade) isEarlierByHelm(t *testing.T) {
	begin := time.Now()
	chart := filepath.Join(u.earlier.Deploy, "helm", "ctrlmesh")
	u.helm(t, append([]string{"install", "ctrlmesh", chart, "--create-namespace"}, chartImages(earlierManagerImage, earlierProxyImage)...)...)
	u.kubectl(t, "", "label", "namespace", "ctrlmesh", "pod-security.kubernetes.io/enforce=restricted", ours+"control=false")
	u.managersReady(t)
	t.Logf("managers were ready %s after helm install", rounded(time.Since(begin)))
	u.main.starts(t)
	u.main.handled(t)
}

// sidecarsFirst: the earlier managers put this checkout's sidecars into pods.
func (u *upgrade) sidecarsFirst(t *testing.T) {
	chart := filepath.Join(u.earlier.Deploy, "helm", "ctrlmesh")
	u.helm(t, append([]string{"upgrade", "ctrlmesh", chart}, chartImages(earlierManagerImage, u.proxyNow)...)...)
	u.managersReady(t)
	u.restartsUnderLoad(t, u.proxyNow)
	u.apply(t, u.main.fault("before", "events", "list", "default", firstCode))
	u.ruleIsEnforced(t, "before")
	u.main.obeys(t, "events", firstCode)
}

// thenManagers: in the words of docs/install.md, while the operator works. Nothing needs to be held back.
func (u *upgrade) thenManagers(t *testing.T) {
	o := u.main
	born := o.incarnations(t)
	l := o.follow(t)
	stop := l.work(t)
	u.upgradesByHelm(t)
	u.managersReady(t)
	u.apply(t, o.fault("after", "configmaps", "list", "default", firstCode+1))
	u.ruleIsEnforced(t, "after")
	o.enforced(t)
	stop(t)
	o.handled(t)
	l.judgeShards(t)
	o.obeys(t, "events", firstCode)
	o.obeys(t, "configmaps", firstCode+1)
	for pod, now := range o.incarnations(t) {
		if now != born[pod] {
			t.Errorf("%s was\n%s\nand is\n%s", pod, born[pod], now)
		}
	}
}

// upgradesByHelm has the flags that docs/install.md gives, and the hook that deletes shards before managers go.
func (u *upgrade) upgradesByHelm(t *testing.T) {
	t.Helper()
	const documented = "helm upgrade ctrlmesh deploy/helm/ctrlmesh --namespace ctrlmesh --reset-then-reuse-values"
	if !strings.Contains(textOf(t, "Upgrading"), documented) {
		t.Fatalf("docs/install.md does not say `%s`", documented)
	}
	chart := must(filepath.Abs(filepath.Join(deploy, "helm", "ctrlmesh")))(t)
	u.helm(t, append([]string{"upgrade", "ctrlmesh", chart, "--reset-then-reuse-values", "--set=uninstall.deleteShardingConfigs=true"},
		chartImages(u.managerNow, u.proxyNow)...)...)
}

// isAwayByHelm: Helm's hook deletes the shards of an operator that has gone through zero, and then Helm everything but the definitions.
func (u *upgrade) isAwayByHelm(t *testing.T) {
	o := u.main
	o.kubectl(t, "", "scale", "--namespace="+o.name, "statefulset/"+o.name, "--replicas=0")
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=delete", "pod", "--selector=app="+o.name, "--timeout="+patience.String())
	begin := time.Now()
	u.helm(t, "uninstall", "ctrlmesh", "--timeout="+patience.String())
	t.Logf("helm uninstall took %s", rounded(time.Since(begin)))
	if left := o.kubectl(t, "", "get", "shardingconfigs", "--all-namespaces", "--output=name"); left != "" {
		t.Errorf("there are %s", left)
	}
	u.kubectl(t, "", "delete", "crd", "--selector=app.kubernetes.io/part-of=ctrlmesh", "--timeout="+patience.String())
	u.kubectl(t, "", "delete", "namespace", "ctrlmesh", "--timeout="+patience.String())
	u.nothingIsInstalled(t)
	o.apply(t, o.statefulSet(false))
	o.ready(t)
	o.worksAlone(t)
}

// restartsUnderLoad makes the operator's pods again, one by one, and demands that each has this sidecar then and that nobody handled
// another's object meanwhile.
func (u *upgrade) restartsUnderLoad(t *testing.T, image string) {
	t.Helper()
	o := u.main
	l := o.follow(t)
	ready := o.countsReady(t)
	stop := l.work(t)
	begin := time.Now()
	for _, command := range []string{"restart", "status"} {
		o.kubectl(t, "", "rollout", command, "--namespace="+o.name, "statefulset/"+o.name)
	}
	t.Logf("%d pods had the other sidecar after %s", o.replicas, rounded(time.Since(begin)))
	stop(t)
	o.hasSidecar(t, image, ready())
	l.judgeShards(t)
}

func (u *upgrade) ruleIsEnforced(t *testing.T, rule string) {
	t.Helper()
	u.kubectl(t, "", "wait", "--namespace="+u.main.name, "--for=condition=Enforced", "faultinjections/"+rule, "--timeout="+patience.String())
}

// isHeld waits until a rule names all pods of the operator, whose sidecars are too old for it.
func (u *upgrade) isHeld(t *testing.T, rule string) {
	t.Helper()
	eventually(t, rule+" is held back", func() error {
		const path = `--output=jsonpath={.status.conditions[?(@.type=="Distributed")]}`
		condition := u.kubectl(t, "", "get", "--namespace="+u.main.name, "faultinjections/"+rule, path)
		for _, word := range append([]string{`"False"`, heldReason}, u.main.pods()...) {
			if !strings.Contains(condition, word) {
				return fmt.Errorf("its condition is %s", condition)
			}
		}
		return nil
	})
	eventually(t, "an Event says so", func() error {
		events := u.kubectl(t, "", "get", "events", "--namespace="+u.main.name, "--field-selector=reason="+heldReason)
		if !strings.Contains(events, rule) {
			return fmt.Errorf("there are %s", events)
		}
		return nil
	})
}

// obeys waits until every sidecar answers a list in one namespace so.
func (o *operator) obeys(t *testing.T, resource string, code int) {
	t.Helper()
	for _, pod := range o.pods() {
		address, end, err := o.node.Forward(t.Context(), o.name, pod, sidecarPort)
		check(t, err)
		eventually(t, fmt.Sprintf("%s answers %d to a list of %s", pod, code, resource), func() error {
			if got := lists(t, address, resource); got != code {
				return fmt.Errorf("it answers %d", got)
			}
			return nil
		})
		end()
	}
}

// lists is the code that a list in one namespace gets from a sidecar.
func lists(t *testing.T, address, resource string) int {
	t.Helper()
	response := must(http.Get("http://" + address + "/api/v1/namespaces/default/" + resource))(t)
	defer response.Body.Close()
	must(io.Copy(io.Discard, response.Body))(t)
	return response.StatusCode
}

// helm runs Helm as docs/install.md does.
func (s *story) helm(t *testing.T, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), must(binaries.Path("helm"))(t), append(arguments, "--namespace=ctrlmesh", "--kubeconfig="+s.node.Kubeconfig)...)
	command.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return string(output)
}

// chartImages are values of the chart.
func chartImages(manager, proxy string) []string {
	managerName, managerTag := nameAndTag(manager)
	proxyName, proxyTag := nameAndTag(proxy)
	return []string{
		"--set=image.repository=" + managerName, "--set-string=image.tag=" + managerTag,
		"--set=proxy.image.repository=" + proxyName, "--set-string=proxy.image.tag=" + proxyTag,
	}
}
