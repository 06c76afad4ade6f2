package story

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

// This file has sidecars, operators and managers die.

// survivesCrash: the sidecar that follows one that died has the chain of that one, and the operator goes on in its pod.
func (s *story) survivesCrash(t *testing.T) {
	s.main.crashes(t, s.main.pod(0), proxyContainer)
	s.main.handled(t)
	s.main.sees(t, s.main.pod(0), s.main.teams[0]...)
}

// crashes kills a container, and waits until it runs again with the chain of before and nothing else was started again.
func (o *operator) crashes(t *testing.T, pod, container string) {
	t.Helper()
	others := map[string]string{proxyContainer: mainContainer, mainContainer: proxyContainer}
	restarts := func(name string) int32 {
		status, _ := realnode.ContainerStatus(o.get(t, pod), name)
		return status.RestartCount
	}
	generation := o.status(t, pod).Chain.Generation
	wants, other := restarts(container)+1, restarts(others[container])
	begin := time.Now()
	check(t, o.node.Crash(t.Context(), o.name, pod, container))
	eventually(t, container+" of "+pod+" runs again", func() error {
		found := o.get(t, pod)
		status, _ := realnode.ContainerStatus(found, container)
		if status.RestartCount != wants || !status.Ready {
			return fmt.Errorf("it was started again %d times: %+v", status.RestartCount, status.State)
		}
		return nil
	})
	t.Logf("%s was ready again after %s", container, rounded(time.Since(begin)))
	// A later one may have come meanwhile.
	if now := o.status(t, pod).Chain.Generation; now < generation {
		t.Errorf("the sidecar runs generation %d, and ran %d before", now, generation)
	}
	if now := restarts(others[container]); now != other {
		t.Errorf("%s was started again, too", others[container])
	}
}

// status asks a sidecar at the address of its pod, as the manager does.
func (o *operator) status(t *testing.T, pod string) sidecar.Status {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: o.node.Dial, DisableKeepAlives: true}, Timeout: patience}
	response := must(client.Get("http://" + net.JoinHostPort(o.get(t, pod).Status.PodIP, "5441") + "/status"))(t)
	defer response.Body.Close()
	var status sidecar.Status
	check(t, json.NewDecoder(response.Body).Decode(&status))
	return status
}

