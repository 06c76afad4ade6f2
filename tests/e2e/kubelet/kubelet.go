// Package kubelet is a fake kubelet of one node, as far as sidecars and managers can tell: it watches the pods that are
// bound to the node, projects ConfigMaps and labels into their volumes, runs one program for each, restarts it when it
// exits, reports the pods' status, and stops them when they are deleted.
//
// It syncs a pod's volumes when the pod changes and after a period, never because a ConfigMap changed: that is why the
// manager annotates pods. The caller decides what the program is.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Options of a kubelet. SyncPeriod and SyncDelay are optional.
type Options struct {
	Client kubernetes.Interface
	// Node is the `spec.nodeName` of the pods to run.
	Node string
	// Dir is an existing directory for the pods' directories.
	Dir string
	// SyncPeriod is the time after which volumes are synced if a pod does not change. Zero means kubelet's default, a
	// minute.
	SyncPeriod time.Duration
	// SyncDelay returns how long a pod's volumes stay as they are after the pod has changed, as on a busy node.
	SyncDelay func(pod string) time.Duration
	// Run starts a pod's program and returns when it is ready.
	Run func(context.Context, Pod) (Container, error)
}

// Pod is the environment of a program.
type Pod struct {
	Namespace, Name string
	// IP is a loopback address of this pod only.
	IP string
	// Dir is the pod's directory; it outlives a restart of the program.
	Dir string
	// Chain is the volume with the chain and the plugins, PodInfo the one with the labels.
	Chain, PodInfo *Volume
}

// Container is a running program.
type Container interface {
	// Done is closed when the program has exited.
	Done() <-chan struct{}
	// Stop terminates the program gracefully.
	Stop() error
}

// defaultSyncPeriod is the default of kubelet's `syncFrequency`.
const defaultSyncPeriod = time.Minute

// Kubelet is a running fake kubelet.
type Kubelet struct {
	options Options
	ctx     context.Context
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu     sync.Mutex
	pods   map[types.UID]*worker
	errors []error
}

// Start runs the fake kubelet until Stop.
func Start(ctx context.Context, options Options) (*Kubelet, error) {
	if options.SyncPeriod == 0 {
		options.SyncPeriod = defaultSyncPeriod
	}
	k := &Kubelet{options: options, pods: map[types.UID]*worker{}}
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	bound := func(list *meta.ListOptions) {
		list.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", options.Node).String()
	}
	factory := informers.NewSharedInformerFactoryWithOptions(options.Client, 0, informers.WithTweakListOptions(bound))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { k.podChanged(object) },
		UpdateFunc: func(before, object any) {
			if needsSync(before, object) {
				k.podChanged(object)
			}
		},
		DeleteFunc: func(object any) { k.podDeleted(object) },
	})
	if err != nil {
		return nil, err
	}
	k.workers.Go(func() { informer.Run(k.ctx.Done()) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		k.cancel()
		return nil, fmt.Errorf("the pods of %s can't be listed: %w", options.Node, ctx.Err())
	}
	return k, nil
}

// Stop terminates all programs gracefully and returns the errors since the start.
func (k *Kubelet) Stop() error {
	k.cancel()
	k.workers.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.errors...)
}

// podChanged passes a pod to its worker.
func (k *Kubelet) podChanged(object any) {
	pod, isPod := object.(*core.Pod)
	if !isPod {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return
	}
	w := k.pods[pod.UID]
	if w == nil {
		var err error
		if w, err = k.newWorker(pod); err != nil {
			k.errors = append(k.errors, err)
			return
		}
		k.pods[pod.UID] = w
		k.workers.Go(w.run)
	}
	w.notify(pod)
}

// needsSync returns whether kubelet would sync the pod again: a change of its status alone is no reason.
func needsSync(before, after any) bool {
	old, isPod := before.(*core.Pod)
	pod, isAlsoPod := after.(*core.Pod)
	return !isPod || !isAlsoPod || pod.DeletionTimestamp != nil || !maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations)
}

// podDeleted stops the worker of a pod that no longer exists.
func (k *Kubelet) podDeleted(object any) {
	if last, isUnknown := object.(cache.DeletedFinalStateUnknown); isUnknown {
		object = last.Obj
	}
	pod, isPod := object.(*core.Pod)
	if !isPod {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.pods[pod.UID]; w != nil {
		delete(k.pods, pod.UID)
		w.cancel()
	}
}

func (k *Kubelet) newWorker(pod *core.Pod) (*worker, error) {
	ip, err := freeIP()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(k.options.Dir, pod.Name+"-"+string(pod.UID))
	w := &worker{
		kubelet: k, uid: pod.UID, changed: make(chan struct{}, 1), pod: pod,
		info: Pod{Namespace: pod.Namespace, Name: pod.Name, IP: ip, Dir: dir},
	}
	if w.info.Chain, err = NewVolume(filepath.Join(dir, "chain")); err != nil {
		return nil, err
	}
	if w.info.PodInfo, err = NewVolume(filepath.Join(dir, "podinfo")); err != nil {
		return nil, err
	}
	w.ctx, w.cancel = context.WithCancel(k.ctx)
	return w, nil
}

func (k *Kubelet) recordError(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.errors = append(k.errors, err)
}

// Sync describes the swaps of a pod's chain volume.
type Sync struct {
	// Swaps counts how often the content was replaced.
	Swaps int
	// Last is the time of the last swap.
	Last time.Time
}

// SyncState returns the state of a pod's chain volume.
func (k *Kubelet) SyncState(namespace, name string) Sync {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, w := range k.pods {
		if w.info.Namespace == namespace && w.info.Name == name {
			return w.synced
		}
	}
	return Sync{}
}
