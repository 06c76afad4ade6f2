package e2e

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd/api"
)

// This file lets breakers open because the API server really fails, and looks what client-go and the API server notice.

// tripAfter failures in a row the breakers of this file open.
const tripAfter = 3

// breakerState is a breaker in /status.
type breakerState struct{ State, Reason, LastTransitionTime, RecoversAt string }

// breaker is a client behind a breaker for the ConfigMaps that are made in a namespace.
type breaker struct {
	sidecar   *sidecar.Sidecar
	gate      *gatekeeper
	namespace string
	client    *kubernetes.Clientset
}

func startBreaker(t *testing.T, extra fields) breaker {
	t.Helper()
	namespace := newNamespace(t)
	gate := newGatekeeper(t, namespace)
	s := startPlugins(t, circuitBreaker, breakerRule(namespace, extra))
	return breaker{s, gate, namespace, must(kubernetes.NewForConfig(clientConfig(s)))(t)}
}

func breakerRule(namespace string, extra fields) fields {
	rule := fields{
		"name": "creates", "resourceRules": []fields{inNamespace(namespace, "create")},
		"triggerPolicy": "Normal", "trip": fields{"consecutiveFailures": tripAfter},
	}
	for name, value := range extra {
		rule[name] = value
	}
	return fields{"rateLimitings": []fields{rule}}
}

func sleeping(window string) fields {
	return fields{"recoverPolicy": fields{"type": "SleepingWindow", "sleepingWindowSize": window}}
}

// create makes a ConfigMap the way controllers do.
func (b breaker) create(t *testing.T) error {
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: unique("broken")}}
	_, err := b.client.CoreV1().ConfigMaps(b.namespace).Create(t.Context(), object, meta.CreateOptions{})
	return err
}

// createOnce does not wait and repeat as client-go would, and so shows what it was told.
func (b breaker) createOnce(t *testing.T) error {
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: unique("broken")}}
	return b.client.CoreV1().RESTClient().Post().Namespace(b.namespace).Resource("configmaps").
		VersionedParams(&meta.CreateOptions{}, scheme.ParameterCodec).Body(object).MaxRetries(0).Do(t.Context()).Error()
}

// trips breaks the API server, and waits until the breaker is open.
func (b breaker) trips(t *testing.T) {
	t.Helper()
	b.gate.breaks(true)
	for range tripAfter {
		if err := b.createOnce(t); !apierrors.IsInternalError(err) {
			t.Fatalf("an API server that is out of order answers %v", err)
		}
	}
	b.becomes(t, "Opened")
}

func (b breaker) becomes(t *testing.T, state string) breakerState {
	t.Helper()
	var seen breakerState
	eventually(t, "the breaker is "+state, func() error {
		if seen = report[breakerState](t, b.sidecar, circuitBreaker, "creates"); seen.State != state {
			return fmt.Errorf("it is %+v", seen)
		}
		return nil
	})
	return seen
}

// refusesOnce demands the answer of an open breaker.
func (b breaker) refusesOnce(t *testing.T) {
	t.Helper()
	err := b.createOnce(t)
	var status *apierrors.StatusError
	seconds, isPolite := apierrors.SuggestsClientDelay(err)
	if !errors.As(err, &status) || !apierrors.IsTooManyRequests(err) || !isPolite || seconds < 1 {
		t.Fatalf("an open breaker answers %v", err)
	}
	if causes := status.ErrStatus.Details.Causes; len(causes) != 1 || causes[0].Message != "creates" {
		t.Errorf("the causes are %+v", causes)
	}
}

