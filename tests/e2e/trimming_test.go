package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd/api"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file measures what trim-objects saves an operator: bytes, CPU time and memory. `make measure-trimming` does so
// with many objects. Other runs have a few, and compare bytes alone.

const (
	// trimmedObjectsVariable is the number of objects of each kind.
	trimmedObjectsVariable = "CTRLMESH_TRIMMED_OBJECTS"
	defaultTrimmedObjects  = 40
	// trimmingRoundsVariable is how often each row of the table is measured.
	trimmingRoundsVariable = "CTRLMESH_TRIMMING_ROUNDS"
	defaultTrimmingRounds  = 1
	trimmedNamespaces      = 10
	mebibyte               = 1 << 20
)

// trimmedKind is a kind whose objects the operator caches.
type trimmedKind struct {
	name string
	// encoding of the operator's watch.
	encoding string
	resource schema.GroupVersionResource
	// field has what the object is about.
	field string
}

var trimmedKinds = []trimmedKind{
	{"ConfigMap", "protobuf", core.SchemeGroupVersion.WithResource("configmaps"), "data"},
	{"Widget", "JSON", widgetResource, "spec"},
}

// trimmingSample is what it cost until the operator's cache had all objects.
type trimmingSample struct {
	// received are the bytes of responses, with their heads.
	received              int64
	heap                  int64
	operatorCPU, proxyCPU time.Duration
}

func TestTrimmedObjectsCostOperatorLess(t *testing.T) {
	t.Parallel()
	table := []string{
		"| kind | encoding | trim-objects | received MiB | heap in use MiB | CPU s, operator | CPU s, sidecar |",
		"|---|---|---|---|---|---|---|",
	}
	for _, kind := range trimmedKinds {
		t.Run(kind.name, func(t *testing.T) {
			app, count, managed := kind.createObjects(t)
			t.Logf("%d objects with %d bytes of managed fields each", count, managed)
			var whole, trimmed []trimmingSample
			for range numberFrom(t, trimmingRoundsVariable, defaultTrimmingRounds) {
				whole = append(whole, kind.measure(t, "whole", app, sidecar.NewChain(1)))
				trimmed = append(trimmed, kind.measure(t, "trimmed", app, kind.trimmingChain(t)))
			}
			table = append(table, kind.row("no", whole), kind.row("yes", trimmed))
			saved := medianOf(whole, received) - medianOf(trimmed, received)
			// In protobuf the names of fields take no bytes.
			if least := float64(count*managed) / 2; saved < least {
				t.Errorf("%v bytes were saved, want at least %v", saved, least)
			}
		})
	}
	t.Logf("medians:\n%s", strings.Join(table, "\n"))
}

// createObjects creates objects that several programs write, as in a cluster with a package manager, a policy engine and
// GitOps. It returns the value of their label `app`, their number, and the size of the managed fields of one in JSON.
func (k trimmedKind) createObjects(t *testing.T) (app string, count, managed int) {
	t.Helper()
	app = uniqueName("trimmed")
	client := must(dynamic.NewForConfig(shared.cluster.AdminConfig()))(t)
	each := max(1, numberFrom(t, trimmedObjectsVariable, defaultTrimmedObjects)/trimmedNamespaces)
	namespaces := make([]string, trimmedNamespaces)
	for i := range namespaces {
		namespaces[i] = newNamespace(t)
	}
	forEachNamespace(t, namespaces, func(ctx context.Context, namespace string) error {
		objects := client.Resource(k.resource).Namespace(namespace)
		for i := range each {
			if err := k.createObject(ctx, objects, fmt.Sprintf("%s-%d", app, i), app); err != nil {
				return err
			}
		}
		return nil
	})
	object := must(client.Resource(k.resource).Namespace(namespaces[0]).Get(t.Context(), app+"-0", meta.GetOptions{}))(t)
	if entries := object.GetManagedFields(); len(entries) != 3 {
		t.Fatalf("the managers are %v", entries)
	}
	return app, each * trimmedNamespaces, len(must(json.Marshal(object.GetManagedFields()))(t))
}

func (k trimmedKind) createObject(ctx context.Context, objects dynamic.ResourceInterface, name, app string) error {
	created := k.object(name, map[string]any{
		"application.properties": "server.port=8080\nserver.shutdown=graceful\nmanagement.endpoints=health",
		"database.host":          "postgres.databases.svc.cluster.local",
		"database.name":          "orders",
		"database.port":          "5432",
		"log.format":             "json",
		"log.level":              "info",
	})
	created.SetLabels(map[string]string{
		"app": app, "app.kubernetes.io/instance": "orders", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "orders-1.42.0",
	})
	if _, err := objects.Create(ctx, created, meta.CreateOptions{FieldManager: "helm"}); err != nil {
		return err
	}
	checked := k.object(name, nil)
	checked.SetLabels(map[string]string{"policy.example.com/checked": "true"})
	checked.SetAnnotations(map[string]string{
		"policy.example.com/last-result": "pass", "policy.example.com/revision": "2026-07-01", "policy.example.com/scope": "team-a",
	})
	if _, err := objects.Apply(ctx, name, checked, meta.ApplyOptions{FieldManager: "policy-controller", Force: true}); err != nil {
		return err
	}
	synced := k.object(name, map[string]any{"features": "refunds,invoices", "region": "eu-central-1", "replicas": "3"})
	synced.SetAnnotations(map[string]string{"gitops.example.com/tracking-id": "orders:" + k.name + ":" + name})
	_, err := objects.Apply(ctx, name, synced, meta.ApplyOptions{FieldManager: "gitops-controller", Force: true})
	return err
}

