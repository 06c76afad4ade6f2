package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file tests the fake kubelet with hand-written chains: other tests rely on its behaviour.

// publishChain writes a chain into ConfigMaps.
func publishChain(t *testing.T, namespace string, chain sidecar.Chain) {
	t.Helper()
	chain.Namespace = namespace
	document := map[string]string{"chain.yaml": string(must(chain.YAML())(t))}
	code := map[string][]byte{}
	for _, plugin := range chain.Plugins {
		code[sidecar.PluginFile(plugin)] = plugin.Bytes
	}
	putConfigMap(t, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: kubelet.ChainConfigMap, Namespace: namespace}, Data: document})
	putConfigMap(t, &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: kubelet.PluginConfigMap(3), Namespace: namespace}, BinaryData: code})
}

func putConfigMap(t *testing.T, object *core.ConfigMap) {
	t.Helper()
	configMaps := shared.client.CoreV1().ConfigMaps(object.Namespace)
	if _, err := configMaps.Get(t.Context(), object.Name, meta.GetOptions{}); err != nil {
		_, err := configMaps.Create(t.Context(), object, meta.CreateOptions{})
		check(t, err)
		return
	}
	_, err := configMaps.Update(t.Context(), object, meta.UpdateOptions{})
	check(t, err)
}

// waitGeneration waits until a sidecar runs a generation.
func waitGeneration(t *testing.T, s *sidecar.Sidecar, generation int64) sidecar.Status {
	t.Helper()
	var last sidecar.Status
	check(t, s.WaitStatus(t.Context(), fmt.Sprint("generation ", generation), func(status sidecar.Status) bool {
		last = status
		return status.Chain.Generation == generation
	}))
	return last
}

// podChain selects pods with the label shard=s0.
func podChain(t *testing.T, generation int64) sidecar.Chain {
	t.Helper()
	chain := shardChain(t, generation, shardRule("s0", "a"))
	chain.Entries[0].PodSelector = map[string]any{"matchLabels": map[string]string{"shard": "s0"}}
	return chain
}

func TestKubeletSyncsChangedPod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	publishChain(t, namespace, podChain(t, 1))
	p := startPods(t, shared.controlPlane, namespace, podOptions{syncPeriod: time.Hour})
	p.create(t, "operator-0", map[string]string{"shard": "s0"})
	s := p.waitReady(t, "operator-0")
	if status := waitGeneration(t, s, 1); len(status.Chain.Entries) != 1 {
		t.Errorf("the first chain: %s", status.Raw)
	}
	assertVolumeLayout(t, s.Volume.Dir, "chain.yaml", sidecar.PluginFile(readPlugin(t, "shard-selector")))

	for generation := range int64(20) {
		publishChain(t, namespace, podChain(t, 2+generation))
	}
	p.annotate(t, "operator-0", "21")
	waitGeneration(t, s, 21)
	p.annotate(t, "operator-0", "21, once more")
	p.patch(t, "operator-0", map[string]any{"labels": map[string]any{"shard": "s1"}})
	check(t, s.WaitStatus(t.Context(), "no entry for the other labels", func(status sidecar.Status) bool {
		return status.Chain.Generation == 21 && len(status.Chain.Entries) == 0
	}))
	if synced := p.kubelet.SyncState(namespace, "operator-0"); synced.Swaps != 2 {
		t.Errorf("the pod changed once since the chain changed, but the volume was swapped %d times", synced.Swaps-1)
	}
}

// assertVolumeLayout asserts the layout of kubelet's AtomicWriter: visible names are links through ..data, which is a
// link to a directory.
func assertVolumeLayout(t *testing.T, dir string, names ...string) {
	t.Helper()
	data := must(os.Readlink(filepath.Join(dir, "..data")))(t)
	if !strings.HasPrefix(data, "..2") {
		t.Errorf("..data points to %s", data)
	}
	for _, name := range names {
		if target := must(os.Readlink(filepath.Join(dir, name)))(t); target != "..data/"+name {
			t.Errorf("%s points to %s", name, target)
		}
	}
	if found := must(os.ReadDir(dir))(t); len(found) != len(names)+2 {
		t.Errorf("the volume contains %v", found)
	}
}

func TestKubeletSyncsAfterPeriod(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	p := startPods(t, shared.controlPlane, namespace, podOptions{syncPeriod: 100 * time.Millisecond})
	// Without a chain, a sidecar that has a chain volume is not ready; kubelet syncs the chain once it exists.
	p.create(t, "operator-0", nil)
	publishChain(t, namespace, podChain(t, 7))
	s := p.waitReady(t, "operator-0")
	publishChain(t, namespace, podChain(t, 8))
	waitGeneration(t, s, 8)
}

func TestKubeletRestartsAndEndsPods(t *testing.T) {
	t.Parallel()
	namespace := newNamespace(t)
	publishChain(t, namespace, podChain(t, 1))
	p := startPods(t, shared.controlPlane, namespace, podOptions{})
	p.create(t, "operator-0", map[string]string{"shard": "s0"})
	first := p.waitReady(t, "operator-0")
	get := func() *core.Pod {
		return must(shared.client.CoreV1().Pods(namespace).Get(t.Context(), "operator-0", meta.GetOptions{}))(t)
	}
	if pod := get(); pod.Status.PodIP+":"+kubelet.AdminPort != first.Admin {
		t.Errorf("the pod's IP is %s, the sidecar listens on %s", pod.Status.PodIP, first.Admin)
	}
	first.Process.Kill()
	eventually(t, "the restart is reported", func() error {
		if status := get().Status.ContainerStatuses[0]; status.RestartCount != 1 || !status.Ready {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	second := p.waitReady(t, "operator-0")
	if second == first || second.Admin != first.Admin || second.API != first.API {
		t.Errorf("the sidecar listened on %s and %s, and after its restart on %s and %s", first.Admin, first.API, second.Admin, second.API)
	}
	waitGeneration(t, second, 1)
	check(t, shared.client.CoreV1().Pods(namespace).Delete(t.Context(), "operator-0", meta.DeleteOptions{}))
	p.waitGone(t, "operator-0")
	if second.Process.Alive() {
		t.Error("the pod is deleted, but its sidecar still runs")
	}
}
