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

// This file limits controllers: they slow down and finish, they do not fail, and the API server sees what the rules allow.

const (
	writesBurst     = 4
	writesPerSecond = 8
	// objectsLimited need two writes each: what a client may do by itself in a second would break the limit at once.
	objectsLimited = 20
)

var writeVerbs = []string{"create", "update", "patch", "delete"}

func writeRule(extra fields) fields {
	rule := fields{
		"name": "writes",
		"resourceRules": []fields{
			{"apiGroups": []string{"*"}, "resources": []string{"*"}, "verbs": writeVerbs, "namespaces": []string{"*"}},
		},
		"bucket": fields{"limit": writesPerSecond, "interval": "1s", "burst": writesBurst},
	}
	for name, value := range extra {
		rule[name] = value
	}
	return fields{"rateLimitings": []fields{rule}}
}

// TestLimitedOperator runs an ordinary operator behind a token bucket, which refuses or lets wait.
func TestLimitedOperator(t *testing.T) {
	t.Parallel()
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		s, o := limitedOperator(t, writeRule(nil))
		failed := 0
		for _, r := range o.records(t) {
			if r.Event == "failed" {
				failed++
				if !strings.HasSuffix(r.Detail, "429 Too Many Requests") {
					t.Errorf("it met %s", r.Detail)
				}
			}
		}
		if refused := metric(t, s, "refused", "writes"); refused == 0 || refused != failed {
			t.Errorf("the plugin refused %d, the operator met %d", refused, failed)
		}
	})
	t.Run("queued", func(t *testing.T) {
		t.Parallel()
		s, o := limitedOperator(t, writeRule(fields{"queue": "30s"}))
		o.faultless(t)
		if refused, queued := metric(t, s, "refused", "writes"), metric(t, s, "queued", "writes"); refused != 0 || queued == 0 {
			t.Errorf("%d refused, %d queued", refused, queued)
		}
	})
}

// limitedOperator demands that an operator finishes its work, and that the API server saw no more of it than allowed.
func limitedOperator(t *testing.T, settings fields) (*sidecar.Sidecar, *operator) {
	t.Helper()
	s := startPlugins(t, rateLimit, settings)
	f := newFleet(t, shared.controlPlane, "ConfigMap", 1, objectsLimited, "a")
	o := startOperator(t, unique("limited"), kubeconfig(t, s), "--app="+f.app)
	begin := time.Now()
	f.stepAll(t)
	f.settled(t, map[string]*operator{"a": o})

	namespace, _ := split(f.names[0])
	events := arrived(t, shared.controlPlane, namespace, writeVerbs...)
	if len(events) < 2*objectsLimited {
		t.Errorf("the API server saw %d writes, of %d objects", len(events), objectsLimited)
	}
	withinBucket(t, begin, events)
	if granted := metric(t, s, "granted", "writes") + metric(t, s, "queued", "writes"); granted != len(events) {
		t.Errorf("%d were granted, the API server saw %d", granted, len(events))
	}
	log := string(must(os.ReadFile(o.process.LogPath))(t))
	if strings.Contains(log, "Reconciler error") || !o.process.Alive() {
		t.Errorf("the operator met errors:\n%s", log)
	}
	return s, o
}

// arrivalDelay is how much later than a request before it a request may arrive after its grant, on a busy machine.
const arrivalDelay = 2 * time.Second

// withinBucket demands that no span of time saw more requests than burst and rate allow. From the beginning on that is exact:
// nothing arrives before it is granted. Within, requests that were granted one after another may arrive together.
func withinBucket(t *testing.T, begin time.Time, events []audit.Event) {
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

// TestMaxInFlight holds requests back inside the API server, and looks how many get there.
func TestMaxInFlight(t *testing.T) {
	t.Parallel()
	const most, clients = 3, 12
	namespace := newNamespace(t)
	gate := newGatekeeper(t, namespace)
	s := startPlugins(t, rateLimit, fields{"rateLimitings": []fields{
		{"name": "creates", "resourceRules": []fields{inNamespace(namespace, "create")}, "maxInFlight": most},
	}})
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	gate.shut()
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprint("limited-", i)}}
			if _, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), object, meta.CreateOptions{}); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	eventually(t, "all places are taken, and everybody else was refused", func() error {
		if inside, refused := gate.count().inside, metric(t, s, "refused", "creates"); inside != most || refused < clients-most {
			return fmt.Errorf("%d are inside, %d were refused", inside, refused)
		}
		return nil
	})
	gate.open()
	group.Wait()
	if seen := gate.count(); seen != (counts{calls: clients, inside: 0, most: most}) {
		t.Errorf("the API server saw %+v", seen)
	}
	if events := arrived(t, shared.controlPlane, namespace, "create"); len(events) != clients {
		t.Errorf("the API server saw %d requests of %d", len(events), clients)
	}
}
