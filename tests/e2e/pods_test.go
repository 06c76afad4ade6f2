package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	kerrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file creates pods whose sidecars are real processes, on a node with a fake kubelet.

const (
	watchingLabel        = "ctrlmesh.kusionstack.io/watching"
	podNameLabel         = "statefulset.kubernetes.io/pod-name"
	generationAnnotation = "ctrlmesh.kusionstack.io/chain-generation"
	sidecarContainer     = "ctrlmesh-proxy"
)

// nodePods are the pods of one node, in one namespace.
type nodePods struct {
	plane     controlPlane
	namespace string
	node      string
	kubelet   *kubelet.Kubelet

	mu       sync.Mutex
	sidecars map[string]*sidecar.Sidecar
}

// podOptions say how pods are run.
type podOptions struct {
	// publicKey must have signed the chain; empty accepts every chain.
	publicKey string
	// syncPeriod of kubelet. Zero means kubelet's own, long enough that only a change of the pod explains a fast sync.
	syncPeriod time.Duration
	// syncDelay returns how much later than others a pod's volumes are synced; see [kubelet.Options].
	syncDelay func(pod string) time.Duration
	flags     []string
}

// syncPeriodWithFailover is for tests in which a leader may die after it has written a chain and before it has
// annotated the pods: then kubelet's period decides when they sync.
const syncPeriodWithFailover = 15 * time.Second

// startPods runs a fake kubelet for a namespace until the test ends.
func startPods(t *testing.T, plane controlPlane, namespace string, options podOptions) *nodePods {
	t.Helper()
	p := &nodePods{plane: plane, namespace: namespace, node: uniqueName("node"), sidecars: map[string]*sidecar.Sidecar{}}
	run := func(ctx context.Context, pod kubelet.Pod) (kubelet.Container, error) {
		s, err := sidecar.Start(ctx, sidecar.Options{
			Name: pod.Name, Dir: pod.Dir, Namespace: pod.Namespace, Kubeconfig: plane.kubeconfig, CacheDir: shared.cacheDir,
			PublicKey: options.publicKey, Pod: &pod, Flags: options.flags,
		})
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sidecars[pod.Name] = s
		return s, nil
	}
	var err error
	p.kubelet, err = kubelet.Start(t.Context(), kubelet.Options{
		Client: plane.client, Node: p.node, Dir: newDir(t), SyncPeriod: options.syncPeriod, SyncDelay: options.syncDelay, Run: run,
	})
	check(t, err)
	t.Cleanup(func() {
		if err := p.kubelet.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			p.logSidecars(t)
		}
	})
	return p
}

// logSidecars prints the end of each sidecar's log.
func (p *nodePods) logSidecars(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, s := range p.sidecars {
		t.Logf("end of %s (%s):\n%s", name, s.Process.LogPath, s.Process.LogTail(1024))
	}
}

// create creates a pod as a StatefulSet would, with additional labels, without waiting.
func (p *nodePods) create(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	check(t, p.tryCreate(t.Context(), name, labels))
}

func (p *nodePods) tryCreate(ctx context.Context, name string, labels map[string]string) error {
	all := map[string]string{watchingLabel: "true", podNameLabel: name}
	maps.Copy(all, labels)
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, Labels: all, Annotations: map[string]string{"ctrlmesh.kusionstack.io/injected": "kubeconfig"}},
		Spec: core.PodSpec{NodeName: p.node, Containers: []core.Container{
			{Name: sidecarContainer, Image: "sidecar"}, {Name: "operator", Image: "operator"},
		}},
	}
	_, err := p.plane.client.CoreV1().Pods(p.namespace).Create(ctx, pod, meta.CreateOptions{})
	return err
}

// waitReady waits until kubelet has reported a pod as ready, and returns its sidecar.
func (p *nodePods) waitReady(t *testing.T, name string) *sidecar.Sidecar {
	t.Helper()
	eventually(t, "pod "+name+" is ready", func() error {
		pod, err := p.plane.client.CoreV1().Pods(p.namespace).Get(t.Context(), name, meta.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == core.PodReady && condition.Status == core.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %v", pod.Status.Conditions)
	})
	return p.sidecar(name)
}

// sidecar returns the current or last sidecar of a pod; nil before the first.
func (p *nodePods) sidecar(name string) *sidecar.Sidecar {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sidecars[name]
}

// annotate changes a pod's annotation, as the manager does.
func (p *nodePods) annotate(t *testing.T, name, value string) {
	t.Helper()
	p.patch(t, name, map[string]any{"annotations": map[string]any{generationAnnotation: value}})
}

func (p *nodePods) patch(t *testing.T, name string, metadata map[string]any) {
	t.Helper()
	patch := must(json.Marshal(map[string]any{"metadata": metadata}))(t)
	_, err := p.plane.client.CoreV1().Pods(p.namespace).Patch(t.Context(), name, types.MergePatchType, patch, meta.PatchOptions{})
	check(t, err)
}

// waitGone waits until a pod no longer exists.
func (p *nodePods) waitGone(t *testing.T, name string) {
	t.Helper()
	eventually(t, "pod "+name+" is gone", func() error {
		_, err := p.plane.client.CoreV1().Pods(p.namespace).Get(t.Context(), name, meta.GetOptions{})
		switch {
		case kerrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("the pod still exists")
	})
}
