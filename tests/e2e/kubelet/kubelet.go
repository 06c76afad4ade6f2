// Package kubelet plays the kubelet of one node, as far as a sidecar and the manager can tell: it watches the pods that are
// bound to the node, projects ConfigMaps and labels into their volumes, runs one program for each, restarts it when it
// dies, reports the pods' status, and ends them when they are deleted.
//
// It syncs a pod's volumes when the pod changes and after a period, and never because a ConfigMap changed: that is why the
// manager touches pods. What the program is, the caller says.
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

// Options of a kubelet. All are needed but SyncPeriod.
type Options struct {
	Client kubernetes.Interface
	// Node is the `spec.nodeName` of the pods to run.
	Node string
	// Dir gets a directory for each pod. It must exist.
	Dir string
	// SyncPeriod is after what time volumes are brought up to date when a pod does not change. Kubelet's default, a
	// minute, if it is zero.
	SyncPeriod time.Duration
	// Run starts a pod's program and returns when it is ready.
	Run func(context.Context, Pod) (Container, error)
}

// Pod is what a program gets.
type Pod struct {
	Namespace, Name string
	// IP is a loopback address of the pod's own.
	IP string
	// Dir is the pod's own directory; it outlives a restart of the program.
	Dir string
	// Chain is the volume with the chain and the plugins, PodInfo that with the labels.
	Chain, PodInfo *Volume
}

// Container is a running program.
type Container interface {
	// Done is closed when it has ended.
	Done() <-chan struct{}
	// Stop ends it in order.
	Stop() error
}

// defaultSyncPeriod: kubelet's `syncFrequency`.
const defaultSyncPeriod = time.Minute

// Kubelet is a running player.
type Kubelet struct {
	options Options
	ctx     context.Context
	cancel  context.CancelFunc
	workers sync.WaitGroup

	mu     sync.Mutex
	pods   map[types.UID]*worker
	errors []error
}

// Start plays until Stop.
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

// Stop ends all programs in order, and tells what went wrong since the start.
func (k *Kubelet) Stop() error {
	k.cancel()
	k.workers.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.errors...)
}

// podChanged gives a pod to its worker.
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

// needsSync tells whether kubelet would look at the pod again: a change of its status alone is no reason.
func needsSync(before, after any) bool {
	old, isPod := before.(*core.Pod)
	pod, isAlsoPod := after.(*core.Pod)
	return !isPod || !isAlsoPod || pod.DeletionTimestamp != nil || !maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations)
}

// podDeleted ends the worker of a pod that is no longer there.
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

// Sync tells how a pod's chain volume came to be what it is.
type Sync struct {
	// Swaps counts how often the content was replaced.
	Swaps int
	// Last is when that was done last.
	Last time.Time
}

// SyncState is the state of a pod's chain volume.
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
