package e2e

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	admission "k8s.io/api/admission/v1"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file controls the API server through an admission webhook for ConfigMap creates in one namespace: it counts the
// creates that are in flight, blocks them, and makes the API server fail.

// admissionGate is the webhook.
type admissionGate struct {
	mu      sync.Mutex
	changed *sync.Cond
	// isBlocked makes requests wait; isBroken makes them fail.
	isBlocked, isBroken bool
	// calls counts all requests so far; maxInFlight is the highest value of inFlight.
	calls, inFlight, maxInFlight int
}

// newAdmissionGate registers a webhook for a namespace and waits until the API server calls it.
func newAdmissionGate(t *testing.T, namespace string) *admissionGate {
	t.Helper()
	g := &admissionGate{}
	g.changed = sync.NewCond(&g.mu)
	pair := must(shared.cluster.CA.IssueServing("webhook"))(t)
	certificate := must(tls.X509KeyPair(pair.Cert, pair.Key))(t)
	server := httptest.NewUnstartedServer(g)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(func() {
		g.unblock()
		server.Close()
	})
	registerWebhook(t, namespace, server.URL)
	probe := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{GenerateName: "probe-"}}
	eventually(t, "the API server calls the webhook", func() error {
		dryRun := meta.CreateOptions{DryRun: []string{meta.DryRunAll}}
		if _, err := shared.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), probe, dryRun); err != nil {
			return err
		}
		if g.counts().calls == 0 {
			return fmt.Errorf("the webhook was not called")
		}
		return nil
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls, g.maxInFlight = 0, 0
	return g
}

func registerWebhook(t *testing.T, namespace, url string) {
	t.Helper()
	// The longest that the API server allows.
	none, fail, patience := admissionregistration.SideEffectClassNone, admissionregistration.Fail, int32(30)
	configuration := &admissionregistration.ValidatingWebhookConfiguration{
		ObjectMeta: meta.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistration.ValidatingWebhook{{
			Name:              "gatekeeper.e2e.ctrlmesh.dev",
			ClientConfig:      admissionregistration.WebhookClientConfig{URL: &url, CABundle: shared.cluster.CA.PEM},
			NamespaceSelector: &meta.LabelSelector{MatchLabels: map[string]string{core.LabelMetadataName: namespace}},
			Rules: []admissionregistration.RuleWithOperations{{
				Operations: []admissionregistration.OperationType{admissionregistration.Create},
				Rule:       admissionregistration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: &patience,
		}},
	}
	client := shared.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := client.Create(t.Context(), configuration, meta.CreateOptions{})
	check(t, err)
	t.Cleanup(func() {
		if err := client.Delete(background(), namespace, meta.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// ServeHTTP answers an AdmissionReview: allowed, or 500.
func (g *admissionGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isBroken := g.waitAtGate()
	var review admission.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || isBroken {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return
	}
	review.Response = &admission.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // an API server that gave up is not waiting
}

// waitAtGate blocks while the gate is closed.
func (g *admissionGate) waitAtGate() (fails bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	g.inFlight++
	g.maxInFlight = max(g.maxInFlight, g.inFlight)
	for g.isBlocked {
		g.changed.Wait()
	}
	g.inFlight--
	return g.isBroken
}

// block makes all new requests wait, for as long as the API server waits.
func (g *admissionGate) block() { g.update(func() { g.isBlocked = true }) }

func (g *admissionGate) unblock() { g.update(func() { g.isBlocked = false }) }

func (g *admissionGate) setBroken(isBroken bool) { g.update(func() { g.isBroken = isBroken }) }

func (g *admissionGate) update(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
	g.changed.Broadcast()
}

// gateCounts are the counters of an admissionGate at one moment.
type gateCounts struct{ calls, inFlight, maxInFlight int }

func (g *admissionGate) counts() gateCounts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return gateCounts{g.calls, g.inFlight, g.maxInFlight}
}