// TestBreakerManual opens a breaker, which only a person closes.
func TestBreakerManual(t *testing.T) {
	t.Parallel()
	b := startBreaker(t, fields{"recoverPolicy": fields{"type": "Manual"}, "recover": "monday"})
	check(t, b.create(t))
	b.trips(t)
	if seen := b.becomes(t, "Opened"); seen.Reason != "3 requests failed one after another" || seen.RecoversAt != "" || seen.LastTransitionTime == "" {
		t.Errorf("/status tells %+v", seen)
	}
	b.gate.breaks(false)
	for range 10 {
		b.refusesOnce(t)
	}
	must(b.client.CoreV1().ConfigMaps(b.namespace).List(t.Context(), meta.ListOptions{}))(t) // the rule is for creates
	if n := len(arrived(t, shared.controlPlane, b.namespace, "create")); n != 1+tripAfter {
		t.Errorf("the API server saw %d creates", n)
	}
	b.recovers(t, 2, "monday", "Opened")
	b.refusesOnce(t)
	b.recovers(t, 3, "tuesday", "Closed")
	check(t, b.createOnce(t))
	if n := len(arrived(t, shared.controlPlane, b.namespace, "create")); n != 2+tripAfter {
		t.Errorf("the API server saw %d creates", n)
	}
}

// recovers publishes the rule with a value of `recover` and an edit beside it, and demands what then is the state.
func (b breaker) recovers(t *testing.T, generation int64, value, state string) {
	t.Helper()
	rule := breakerRule(b.namespace, fields{"recoverPolicy": fields{"type": "Manual"}, "recover": value, "probes": generation})
	check(t, b.sidecar.Apply(t.Context(), pluginChain(t, generation, map[string]fields{circuitBreaker: rule})))
	b.becomes(t, state)
}

