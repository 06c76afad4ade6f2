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

// This file looks into the API server: an admission webhook for the ConfigMaps that are made in a namespace counts them while
// they are under way there, holds them back, and makes the API server fail.

// gatekeeper is the webhook.
type gatekeeper struct {
	mu      sync.Mutex
	changed *sync.Cond
	// isShut holds requests back, isBroken lets them fail.
	isShut, isBroken bool
	// calls so far, how many are inside now, and the most that ever were.
	calls, inside, most int
}

// newGatekeeper registers a webhook for a namespace and waits until the API server asks it.
func newGatekeeper(t *testing.T, namespace string) *gatekeeper {
	t.Helper()
	g := &gatekeeper{}
	g.changed = sync.NewCond(&g.mu)
	pair := must(shared.cluster.CA.Serving("webhook"))(t)
	certificate := must(tls.X509KeyPair(pair.Cert, pair.Key))(t)
	server := httptest.NewUnstartedServer(g)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(func() {
		g.open()
		server.Close()
	})
	register(t, namespace, server.URL)
	probe := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{GenerateName: "probe-"}}
	eventually(t, "the API server asks the webhook", func() error {
		dryRun := meta.CreateOptions{DryRun: []string{meta.DryRunAll}}
		if _, err := shared.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), probe, dryRun); err != nil {
			return err
		}
		if g.count().calls == 0 {
			return fmt.Errorf("it was not asked")
		}
		return nil
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls, g.most = 0, 0
	return g
}

func register(t *testing.T, namespace, url string) {
	t.Helper()
	none, fail, patience := admissionregistration.SideEffectClassNone, admissionregistration.Fail, int32(patience.Seconds()/2)
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
func (g *gatekeeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	isBroken := g.pass()
	var review admission.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || isBroken {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return
	}
	review.Response = &admission.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review) // an API server that went away is not waiting
}

// pass waits at the gate.
func (g *gatekeeper) pass() (isBroken bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	g.inside++
	g.most = max(g.most, g.inside)
	for g.isShut {
		g.changed.Wait()
	}
	g.inside--
	return g.isBroken
}

// shut holds all requests back that come from now on, for as long as the API server waits.
func (g *gatekeeper) shut() { g.set(func() { g.isShut = true }) }

func (g *gatekeeper) open() { g.set(func() { g.isShut = false }) }

func (g *gatekeeper) breaks(yes bool) { g.set(func() { g.isBroken = yes }) }

func (g *gatekeeper) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
	g.changed.Broadcast()
}

// counts of a gatekeeper at one moment.
type counts struct{ calls, inside, most int }

func (g *gatekeeper) count() counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return counts{g.calls, g.inside, g.most}
}
