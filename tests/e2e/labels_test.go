package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/manager"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// This file lets managers label a cluster that was full of objects before they started.

const (
	hashLabel      = "ctrlmesh.kusionstack.io/shard-hash"
	namespaceLabel = "ctrlmesh.kusionstack.io/namespace"
	controlLabel   = "ctrlmesh.kusionstack.io/control"

	// namespacesVariable is the number of namespaces; manual runs use 1000, with 50,000 objects (README.md).
	namespacesVariable  = "CTRLMESH_LABELLED_NAMESPACES"
	defaultNamespaces   = 30
	objectsPerNamespace = 50

	labelRate, labelBurst = 300, 50
	// maxMemoryMiB bounds a manager's memory, whatever the number of objects.
	maxMemoryMiB = 200
)

// labelledMesh is a cluster with more objects than a manager should keep in memory.
type labelledMesh struct {
	*mesh
	namespaces []string
}

func TestManagersLabelFullCluster(t *testing.T) {
	t.Parallel()
	l := &labelledMesh{mesh: newMesh(t, fmt.Sprintf("--rest-config-qps=%d", labelRate), fmt.Sprintf("--rest-config-burst=%d", labelBurst))}
	l.createObjects(t)
	begin := time.Now()
	first := l.startManager(t, "manager-0")
	l.waitHalfLabelled(t, first)
	peak := peakMiB(t, first)
	first.Process.Kill()
	second := l.startManager(t, "manager-1")
	l.waitAllLabelled(t)
	t.Logf("%d objects in %d namespaces took %s; memory was %d and %d MiB at most",
		len(l.namespaces)*objectsPerNamespace, len(l.namespaces), time.Since(begin).Round(time.Millisecond), peak, peakMiB(t, second))
	if peak = max(peak, peakMiB(t, second)); peak > maxMemoryMiB {
		t.Errorf("a manager used %d MiB", peak)
	}
	l.assertWithinRate(t)
	l.testOptOut(t)
}