// TestBreakerSleepingWindow lets clients wait in front of a breaker while one probe at a time looks.
func TestBreakerSleepingWindow(t *testing.T) {
	t.Parallel()
	const clients = 5
	b := startBreaker(t, sleeping("2s"))
	b.trips(t)
	if seen := b.becomes(t, "Opened"); seen.RecoversAt <= seen.LastTransitionTime {
		t.Errorf("/status tells %+v", seen)
	}
	b.gate.shut()
	var group sync.WaitGroup
	var succeeded, failed atomic.Int64
	for range clients {
		group.Go(func() {
			switch err := b.create(t); {
			case err == nil:
				succeeded.Add(1)
			case apierrors.IsInternalError(err):
				failed.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	b.probesOne(t, tripAfter+1)
	b.gate.open() // broken still: the probe fails
	if seen := b.becomes(t, "Opened"); seen.Reason != "a probe failed" {
		t.Errorf("/status tells %+v", seen)
	}
	b.gate.breaks(false)
	group.Wait()
	b.becomes(t, "Closed")
	if succeeded.Load() != clients-1 || failed.Load() != 1 {
		t.Errorf("of %d creates %d succeeded and %d failed", clients, succeeded.Load(), failed.Load())
	}
	if seen := b.gate.count(); seen.calls != tripAfter+clients {
		t.Errorf("the API server saw %+v", seen)
	}
	if opened, closed := metric(t, b.sidecar, "opened", "creates"), metric(t, b.sidecar, "closed", "creates"); opened != 2 || closed != 1 {
		t.Errorf("it opened %d times and closed %d times", opened, closed)
	}
}

// probesOne waits until a probe is at the API server and others were refused meanwhile.
func (b breaker) probesOne(t *testing.T, calls int) {
	t.Helper()
	eventually(t, "a probe is under way", func() error {
		if seen := b.gate.count(); seen.inside != 1 {
			return fmt.Errorf("the API server sees %+v", seen)
		}
		return nil
	})
	b.becomes(t, "HalfOpen")
	for range 10 {
		b.refusesOnce(t)
	}
	if seen := b.gate.count(); seen != (counts{calls: calls, inside: 1, most: 1}) {
		t.Errorf("while half open the API server saw %+v", seen)
	}
}

// TestBreakerUnreachable cuts the connections to the API server: a client that waits meets the failures, the open breaker and
// the recovery in one call, and its caller sees nothing of it.
func TestBreakerUnreachable(t *testing.T) {
	t.Parallel()
	cutter := must(rawhttp.NewCutter(shared.cluster.Address))(t)
	t.Cleanup(func() { _ = cutter.Close() })
	certificate := must(shared.cluster.CA.Client("cut-off", "system:masters"))(t)
	rule := fields{"rateLimitings": []fields{{
		"name": "creates", "triggerPolicy": "Normal", "trip": fields{"consecutiveFailures": tripAfter},
		"resourceRules": []fields{inNamespace("default", "get")},
		"recoverPolicy": fields{"type": "SleepingWindow", "sleepingWindowSize": "1s"},
	}}}
	chain := pluginChain(t, 1, map[string]fields{circuitBreaker: rule})
	s := startSidecar(t, sidecar.Options{Chain: &chain, Kubeconfig: must(cluster.WriteKubeconfig(newDir(t), "cut-off",
		&api.Cluster{Server: "https://" + cutter.Address, CertificateAuthorityData: shared.cluster.CA.PEM},
		&api.AuthInfo{ClientCertificateData: certificate.Cert, ClientKeyData: certificate.Key}))(t)})
	b := breaker{sidecar: s, client: must(kubernetes.NewForConfig(clientConfig(s)))(t)}
	cutter.CutAfter(0)
	done := make(chan error)
	go func() {
		_, err := b.client.CoreV1().ConfigMaps("default").Get(t.Context(), "nothing", meta.GetOptions{})
		done <- err
	}()
	b.becomes(t, "Opened")
	cutter.CutAfter(1 << 62)
	if err := <-done; !apierrors.IsNotFound(err) {
		t.Errorf("the call ended with %v", err)
	}
	b.becomes(t, "Closed")
}

// TestBreakerForced opens a breaker by hand, for all writes and all of Secrets: an open watch ends, reads are refused, and an
// operator keeps its lock.
func TestBreakerForced(t *testing.T) {
	t.Parallel()
	s := startPlugins(t, circuitBreaker, forcedRule("ForceClosed"))
	f := newFleet(t, shared.controlPlane, "ConfigMap", 1, 3, "a")
	namespace, _ := split(f.names[0])
	o := startOperator(t, unique("forced"), kubeconfig(t, s), "--app="+f.app, "--lock=forced", "--lock-namespace="+namespace)
	leading(t, o)
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	stream := must(client.CoreV1().Secrets(namespace).Watch(t.Context(), meta.ListOptions{}))(t)
	defer stream.Stop()

	check(t, s.Apply(t.Context(), pluginChain(t, 2, map[string]fields{circuitBreaker: forcedRule("ForceOpened")})))
	if event := <-stream.ResultChan(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("the watch ends with %s %v", event.Type, event.Object)
	}
	err := client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("secrets").MaxRetries(0).Do(t.Context()).Error()
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("a list ends with %v", err)
	}
	if seen := report[breakerState](t, s, circuitBreaker, "all"); seen.State != "Opened" || seen.Reason != "forced" {
		t.Errorf("/status tells %+v", seen)
	}
	begin := renewed(t, namespace)
	eventually(t, "the operator renews its lock", func() error {
		if now := renewed(t, namespace); now.Sub(begin) < 3*time.Second {
			return fmt.Errorf("last at %s", now)
		}
		return nil
	})

	check(t, s.Apply(t.Context(), pluginChain(t, 3, map[string]fields{circuitBreaker: forcedRule("ForceClosed")})))
	f.stepAll(t)
	f.settled(t, map[string]*operator{"a": o})
	if n := o.count(t, "leading"); n != 1 || !o.process.Alive() {
		t.Errorf("it led %d times, alive: %v", n, o.process.Alive())
	}
}

func forcedRule(policy string) fields {
	all := []string{"*"}
	return fields{"rateLimitings": []fields{{"name": "all", "triggerPolicy": policy, "resourceRules": []fields{
		{"apiGroups": all, "resources": all, "verbs": writeVerbs, "namespaces": all},
		{"apiGroups": all, "resources": []string{"secrets"}, "verbs": all, "namespaces": all},
	}}}}
}

// renewed is when the lock was renewed last.
func renewed(t *testing.T, namespace string) time.Time {
	t.Helper()
	lease := must(shared.client.CoordinationV1().Leases(namespace).Get(t.Context(), "forced", meta.GetOptions{}))(t)
	return lease.Spec.RenewTime.Time
}
