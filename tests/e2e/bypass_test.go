package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/process"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file runs an operator whose flag --kubeconfig leads past its sidecar, beside one that uses its sidecar.

const (
	// bypassStartTime is how long the manager lets a pod's containers run before it misses their requests.
	bypassStartTime = time.Minute
	// bypassTimeout bounds the wait for the condition.
	bypassTimeout = bypassStartTime + waitTimeout
)

// TestBypassedSidecarIsNamed: a pod whose operator bypasses its sidecar is named in condition and Event, and a pod of
// the same shard whose operator uses its sidecar is not.
func TestBypassedSidecarIsNamed(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	m.setLabelledKinds(t, "")
	m.startManager(t, uniqueName("manager"))
	namespace := m.newNamespace(t)
	pods := startPods(t, m.controlPlane, namespace, podOptions{publicKey: m.waitPublicKey(t)})
	m.apply(t, namespace, shardConfig("left", "b0"))
	m.waitCondition(t, "ShardingConfig", namespace, "left", "Distributed", meta.ConditionTrue)

	// Each operator has objects of its own, so that each shows by itself that it works.
	objects := newObjectSet(t, m.controlPlane, "ConfigMap", 1, 1, "b0")
	startOperator(t, "through-0", pods.startBypassPod(t, "through-0"), "--app="+objects.app).waitHandled(t, objects)
	pods.reportOperatorRunning(t, "through-0")
	objects = newObjectSet(t, m.controlPlane, "ConfigMap", 1, 1, "b0")
	kubeconfig, app := pods.startBypassPod(t, "past-0"), "--app="+objects.app
	past := runOperator(t, "past-0", process.Spec{
		Path: shared.operatorBinary, Args: []string{app, "--kubeconfig=" + m.kubeconfig}, Env: []string{"KUBECONFIG=" + kubeconfig},
	})
	past.waitHandled(t, objects)
	pods.reportOperatorRunning(t, "past-0")

	message := m.waitBypassed(t, namespace, meta.ConditionTrue)
	assertNamesPod(t, "the condition", message)
	eventually(t, "an Event names the pod", func() error {
		found := must(m.client.EventsV1().Events(namespace).List(t.Context(), meta.ListOptions{}))(t)
		i := slices.IndexFunc(found.Items, func(event events.Event) bool {
			return event.Reason == "NoTraffic" && event.Regarding.Name == "left"
		})
		if i < 0 {
			return fmt.Errorf("none of %d Events", len(found.Items))
		}
		if event := found.Items[i]; event.Type != core.EventTypeWarning {
			t.Errorf("the Event is %s", event.Type)
		}
		assertNamesPod(t, "the Event", found.Items[i].Note)
		return nil
	})

	check(t, past.process.Stop(process.StopGrace))
	startOperator(t, "past-0", kubeconfig, app)
	m.waitBypassed(t, namespace, meta.ConditionFalse)
}

// waitHandled requests a step of each object and waits until the operator has handled one.
func (op *operatorProcess) waitHandled(t *testing.T, objects *objectSet) {
	t.Helper()
	objects.requestStepOfEach(t)
	eventually(t, op.id+" handles its objects", func() error {
		if op.countRecords(t, "handled") == 0 {
			return errors.New("no object is handled yet")
		}
		return nil
	})
}

// startBypassPod creates a pod of the shard and returns the kubeconfig that leads to its sidecar.
func (p *nodePods) startBypassPod(t *testing.T, name string) string {
	t.Helper()
	p.create(t, name, map[string]string{"shard": "left"})
	return sidecarKubeconfig(t, p.waitReady(t, name))
}

// reportOperatorRunning writes into a pod's status that its operator runs from now on. The fake kubelet reports the
// sidecar alone.
func (p *nodePods) reportOperatorRunning(t *testing.T, name string) {
	t.Helper()
	pods := p.plane.client.CoreV1().Pods(p.namespace)
	eventually(t, "the operator of "+name+" is reported", func() error {
		pod, err := pods.Get(t.Context(), name, meta.GetOptions{})
		if err != nil {
			return err
		}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, core.ContainerStatus{
			Name: "operator", Image: "operator", Ready: true,
			State: core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: meta.Now()}},
		})
		_, err = pods.UpdateStatus(t.Context(), pod, meta.UpdateOptions{})
		return err
	})
}

// waitBypassed waits for the shard's condition and returns its message.
func (m *mesh) waitBypassed(t *testing.T, namespace string, status meta.ConditionStatus) string {
	t.Helper()
	var message string
	eventuallyWithin(t, bypassTimeout, "Bypassed is "+string(status), func() error {
		found, _, err := m.readStatus(t.Context(), "ShardingConfig", namespace, "left")
		if err != nil {
			return err
		}
		condition := found.condition("Bypassed")
		if message = condition.Message; condition.Status != status {
			return fmt.Errorf("the conditions are %s", describeConditions(found.Conditions))
		}
		return nil
	})
	return message
}

func assertNamesPod(t *testing.T, what, text string) {
	t.Helper()
	if !strings.Contains(text, "past-0") || strings.Contains(text, "through-0") {
		t.Errorf("%s does not name past-0 alone: %s", what, text)
	}
}
