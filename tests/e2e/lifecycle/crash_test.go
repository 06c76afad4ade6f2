package lifecycle

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/realnode"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file kills sidecars, operators and managers.

// testContainerCrashes: a restarted sidecar has the chain of its predecessor, and the operator continues in its pod.
func (l *lifecycle) testContainerCrashes(t *testing.T) {
	l.mainOperator.crashContainer(t, l.mainOperator.podName(0), proxyContainer)
	l.mainOperator.assertStepsHandled(t)
	l.mainOperator.assertVisible(t, l.mainOperator.podName(0), l.mainOperator.teams[0]...)
}

// crashContainer kills a container, and waits until it runs again with the same chain and no other container has
// restarted.
func (op *operator) crashContainer(t *testing.T, pod, container string) {
	t.Helper()
	others := map[string]string{proxyContainer: operatorContainer, operatorContainer: proxyContainer}
	restarts := func(name string) int32 {
		status, _ := realnode.ContainerStatus(op.getPod(t, pod), name)
		return status.RestartCount
	}
	generation := op.sidecarStatus(t, pod).Chain.Generation
	wants, other := restarts(container)+1, restarts(others[container])
	begin := time.Now()
	check(t, op.node.Crash(t.Context(), op.name, pod, container))
	eventually(t, container+" of "+pod+" runs again", func() error {
		found := op.getPod(t, pod)
		status, _ := realnode.ContainerStatus(found, container)
		if status.RestartCount != wants || !status.Ready {
			return fmt.Errorf("the container was restarted %d times: %+v", status.RestartCount, status.State)
		}
		return nil
	})
	t.Logf("%s was ready again after %s", container, rounded(time.Since(begin)))
	// A later chain may have arrived meanwhile.
	if now := op.sidecarStatus(t, pod).Chain.Generation; now < generation {
		t.Errorf("the sidecar runs generation %d, and ran %d before", now, generation)
	}
	if now := restarts(others[container]); now != other {
		t.Errorf("%s was also restarted", others[container])
	}
}

// sidecarStatus asks a sidecar at its pod's IP, as the manager does.
func (op *operator) sidecarStatus(t *testing.T, pod string) sidecar.Status {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: op.node.Dial, DisableKeepAlives: true}, Timeout: waitTimeout}
	response := must(client.Get("http://" + net.JoinHostPort(op.getPod(t, pod).Status.PodIP, "5441") + "/status"))(t)
	defer response.Body.Close()
	var status sidecar.Status
	check(t, json.NewDecoder(response.Body).Decode(&status))
	return status
}

