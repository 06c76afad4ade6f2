package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/process"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// This file runs the pods of chaos_test.go: operators that are restarted whenever they end, and a loop that records
// what their sidecars show.

const (
	// listInterval is the time between two lists.
	listInterval = 100 * time.Millisecond
	// operatorRestartDelay is the pause before an operator is restarted. Kubelet's backoff starts at 10 s.
	operatorRestartDelay = 200 * time.Millisecond
)

// replica is an operator in a pod.
type replica struct {
	pod    string
	labels map[string]string
	app    string
	// currentSidecar returns the pod's current sidecar.
	currentSidecar func() *sidecar.Sidecar
	cancel         context.CancelFunc
	done           sync.WaitGroup

	mu      sync.Mutex
	process *process.Process
	err     error
}

// startReplicas creates the missing pods and runs their operators.
func (c *chaos) startReplicas(t *testing.T, pods map[string]map[string]string) {
	t.Helper()
	maps.DeleteFunc(pods, func(pod string, _ map[string]string) bool { return c.replicas[pod] != nil })
	for pod, labels := range pods {
		c.pods.create(t, pod, labels)
	}
	for pod, labels := range pods {
		c.startReplica(t, pod, labels)
	}
}

func (c *chaos) startReplica(t *testing.T, pod string, labels map[string]string) {
	t.Helper()
	ready := c.pods.waitReady(t, pod)
	spec := process.Spec{
		Name: "operator-" + pod, Path: shared.operatorBinary, LogDir: newDir(t), Env: []string{"KUBECONFIG=" + sidecarKubeconfig(t, ready)},
		Args: []string{"--id=" + pod, "--app=" + c.objects.app, "--lock=" + lockName, "--lock-namespace=" + c.pods.namespace},
	}
	r := &replica{pod: pod, labels: labels, app: c.objects.app, currentSidecar: func() *sidecar.Sidecar { return c.pods.sidecar(pod) }}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	r.done.Go(func() { r.keepRunning(ctx, spec) })
	r.done.Go(func() { r.recordVisibleObjects(ctx, c.ownership) })
	c.replicas[pod] = r
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of the log of operator %s:\n%s", pod, r.logTail())
		}
	})
}

// keepRunning restarts the operator whenever it ends, as kubelet does.
func (r *replica) keepRunning(ctx context.Context, spec process.Spec) {
	for ctx.Err() == nil {
		started, err := process.Start(spec)
		r.mu.Lock()
		r.process, r.err = started, err
		r.mu.Unlock()
		if err != nil {
			return
		}
		select {
		case <-started.Done():
		case <-ctx.Done():
			started.Kill()
			return
		}
		select {
		case <-time.After(operatorRestartDelay):
		case <-ctx.Done():
		}
	}
}

// kill kills the running operator.
func (r *replica) kill() {
	r.mu.Lock()
	running := r.process
	r.mu.Unlock()
	if running != nil {
		running.Kill()
	}
}

// stop ends the operator; its pod stays.
func (r *replica) stop() error {
	r.cancel()
	r.done.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *replica) logTail() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return ""
	}
	return r.process.LogTail(2048)
}

// recordVisibleObjects lists through the sidecar in a loop and records every object that it shows. A dead sidecar shows
// nothing.
func (r *replica) recordVisibleObjects(ctx context.Context, log *ownershipLog) {
	tick := time.NewTicker(listInterval)
	defer tick.Stop()
	for {
		if keys, version, err := r.listVisible(ctx); err == nil {
			seen := time.Now()
			for _, key := range keys {
				log.recordWrite(key, version, observedWrite{writer: r.pod, seen: seen, description: "was shown the object", isSighting: true})
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// listVisible returns the objects that the sidecar shows, and the version of the list.
func (r *replica) listVisible(ctx context.Context) (keys []string, version string, err error) {
	address := "http://" + r.currentSidecar().API + "/api/v1/configmaps?labelSelector=" + url.QueryEscape("app="+r.app)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("the list returned %s", response.Status)
	}
	var list core.ConfigMapList
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, "", err
	}
	for _, object := range list.Items {
		keys = append(keys, object.Namespace+"/"+object.Name)
	}
	return keys, list.ResourceVersion, nil
}

// recreatePod deletes a pod and creates it again, with its operator.
func (c *chaos) recreatePod(t *testing.T, pod string) {
	t.Helper()
	before := c.replicas[pod]
	check(t, before.stop())
	check(t, c.client.CoreV1().Pods(c.pods.namespace).Delete(t.Context(), pod, meta.DeleteOptions{}))
	c.pods.waitGone(t, pod)
	c.pods.create(t, pod, before.labels)
	c.startReplica(t, pod, before.labels)
}

// cleanUp ends the round's operators and deletes their pods and shards.
func (c *chaos) cleanUp(t *testing.T) {
	for _, r := range c.replicas {
		r.cancel()
	}
	c.deletePodsAndShards(t, c.pods.namespace)
}

// deletePodsAndShards deletes the pods and ShardingConfigs of a namespace, so that managers have nothing more to do
// with them.
func (m *mesh) deletePodsAndShards(t *testing.T, namespace string) {
	everything := meta.DeleteOptions{GracePeriodSeconds: new(int64)}
	if err := m.client.CoreV1().Pods(namespace).DeleteCollection(background(), everything, meta.ListOptions{}); err != nil {
		t.Error(err)
	}
	configs := m.resource("ShardingConfig", namespace)
	list, err := configs.List(background(), meta.ListOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	for _, object := range list.Items {
		// Managers restore the chain until the namespace is deleted.
		_ = configs.Delete(background(), object.GetName(), meta.DeleteOptions{})
		_, _ = configs.Patch(background(), object.GetName(), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), meta.PatchOptions{})
	}
}

// rulesRemoval records the version of a namespace's chain from which on it contains no shard.
type rulesRemoval struct {
	mu        sync.Mutex
	hadRules  bool
	removedAt uint64
}

func watchRulesRemoval(t *testing.T, m *mesh, namespace string) *rulesRemoval {
	t.Helper()
	only := meta.ListOptions{FieldSelector: "metadata.name=" + kubelet.ChainConfigMap}
	stream := must(m.client.CoreV1().ConfigMaps(namespace).Watch(t.Context(), only))(t)
	r := &rulesRemoval{}
	var done sync.WaitGroup
	done.Go(func() {
		for event := range stream.ResultChan() {
			if chain, isChain := event.Object.(*core.ConfigMap); isChain {
				r.recordChain(chain, event.Type == watch.Deleted)
			}
		}
	})
	t.Cleanup(func() {
		stream.Stop()
		done.Wait()
	})
	return r
}

func (r *rulesRemoval) recordChain(chain *core.ConfigMap, isDeleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	has := !isDeleted && strings.Contains(chain.Data["chain.yaml"], "shard-selector/")
	if version, err := strconv.ParseUint(chain.ResourceVersion, 10, 64); err == nil && r.hadRules && !has {
		r.removedAt = version
	}
	r.hadRules = has
}

// checkRemoved returns an error while the chain contains a shard.
func (r *rulesRemoval) checkRemoved() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hadRules || r.removedAt == 0 {
		return fmt.Errorf("the chain contains shards, or has never contained any (it has: %t)", r.hadRules)
	}
	return nil
}

func (r *rulesRemoval) version() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removedAt
}

// writersAfter returns the operators that wrote something after a version.
func (o *ownershipLog) writersAfter(version uint64) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := map[string]bool{}
	for _, writes := range o.writes {
		for _, write := range writes {
			if !write.isSighting && write.version > version {
				found[write.writer] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
