package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// restartDelay is the pause before a program is restarted. Kubelet's backoff starts at 10 s.
	restartDelay = 100 * time.Millisecond
	// retryDelay is the pause after a failed request to the API server.
	retryDelay = 100 * time.Millisecond
)

// worker runs one pod. Only its own goroutine accesses volumes and program.
type worker struct {
	kubelet *Kubelet
	uid     types.UID
	info    Pod
	changed chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc

	mu  sync.Mutex
	pod *core.Pod

	// synced is guarded by the kubelet's lock.
	synced   Sync
	restarts int32
}

// startResult is the result of starting a program.
type startResult struct {
	container Container
	err       error
}

// notify passes a changed pod to the worker. Like kubelet, it only uses the latest version.
func (w *worker) notify(pod *core.Pod) {
	w.mu.Lock()
	w.pod = pod
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *worker) latestPod() *core.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod
}

func (w *worker) run() {
	defer w.cancel()
	w.syncVolumes()
	w.writeStatus(false)
	starts := make(chan startResult, 1)
	var begun sync.WaitGroup
	defer begun.Wait()
	begin := func(after time.Duration) {
		begun.Go(func() {
			if !w.pause(after) {
				return
			}
			container, err := w.kubelet.options.Run(w.ctx, w.info)
			starts <- startResult{container, err}
		})
	}
	begin(0)
	period := time.NewTicker(w.kubelet.options.SyncPeriod)
	defer period.Stop()
	var running Container
	for {
		ended := make(<-chan struct{})
		if running != nil {
			ended = running.Done()
		}
		select {
		case <-w.ctx.Done():
			begun.Wait()
			w.stop(running, starts)
			return
		case <-w.changed:
			if w.latestPod().DeletionTimestamp != nil {
				w.cancel()
				continue
			}
			if delay := w.kubelet.options.SyncDelay; delay != nil {
				if !w.pause(delay(w.info.Name)) {
					continue
				}
			}
			w.syncVolumes()
		case <-period.C:
			w.syncVolumes()
		case result := <-starts:
			if running = result.container; result.err != nil {
				running = nil
				begin(restartDelay)
				continue
			}
			w.writeStatus(true)
		case <-ended:
			running = nil
			w.restarts++
			w.writeStatus(false)
			begin(restartDelay)
		}
	}
}

// stop stops the program, and reports the pod as terminated if its deletion was requested.
func (w *worker) stop(running Container, starts <-chan startResult) {
	select {
	case late := <-starts:
		if late.err == nil {
			running = late.container
		}
	default:
	}
	if running != nil {
		if err := running.Stop(); err != nil {
			w.kubelet.recordError(fmt.Errorf("pod %s: %w", w.info.Name, err))
		}
	}
	if w.latestPod().DeletionTimestamp == nil {
		return
	}
	now := int64(0)
	options := meta.DeleteOptions{GracePeriodSeconds: &now, Preconditions: meta.NewUIDPreconditions(string(w.uid))}
	err := w.kubelet.options.Client.CoreV1().Pods(w.info.Namespace).Delete(w.kubelet.ctx, w.info.Name, options)
	if err != nil && !errors.IsNotFound(err) && !errors.IsConflict(err) && w.kubelet.ctx.Err() == nil {
		w.kubelet.recordError(fmt.Errorf("pod %s: %w", w.info.Name, err))
	}
}

// syncVolumes syncs both volumes, and retries while the API server does not answer.
func (w *worker) syncVolumes() {
	for {
		pod := w.latestPod()
		_, err := w.info.PodInfo.Sync(Labels(pod.Labels))
		var files map[string][]byte
		if err == nil {
			files, err = chainFiles(w.ctx, w.kubelet.options.Client, w.info.Namespace)
		}
		if err == nil {
			var swapped bool
			if swapped, err = w.info.Chain.Sync(files); swapped {
				w.kubelet.mu.Lock()
				w.synced.Swaps++
				w.synced.Last = time.Now()
				w.kubelet.mu.Unlock()
			}
		}
		if err == nil {
			return
		}
		if !w.pause(retryDelay) {
			return
		}
	}
}

// pause returns false if the pod is gone before the time is over.
func (w *worker) pause(delay time.Duration) bool {
	select {
	case <-w.ctx.Done():
		return false
	case <-time.After(delay):
		return true
	}
}

// writeStatus writes the pod's status and retries until the API server accepts it or the pod no longer exists.
func (w *worker) writeStatus(isReady bool) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.uid}, "status": w.podStatus(isReady)})
	if err != nil {
		w.kubelet.recordError(err)
		return
	}
	pods := w.kubelet.options.Client.CoreV1().Pods(w.info.Namespace)
	for {
		_, err := pods.Patch(w.ctx, w.info.Name, types.StrategicMergePatchType, patch, meta.PatchOptions{}, "status")
		switch {
		case err == nil, errors.IsNotFound(err), errors.IsConflict(err), w.ctx.Err() != nil:
			return
		case errors.IsInvalid(err), errors.IsBadRequest(err):
			w.kubelet.recordError(fmt.Errorf("status of pod %s: %w", w.info.Name, err))
			return
		}
		w.pause(retryDelay)
	}
}

func (w *worker) podStatus(isReady bool) core.PodStatus {
	ready, now := core.ConditionFalse, meta.Now()
	if isReady {
		ready = core.ConditionTrue
	}
	container := w.latestPod().Spec.Containers[0]
	return core.PodStatus{
		Phase: core.PodRunning, PodIP: w.info.IP, PodIPs: []core.PodIP{{IP: w.info.IP}},
		Conditions: []core.PodCondition{
			{Type: core.PodReady, Status: ready, LastTransitionTime: now},
			{Type: core.ContainersReady, Status: ready, LastTransitionTime: now},
		},
		ContainerStatuses: []core.ContainerStatus{{
			Name: container.Name, Image: container.Image, Ready: isReady, RestartCount: w.restarts,
			State: core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: now}},
		}},
	}
}