// leadingManager returns the pod that holds the managers' lock.
func (l *lifecycle) leadingManager(t *testing.T) string {
	t.Helper()
	lease := must(l.node.Client.CoordinationV1().Leases("ctrlmesh").Get(t.Context(), "ctrlmesh-manager", meta.GetOptions{}))(t)
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// testLeaderCrash: when the leading manager hangs and is killed, the other one leads once the lock has expired. The
// replacement pod becomes ready without leading, because it answers webhooks.
func (l *lifecycle) testLeaderCrash(t *testing.T) {
	op := l.mainOperator
	var first string
	eventually(t, "a manager leads", func() error {
		if first = l.leadingManager(t); first == "" {
			return fmt.Errorf("nobody holds the lock")
		}
		return nil
	})
	// A hung manager can't release the lock.
	must(l.node.Pause(t.Context(), "ctrlmesh", first, operatorContainer))(t)
	begin := time.Now()
	l.kubectl(t, "", "delete", "--namespace=ctrlmesh", "pod/"+first, "--grace-period=0", "--force")
	var second string
	eventually(t, "the other manager leads", func() error {
		if second = l.leadingManager(t); second == "" || second == first {
			return fmt.Errorf("%q holds the lock", second)
		}
		return nil
	})
	t.Logf("the other manager led after %s", rounded(time.Since(begin)))
	l.waitManagersReady(t)
	op.apply(t, op.faultManifest("after-all", "configmaps", "list", "default", firstStatusCode))
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Enforced", "faultinjections/after-all", "--timeout="+waitTimeout.String())
	op.kubectl(t, "", "delete", "--namespace="+op.name, "faultinjections/after-all")
	pods := must(l.node.Client.CoreV1().Pods("ctrlmesh").List(t.Context(), meta.ListOptions{}))(t)
	ready := 0
	for _, pod := range pods.Items {
		if status, _ := realnode.ContainerStatus(&pod, operatorContainer); pod.DeletionTimestamp == nil && status.Ready {
			ready++
		}
	}
	if now := l.leadingManager(t); ready != 2 || now != second {
		t.Errorf("%d managers are ready, and %s leads, not %s", ready, now, second)
	}
}

// testHungSidecar: a condition names a sidecar that does not answer, and other sidecars are not delayed.
func (l *lifecycle) testHungSidecar(t *testing.T) {
	op := l.mainOperator
	stuck := op.podName(op.replicas - 1)
	resume, err := l.node.Pause(t.Context(), op.name, stuck, proxyContainer)
	check(t, err)
	op.apply(t, op.faultManifest("unheard", "configmaps", "list", "default", firstStatusCode))
	for _, pod := range op.podNames()[:op.replicas-1] {
		address, end, err := op.node.Forward(t.Context(), op.name, pod, sidecarPort)
		check(t, err)
		waitStatusCode(t, address, firstStatusCode)
		end()
	}
	eventually(t, stuck+" is named, and nobody else", func() error {
		const path = `--output=jsonpath={.status.conditions[?(@.type=="Enforced")]}`
		condition := op.kubectl(t, "", "get", "--namespace="+op.name, "faultinjections/unheard", path)
		if !strings.Contains(condition, `"False"`) || !strings.Contains(condition, stuck) || strings.Contains(condition, op.podName(0)) {
			return fmt.Errorf("the condition is %s", condition)
		}
		return nil
	})
	check(t, resume())
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Enforced", "faultinjections/unheard", "--timeout="+waitTimeout.String())
	op.kubectl(t, "", "delete", "--namespace="+op.name, "faultinjections/unheard")
}

const plainPod = `
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: operator}
spec:
  containers: [{name: main, image: ` + realnode.WorkloadImage + `, args: [sleep]}]
`

// testWithoutManagers: without any manager, containers restart, and pods that do not ask for a sidecar are created.
func (l *lifecycle) testWithoutManagers(t *testing.T) {
	op := l.mainOperator
	l.scaleManagers(t, 0)
	op.crashContainer(t, op.podName(1), proxyContainer)
	op.crashContainer(t, op.podName(2), operatorContainer)
	op.assertStepsHandled(t)
	op.assertVisible(t, op.podName(1), op.teams[1]...)
	op.assertVisible(t, op.podName(2), op.teams[2]...)
	l.apply(t, plainPod)
	l.kubectl(t, "", "wait", "--namespace=operator", "--for=condition=Ready", "pod/plain", "--timeout="+waitTimeout.String())
	l.kubectl(t, "", "delete", "--namespace=operator", "pod/"+op.podName(2))
	eventually(t, "events say why no pod with a sidecar is created", func() error {
		const name = "pods.inject.ctrlmesh.kusionstack.io"
		events := l.kubectl(t, "", "get", "events", "--namespace=operator", "--field-selector=reason=FailedCreate")
		if !strings.Contains(events, name) {
			return fmt.Errorf("the events do not name the webhook %s: %s", name, events)
		}
		return nil
	})
	l.scaleManagers(t, 2)
	op.waitReady(t)
	op.waitEnforced(t)
	op.assertStepsHandled(t)
}

func (l *lifecycle) scaleManagers(t *testing.T, replicas int) {
	t.Helper()
	l.kubectl(t, "", "scale", "--namespace=ctrlmesh", "deployment/ctrlmesh-manager", fmt.Sprintf("--replicas=%d", replicas))
	l.kubectl(t, "", "rollout", "status", "--namespace=ctrlmesh", "deployment/ctrlmesh-manager", "--timeout="+waitTimeout.String())
	eventually(t, fmt.Sprintf("there are %d managers", replicas), func() error {
		pods := must(l.node.Client.CoreV1().Pods("ctrlmesh").List(t.Context(), meta.ListOptions{}))(t)
		if len(pods.Items) != replicas {
			return fmt.Errorf("there are %d manager pods", len(pods.Items))
		}
		return nil
	})
}
