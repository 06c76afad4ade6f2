package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	audit "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
)

// This file limits controllers: they become slower and finish without errors, and the API server receives no more than
// the rules allow.

const (
	writesBurst     = 4
	writesPerSecond = 8
	// Each of objectsLimited needs two writes; without a limit a client would exceed the rate within a second.
	objectsLimited = 20
)

var writeVerbs = []string{"create", "update", "patch", "delete"}

func writeLimit(extra jsonFields) jsonFields {
	rule := jsonFields{
		"name": "writes",
		"resourceRules": []jsonFields{
			{"apiGroups": []string{"*"}, "resources": []string{"*"}, "verbs": writeVerbs, "namespaces": []string{"*"}},
		},
		"bucket": jsonFields{"limit": writesPerSecond, "interval": "1s", "burst": writesBurst},
	}
	for name, value := range extra {
		rule[name] = value
	}
	return jsonFields{"rateLimitings": []jsonFields{rule}}
}

// TestRateLimitRefusesOrDelaysOperator runs an ordinary operator behind a token bucket that refuses requests or delays
// them.
func TestRateLimitRefusesOrDelaysOperator(t *testing.T) {
	t.Parallel()
	t.Run("requests_are_refused", func(t *testing.T) {
		t.Parallel()
		s, op := runLimitedOperator(t, writeLimit(nil))
		failed := 0
		for _, r := range op.records(t) {
			if r.Event == "failed" {
				failed++
				if !strings.HasSuffix(r.Detail, "429 Too Many Requests") {
					t.Errorf("the operator got %s", r.Detail)
				}
			}
		}
		if refused := ruleMetric(t, s, "refused", "writes"); refused == 0 || refused != failed {
			t.Errorf("the plugin refused %d requests, the operator saw %d", refused, failed)
		}
	})
	t.Run("requests_are_delayed", func(t *testing.T) {
		t.Parallel()
		s, op := runLimitedOperator(t, writeLimit(jsonFields{"queue": "30s"}))
		op.assertNoFaults(t)
		if refused, queued := ruleMetric(t, s, "refused", "writes"), ruleMetric(t, s, "queued", "writes"); refused != 0 || queued == 0 {
			t.Errorf("%d refused, %d queued", refused, queued)
		}
	})
}

// runLimitedOperator asserts that an operator finishes its work, and that the API server received no more writes than
// allowed.
func runLimitedOperator(t *testing.T, settings jsonFields) (*sidecar.Sidecar, *operatorProcess) {
	t.Helper()
	s := startPlugin(t, rateLimit, settings)
	set := newObjectSet(t, shared.controlPlane, "ConfigMap", 1, objectsLimited, "a")
	op := startOperator(t, uniqueName("limited"), sidecarKubeconfig(t, s), "--app="+set.app)
	begin := time.Now()
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": op})

	namespace, _ := splitKey(set.names[0])
	events := auditedRequests(t, shared.controlPlane, namespace, writeVerbs...)
	if len(events) < 2*objectsLimited {
		t.Errorf("the API server received %d writes for %d objects", len(events), objectsLimited)
	}
	assertWithinBucket(t, begin, events)
	if granted := ruleMetric(t, s, "granted", "writes") + ruleMetric(t, s, "queued", "writes"); granted != len(events) {
		t.Errorf("%d writes were granted, the API server received %d", granted, len(events))
	}
	log := string(must(os.ReadFile(op.process.LogPath))(t))
	if strings.Contains(log, "Reconciler error") || !op.process.Alive() {
		t.Errorf("the operator logged errors:\n%s", log)
	}
	return s, op
}

// arrivalDelay bounds how much later a request may arrive after its grant than the request before it, on a busy
// machine.
const arrivalDelay = 2 * time.Second

// assertWithinBucket asserts that no time span had more requests than burst and rate allow. From the beginning this is
// exact: nothing arrives before it is granted. In between, requests that were granted one after another may arrive
// together.
func assertWithinBucket(t *testing.T, begin time.Time, events []audit.Event) {
	t.Helper()
	allowed := func(span time.Duration) int { return writesBurst + int(writesPerSecond*span.Seconds()) }
	starts := []time.Time{}
	for _, event := range events {
		starts = append(starts, event.RequestReceivedTimestamp.Time)
	}
	slices.SortFunc(starts, time.Time.Compare)
	for i, to := range starts {
		if span := to.Sub(begin); i+1 > allowed(span) {
			t.Fatalf("%d writes in the first %s", i+1, span)
		}
		for j, from := range starts[:i] {
			if span := to.Sub(from); i-j+1 > allowed(span+arrivalDelay) {
				t.Fatalf("%d writes within %s", i-j+1, span)
			}
		}
	}
}

// TestMaxInFlightBoundsRequests blocks requests inside the API server, and counts how many get there.
func TestMaxInFlightBoundsRequests(t *testing.T) {
	t.Parallel()
	const most, clients = 3, 12
	namespace := newNamespace(t)
	gate := newAdmissionGate(t, namespace)
	s := startPlugin(t, rateLimit, jsonFields{"rateLimitings": []jsonFields{
		{"name": "creates", "resourceRules": []jsonFields{configMapsMatch(namespace, "create")}, "maxInFlight": most},
	}})
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	gate.block()
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprint("limited-", i)}}
			if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, meta.CreateOptions{}); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	eventually(t, "as many requests are in flight as allowed, and all others were refused", func() error {
		if inside, refused := gate.counts().inFlight, ruleMetric(t, s, "refused", "creates"); inside != most || refused < clients-most {
			return fmt.Errorf("%d are in flight, %d were refused", inside, refused)
		}
		return nil
	})
	gate.unblock()
	group.Wait()
	if seen := gate.counts(); seen != (gateCounts{calls: clients, inFlight: 0, maxInFlight: most}) {
		t.Errorf("the API server received %+v", seen)
	}
	if events := auditedRequests(t, shared.controlPlane, namespace, "create"); len(events) != clients {
		t.Errorf("the API server received %d requests of %d", len(events), clients)
	}
}