// createObjects creates namespaces and objects, and configures that ConfigMaps are labelled.
func (l *labelledMesh) createObjects(t *testing.T) {
	t.Helper()
	count := defaultNamespaces
	if text := os.Getenv(namespacesVariable); text != "" {
		count = must(strconv.Atoi(text))(t)
	}
	l.setLabelledKinds(t, "v1: [ConfigMap]")
	for range count {
		l.namespaces = append(l.namespaces, l.newNamespace(t))
	}
	forEachNamespace(t, l.namespaces, func(ctx context.Context, namespace string) error {
		for i := range objectsPerNamespace {
			object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprintf("object-%d", i)}}
			if _, err := l.client.CoreV1().ConfigMaps(namespace).Create(ctx, object, meta.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// labelTimeout is how long labelling everything may take, at the allowed rate on a busy machine.
func (l *labelledMesh) labelTimeout() time.Duration {
	return waitTimeout + 4*time.Second*time.Duration(len(l.namespaces)*objectsPerNamespace/labelRate)
}

// waitHalfLabelled waits until a manager has labelled half of the objects.
func (l *labelledMesh) waitHalfLabelled(t *testing.T, m *manager.Manager) {
	t.Helper()
	eventuallyWithin(t, l.labelTimeout(), "half of the objects are labelled", func() error {
		written, err := m.Metric(t.Context(), "ctrlmesh_manager_labels_objects_written_total")
		if err == nil && int(written) < len(l.namespaces)*objectsPerNamespace/2 {
			err = fmt.Errorf("%v are labelled", written)
		}
		return err
	})
}

// waitAllLabelled waits until every namespace and object has its labels. The bucket is the sum of the characters of the
// namespace's name modulo 32, as in KusionStack.
func (l *labelledMesh) waitAllLabelled(t *testing.T) {
	t.Helper()
	for _, name := range l.namespaces {
		sum := 0
		for _, character := range name {
			sum += int(character)
		}
		want := map[string]string{hashLabel: strconv.Itoa(sum % 32), namespaceLabel: name, controlLabel: "true"}
		eventuallyWithin(t, l.labelTimeout(), "everything in "+name+" is labelled", func() error {
			namespace, err := l.client.CoreV1().Namespaces().Get(t.Context(), name, meta.GetOptions{})
			if err != nil {
				return err
			}
			if err := checkLabels(namespace.ObjectMeta, want); err != nil {
				return err
			}
			list, err := l.client.CoreV1().ConfigMaps(name).List(t.Context(), meta.ListOptions{})
			if err != nil {
				return err
			}
			for _, object := range list.Items {
				if err := checkLabels(object.ObjectMeta, want); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func checkLabels(object meta.ObjectMeta, want map[string]string) error {
	for key, value := range want {
		if object.Labels[key] != value {
			return fmt.Errorf("%s has %v, not %v", object.Name, object.Labels, want)
		}
	}
	return nil
}

// assertWithinRate asserts that requests never arrived faster than the flags allow.
func (l *labelledMesh) assertWithinRate(t *testing.T) {
	t.Helper()
	// Two requests that were sent at the same time may arrive this much apart, so as many more may arrive together.
	const late = 200 * time.Millisecond
	// Each of the two managers has a burst.
	const burst = 2*labelBurst + labelRate*float64(late)/float64(time.Second)
	events, err := l.cluster.AuditEventsOf(manager.User)
	check(t, err)
	arrivals := []time.Time{}
	for _, event := range events {
		arrivals = append(arrivals, event.RequestReceivedTimestamp.Time)
	}
	slices.SortFunc(arrivals, time.Time.Compare)
	// The window from request i to request j has j-i+1 requests. For each j the worst i is the one that is furthest
	// behind the rate.
	worst := 0.0
	for j, at := range arrivals {
		ahead := float64(j) - labelRate*at.Sub(arrivals[0]).Seconds()
		worst = min(worst, ahead)
		if ahead-worst+1 > burst {
			t.Fatalf("%v requests more than the rate of %d allows, in a window that ends with request %d", ahead-worst+1, labelRate, j)
		}
	}
	if len(arrivals) < len(l.namespaces)*objectsPerNamespace {
		t.Fatalf("the audit log has %d requests", len(arrivals))
	}
}

// testOptOut opts a namespace out: its labels are removed.
func (l *labelledMesh) testOptOut(t *testing.T) {
	t.Helper()
	name := l.namespaces[0]
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"false"}}}`, controlLabel)
	_, err := l.client.CoreV1().Namespaces().Patch(t.Context(), name, types.MergePatchType, patch, meta.PatchOptions{})
	check(t, err)
	eventually(t, "neither "+name+" nor an object in it is labelled", func() error {
		namespace, err := l.client.CoreV1().Namespaces().Get(t.Context(), name, meta.GetOptions{})
		if err != nil {
			return err
		}
		for key, want := range map[string]string{hashLabel: "", namespaceLabel: "", controlLabel: "false"} {
			if got := namespace.Labels[key]; got != want {
				return fmt.Errorf("the namespace's %s is %q", key, got)
			}
		}
		list, err := l.client.CoreV1().ConfigMaps(name).List(t.Context(), meta.ListOptions{})
		if err != nil {
			return err
		}
		for _, object := range list.Items {
			for key := range object.Labels {
				if strings.HasPrefix(key, "ctrlmesh.kusionstack.io/") {
					return fmt.Errorf("%s has %s", object.Name, key)
				}
			}
		}
		return nil
	})
}

// peakMiB returns the peak resident memory of a manager (VmHWM).
func peakMiB(t *testing.T, m *manager.Manager) int {
	t.Helper()
	status := string(must(os.ReadFile(fmt.Sprintf("/proc/%d/status", m.Process.Pid())))(t))
	for line := range strings.Lines(status) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib >> 10
		}
	}
	check(t, errors.New("no VmHWM in "+status))
	return 0
}