// object has what one program writes.
func (k trimmedKind) object(name string, content map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetAPIVersion(k.resource.GroupVersion().String())
	object.SetKind(k.name)
	object.SetName(name)
	if content != nil {
		object.Object[k.field] = content
	}
	return object
}

// trimmingChain leaves the managed fields of the kind out.
func (k trimmedKind) trimmingChain(t *testing.T) sidecar.Chain {
	t.Helper()
	code := readPlugin(t, "trim-objects")
	resources := jsonFields{"apiGroups": []string{k.resource.Group}, "resources": []string{k.resource.Resource}}
	settings := jsonFields{"rules": []jsonFields{{"resources": []jsonFields{resources}}}}
	return sidecar.NewChain(1, sidecar.NewEntry("trim-objects/operator", code, settings)).WithPlugins(code)
}

// measure starts an operator behind a sidecar with this chain, and ends both.
func (k trimmedKind) measure(t *testing.T, name, app string, chain sidecar.Chain) trimmingSample {
	t.Helper()
	var sample trimmingSample
	isMeasured := t.Run(name, func(t *testing.T) {
		s := startSidecar(t, sidecar.Options{Chain: &chain})
		counter := must(rawhttp.NewCutter(s.API))(t)
		t.Cleanup(func() { check(t, counter.Close()) })
		server := &api.Cluster{Server: "http://" + counter.Address}
		kubeconfig := must(cluster.WriteKubeconfig(newDir(t), "controller", server, &api.AuthInfo{}))(t)
		before := cpuTime(t, s.Process.Pid())
		op := startOperator(t, name, kubeconfig, "--app="+app, "--kind="+k.name, "--costs")
		sample.operatorCPU = time.Duration(op.waitNumber(t, "cpu")) * time.Microsecond
		sample.proxyCPU = cpuTime(t, s.Process.Pid()) - before
		sample.received = counter.Passed()
		sample.heap = op.waitNumber(t, "heap")
		op.assertNoFaults(t)
	})
	if !isMeasured {
		t.FailNow()
	}
	return sample
}

// waitNumber waits for a record of a kind and returns the number in it.
func (op *operatorProcess) waitNumber(t *testing.T, event string) int64 {
	t.Helper()
	var number int64
	eventually(t, fmt.Sprintf("operator %s has recorded %s", op.id, event), func() error {
		records := op.records(t)
		at := slices.IndexFunc(records, func(r record) bool { return r.Event == event })
		if at < 0 {
			return fmt.Errorf("the records are %v; the operator runs: %v", records, op.process.Alive())
		}
		var err error
		number, err = strconv.ParseInt(records[at].Detail, 10, 64)
		return err
	})
	return number
}

// row is a line of the table.
func (k trimmedKind) row(isTrimmed string, samples []trimmingSample) string {
	heap := func(s trimmingSample) float64 { return float64(s.heap) }
	operatorCPU := func(s trimmingSample) float64 { return s.operatorCPU.Seconds() }
	proxyCPU := func(s trimmingSample) float64 { return s.proxyCPU.Seconds() }
	return fmt.Sprintf("| %s | %s | %s | %.1f | %.1f | %.2f | %.2f |", k.name, k.encoding, isTrimmed,
		medianOf(samples, received)/mebibyte, medianOf(samples, heap)/mebibyte, medianOf(samples, operatorCPU), medianOf(samples, proxyCPU))
}

func received(s trimmingSample) float64 { return float64(s.received) }

// medianOf returns the median of one of the values; of two the larger one.
func medianOf(samples []trimmingSample, value func(trimmingSample) float64) float64 {
	values := make([]float64, len(samples))
	for i, sample := range samples {
		values[i] = value(sample)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// cpuTime returns the user and system time of a process so far, in steps of 10 ms.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))(t))
	// proc_pid_stat(5): the name, in parentheses, may have spaces. Behind it, utime and stime are fields 12 and 13.
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	ticks := must(strconv.Atoi(fields[11]))(t) + must(strconv.Atoi(fields[12]))(t)
	return time.Duration(ticks) * 10 * time.Millisecond
}

// numberFrom reads a number above 0 from an environment variable.
func numberFrom(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	number := must(strconv.Atoi(text))(t)
	if number < 1 {
		t.Fatalf("%s=%s must be above 0", variable, text)
	}
	return number
}