// leadingManager is the pod that holds the managers' lock.
func (s *story) leadingManager(t *testing.T) string {
	t.Helper()
	lease := must(s.node.Client.CoordinationV1().Leases("ctrlmesh").Get(t.Context(), "ctrlmesh-manager", meta.GetOptions{}))(t)
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// survivesLeader: when the manager that leads hangs and is killed, the other one leads once the lock has run out, and the one that is made
// in its place is ready without leading: it answers webhooks.
func (s *story) survivesLeader(t *testing.T) {
	o := s.main
	var first string
	eventually(t, "a manager leads", func() error {
		if first = s.leadingManager(t); first == "" {
			return fmt.Errorf("nobody holds the lock")
		}
		return nil
	})
	// So it can't give the lock back.
	must(s.node.Pause(t.Context(), "ctrlmesh", first, mainContainer))(t)
	begin := time.Now()
	s.kubectl(t, "", "delete", "--namespace=ctrlmesh", "pod/"+first, "--grace-period=0", "--force")
	var second string
	eventually(t, "the other manager leads", func() error {
		if second = s.leadingManager(t); second == "" || second == first {
			return fmt.Errorf("%q holds the lock", second)
		}
		return nil
	})
	t.Logf("the other manager led after %s", rounded(time.Since(begin)))
	s.managersReady(t)
	o.apply(t, o.fault("after-all", "configmaps", "list", "default", firstCode))
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Enforced", "faultinjections/after-all", "--timeout="+patience.String())
	o.kubectl(t, "", "delete", "--namespace="+o.name, "faultinjections/after-all")
	pods := must(s.node.Client.CoreV1().Pods("ctrlmesh").List(t.Context(), meta.ListOptions{}))(t)
	ready := 0
	for _, pod := range pods.Items {
		if status, _ := realnode.ContainerStatus(&pod, mainContainer); pod.DeletionTimestamp == nil && status.Ready {
			ready++
		}
	}
	if now := s.leadingManager(t); ready != 2 || now != second {
		t.Errorf("%d managers are ready, and %s leads, not %s", ready, now, second)
	}
}

// namesWhoHangs: a sidecar that does not answer is named, and holds up no other.
func (s *story) namesWhoHangs(t *testing.T) {
	o := s.main
	stuck := o.pod(o.replicas - 1)
	resume, err := s.node.Pause(t.Context(), o.name, stuck, proxyContainer)
	check(t, err)
	o.apply(t, o.fault("unheard", "configmaps", "list", "default", firstCode))
	for _, pod := range o.pods()[:o.replicas-1] {
		address, end, err := o.node.Forward(t.Context(), o.name, pod, sidecarPort)
		check(t, err)
		answers(t, address, firstCode)
		end()
	}
	eventually(t, stuck+" is named, and nobody else", func() error {
		const path = `--output=jsonpath={.status.conditions[?(@.type=="Enforced")]}`
		condition := o.kubectl(t, "", "get", "--namespace="+o.name, "faultinjections/unheard", path)
		if !strings.Contains(condition, `"False"`) || !strings.Contains(condition, stuck) || strings.Contains(condition, o.pod(0)) {
			return fmt.Errorf("its condition is %s", condition)
		}
		return nil
	})
	check(t, resume())
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Enforced", "faultinjections/unheard", "--timeout="+patience.String())
	o.kubectl(t, "", "delete", "--namespace="+o.name, "faultinjections/unheard")
}

const plainPod = `
apiVersion: v1
kind: Pod
metadata: {name: plain, namespace: operator}
spec:
  containers: [{name: main, image: ` + realnode.WorkloadImage + `, args: [sleep]}]
`

// survivesManagers: while there is no manager, containers that die come back, and pods that don't ask for a sidecar are made.
func (s *story) survivesManagers(t *testing.T) {
	o := s.main
	s.scaleManagers(t, 0)
	o.crashes(t, o.pod(1), proxyContainer)
	o.crashes(t, o.pod(2), mainContainer)
	o.handled(t)
	o.sees(t, o.pod(1), o.teams[1]...)
	o.sees(t, o.pod(2), o.teams[2]...)
	s.apply(t, plainPod)
	s.kubectl(t, "", "wait", "--namespace=operator", "--for=condition=Ready", "pod/plain", "--timeout="+patience.String())
	s.kubectl(t, "", "delete", "--namespace=operator", "pod/"+o.pod(2))
	eventually(t, "events say why no pod with a sidecar is made", func() error {
		const name = "pods.inject.ctrlmesh.kusionstack.io"
		events := s.kubectl(t, "", "get", "events", "--namespace=operator", "--field-selector=reason=FailedCreate")
		if !strings.Contains(events, name) {
			return fmt.Errorf("they do not name the webhook %s: %s", name, events)
		}
		return nil
	})
	s.scaleManagers(t, 2)
	o.ready(t)
	o.enforced(t)
	o.handled(t)
}

func (s *story) scaleManagers(t *testing.T, replicas int) {
	t.Helper()
	s.kubectl(t, "", "scale", "--namespace=ctrlmesh", "deployment/ctrlmesh-manager", fmt.Sprintf("--replicas=%d", replicas))
	s.kubectl(t, "", "rollout", "status", "--namespace=ctrlmesh", "deployment/ctrlmesh-manager", "--timeout="+patience.String())
	eventually(t, fmt.Sprintf("there are %d managers", replicas), func() error {
		pods := must(s.node.Client.CoreV1().Pods("ctrlmesh").List(t.Context(), meta.ListOptions{}))(t)
		if len(pods.Items) != replicas {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
}
