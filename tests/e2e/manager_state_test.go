package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/manager"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// This file tests the ManagerState. The managers' pods are fake: they have names and addresses, but no containers.

const webhookService = "ctrlmesh-manager-webhook"

func (m *mesh) tryCreateNamespace(ctx context.Context, name string) error {
	namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}
	_, err := m.client.CoreV1().Namespaces().Create(ctx, namespace, meta.CreateOptions{})
	return err
}

// createManagerPod creates a fake pod of a manager.
func (m *mesh) createManagerPod(t *testing.T, name, address string) {
	t.Helper()
	pods := m.client.CoreV1().Pods(manager.Namespace)
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"app": "manager"}},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "a", Image: "a"}}},
	}
	created := must(pods.Create(t.Context(), pod, meta.CreateOptions{}))(t)
	created.Status.Phase, created.Status.PodIP = core.PodRunning, address
	created.Status.PodIPs = []core.PodIP{{IP: address}}
	_, err := pods.UpdateStatus(t.Context(), created, meta.UpdateOptions{})
	check(t, err)
}

func (s *managerReplicas) testManagerState(t *testing.T) {
	service := &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: webhookService},
		Spec:       core.ServiceSpec{Selector: map[string]string{"app": "manager"}, Ports: []core.ServicePort{{Port: 443}}},
	}
	_, err := s.client.CoreV1().Services(manager.Namespace).Create(t.Context(), service, meta.CreateOptions{})
	check(t, err)
	addresses := map[string]string{}
	play := func() {
		t.Helper()
		for _, running := range s.managers {
			if addresses[running.Name] == "" {
				addresses[running.Name] = fmt.Sprintf("10.0.0.%d", len(addresses)+1)
				s.createManagerPod(t, running.Name, addresses[running.Name])
			}
		}
	}
	play()
	for range 2 {
		s.waitManagerState(t, addresses, waitLeader(t, s.managers...).Name)
		dead := waitLeader(t, s.managers...)
		s.killLeader(t)
		play()
		s.waitManagerState(t, addresses, waitLeader(t, s.managers...).Name)
		check(t, s.client.CoreV1().Pods(manager.Namespace).Delete(t.Context(), dead.Name, meta.DeleteOptions{GracePeriodSeconds: new(int64)}))
		delete(addresses, dead.Name)
		addresses["gone/"+dead.Name] = "" // addresses must be unique
		s.waitManagerState(t, addresses, waitLeader(t, s.managers...).Name)
	}
}

// waitManagerState waits until the ManagerState lists these managers and this leader.
func (m *mesh) waitManagerState(t *testing.T, addresses map[string]string, leads string) {
	t.Helper()
	want := []string{}
	for name, address := range addresses {
		if address != "" {
			want = append(want, fmt.Sprintf("%s at %s, leader %t", name, address, name == leads))
		}
	}
	slices.Sort(want)
	states := m.dynamic.Resource(schema.GroupVersionResource{Group: "ctrlmesh.kusionstack.io", Version: "v1alpha1", Resource: "managerstates"})
	eventually(t, "the ManagerState has "+leads, func() error {
		object, err := states.Get(t.Context(), "ctrlmesh-manager", meta.GetOptions{})
		if err != nil {
			return err
		}
		namespace, _, _ := unstructured.NestedString(object.Object, "status", "namespace")
		endpoints, _, err := unstructured.NestedSlice(object.Object, "status", "endpoints")
		if err != nil {
			return err
		}
		got := []string{}
		for _, endpoint := range endpoints {
			fields, isObject := endpoint.(map[string]any)
			if !isObject {
				return fmt.Errorf("the endpoint is %v", endpoint)
			}
			got = append(got, fmt.Sprintf("%v at %v, leader %v", fields["name"], fields["podIP"], fields["leader"]))
		}
		if namespace != manager.Namespace || !slices.Equal(got, want) {
			return fmt.Errorf("in %q the managers are %s, not %s", namespace, strings.Join(got, "; "), strings.Join(want, "; "))
		}
		return nil
	})
}
