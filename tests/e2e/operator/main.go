// Command operator is an ordinary controller-runtime operator without any code for sidecars or shards.
//
// It handles every new step of each object once, as far as it can tell alone, and writes what it did as JSON lines to
// standard output, so that tests can count. reconciler.go handles the steps; costs.go records CPU time and memory.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Shorter than the defaults (15 s, 10 s, 2 s), so that tests see a new leader soon.
const (
	leaseDuration = 6 * time.Second
	renewDeadline = 5 * time.Second
	retryPeriod   = 500 * time.Millisecond
)

type settings struct {
	id, app, kind, lock, namespace, health string
	workers                                int
	once, costs                            bool
}

// selector selects the objects to handle.
func (s settings) selector() labels.Selector {
	if s.app == "" {
		return labels.Everything()
	}
	return labels.SelectorFromSet(labels.Set{"app": s.app})
}

func main() {
	var s settings
	flag.StringVar(&s.id, "id", "", "name of this replica")
	flag.StringVar(&s.app, "app", "", "value of the label `app` of the objects; empty handles all objects")
	flag.StringVar(&s.kind, "kind", "ConfigMap", "kind of the objects, ConfigMap or Widget")
	flag.StringVar(&s.lock, "lock", "", "name of the leader-election lock; empty disables leader election")
	flag.StringVar(&s.namespace, "lock-namespace", "default", "namespace of the lock")
	flag.StringVar(&s.health, "health", "", "address of /healthz and /readyz; empty disables them")
	flag.IntVar(&s.workers, "workers", 4, "number of objects handled at a time")
	flag.BoolVar(&s.once, "once", false, "list the objects once and exit, as an init container may")
	flag.BoolVar(&s.costs, "costs", false, "record CPU time and memory once all objects are cached")
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.WriteTo(os.Stderr)))
	if err := run(ctrl.SetupSignalHandler(), s); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	rest, err := config.GetConfig()
	if err != nil {
		return err
	}
	journal := &journalWriter{id: s.id, out: json.NewEncoder(os.Stdout)}
	rest.Wrap(func(next http.RoundTripper) http.RoundTripper { return failureRecorder{next, journal} })
	if s.once {
		return listOnce(ctx, rest, s, journal)
	}
	manager, err := newManager(rest, s)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-manager.Elected():
			journal.write(record{Event: "leading"})
		case <-ctx.Done():
		}
	}()
	if err := addHealthChecks(manager, s); err != nil {
		return err
	}
	if s.costs {
		if err := manager.Add(&costRecorder{cache: manager.GetCache(), kind: s.kind, journal: journal}); err != nil {
			return err
		}
	}
	err = ctrl.NewControllerManagedBy(manager).
		For(newObject(s.kind)).
		WithOptions(controller.Options{MaxConcurrentReconciles: s.workers}).
		Complete(&reconciler{client: manager.GetClient(), apiReader: manager.GetAPIReader(), kind: s.kind, journal: journal})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}

// listOnce writes a record for each existing object.
func listOnce(ctx context.Context, rest *rest.Config, s settings, journal *journalWriter) error {
	live, err := client.New(rest, client.Options{})
	if err != nil {
		return err
	}
	var found core.ConfigMapList
	if err := live.List(ctx, &found, client.MatchingLabelsSelector{Selector: s.selector()}); err != nil {
		return err
	}
	for _, object := range found.Items {
		journal.write(record{Event: "seen", Object: object.Namespace + "/" + object.Name})
	}
	return nil
}

func newManager(rest *rest.Config, s settings) (ctrl.Manager, error) {
	lease, renew, retry := leaseDuration, renewDeadline, retryPeriod
	only := cache.ByObject{Label: s.selector()}
	return ctrl.NewManager(rest, ctrl.Options{
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{newObject(s.kind): only}},
		// Unstructured objects are read from the cache like typed ones.
		Client:                        client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		Metrics:                       server.Options{BindAddress: "0"},
		HealthProbeBindAddress:        s.health,
		LeaderElection:                s.lock != "",
		LeaderElectionID:              s.lock,
		LeaderElectionNamespace:       s.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &lease,
		RenewDeadline:                 &renew,
		RetryPeriod:                   &retry,
	})
}

// addHealthChecks serves kubelet's probes: liveness says whether the process answers, readiness whether the API server
// does. Readiness asks without the cache, on the same way as all other requests.
func addHealthChecks(manager ctrl.Manager, s settings) error {
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	live := manager.GetAPIReader()
	return manager.AddReadyzCheck("api", func(request *http.Request) error {
		return live.List(request.Context(), &core.ConfigMapList{}, client.InNamespace(s.namespace), client.Limit(1))
	})
}

func newObject(kind string) client.Object {
	if kind == "ConfigMap" {
		return &core.ConfigMap{TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}}
	}
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("e2e.ctrlmesh.dev/v1")
	object.SetKind(kind)
	return object
}

// record is one line of standard output.
type record struct {
	Event  string `json:"event"` // leading, handled, gone, twice, failed, seen, cpu, heap
	ID     string `json:"id"`
	Object string `json:"object,omitempty"`
	Step   string `json:"step,omitempty"`
	Detail string `json:"detail,omitempty"`
}

type journalWriter struct {
	id  string
	mu  sync.Mutex
	out *json.Encoder
}

func (j *journalWriter) write(r record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.ID = j.id
	if err := j.out.Encode(r); err != nil {
		panic(fmt.Sprintf("standard output is gone: %v", err)) // a lost record would make a test pass wrongly
	}
}

// failureRecorder records every request that a controller would call failed. 404 and 409 do not count.
type failureRecorder struct {
	next    http.RoundTripper
	journal *journalWriter
}

func (f failureRecorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := f.next.RoundTrip(request)
	what := request.Method + " " + request.URL.RequestURI()
	switch {
	case err != nil && !errors.Is(err, context.Canceled):
		f.journal.write(record{Event: "failed", Detail: what + ": " + err.Error()})
	case err == nil && response.StatusCode >= 400 && response.StatusCode != 404 && response.StatusCode != 409:
		f.journal.write(record{Event: "failed", Detail: what + ": " + response.Status})
	}
	return response, err
}
