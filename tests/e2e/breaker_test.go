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

// This file opens circuit breakers by real failures of the API server, and checks what client-go and the API server
// see.

// failuresToTrip is the number of consecutive failures that open the breakers of this file.
const failuresToTrip = 3

// breakerState is the state of a breaker in /status.
type breakerState struct{ State, Reason, LastTransitionTime, RecoversAt string }

// breakerClient is a client behind a breaker for ConfigMap creates in one namespace.
type breakerClient struct {
	sidecar   *sidecar.Sidecar
	gate      *admissionGate
	namespace string
	client    *kubernetes.Clientset
}

func startBreaker(t *testing.T, extra jsonFields) breakerClient {
	t.Helper()
	namespace := newNamespace(t)
	gate := newAdmissionGate(t, namespace)
	s := startPlugin(t, circuitBreaker, breakerSettings(namespace, extra))
	return breakerClient{s, gate, namespace, must(kubernetes.NewForConfig(clientConfig(s)))(t)}
}

func breakerSettings(namespace string, extra jsonFields) jsonFields {
	rule := jsonFields{
		"name": "creates", "resourceRules": []jsonFields{configMapsMatch(namespace, "create")},
		"triggerPolicy": "Normal", "trip": jsonFields{"consecutiveFailures": failuresToTrip},
	}
	for name, value := range extra {
		rule[name] = value
	}
	return jsonFields{"rateLimitings": []jsonFields{rule}}
}

func sleepingWindow(window string) jsonFields {
	return jsonFields{"recoverPolicy": jsonFields{"type": "SleepingWindow", "sleepingWindowSize": window}}
}

// create makes a ConfigMap with client-go's retries, as controllers do.
func (b breakerClient) create(t *testing.T) error {
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: uniqueName("broken")}}
	_, err := b.client.CoreV1().ConfigMaps(b.namespace).Create(t.Context(), object, meta.CreateOptions{})
	return err
}

// createOnce does not retry, so it returns the first error.
func (b breakerClient) createOnce(t *testing.T) error {
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: uniqueName("broken")}}
	return b.client.CoreV1().RESTClient().Post().Namespace(b.namespace).Resource("configmaps").
		VersionedParams(&meta.CreateOptions{}, scheme.ParameterCodec).Body(object).MaxRetries(0).Do(t.Context()).Error()
}

// tripBreaker makes the API server fail until the breaker is open.
func (b breakerClient) tripBreaker(t *testing.T) {
	t.Helper()
	b.gate.setBroken(true)
	for range failuresToTrip {
		if err := b.createOnce(t); !apierrors.IsInternalError(err) {
			t.Fatalf("a create at the broken API server returns %v", err)
		}
	}
	b.waitState(t, "Opened")
}

func (b breakerClient) waitState(t *testing.T, state string) breakerState {
	t.Helper()
	var seen breakerState
	eventually(t, "the breaker is "+state, func() error {
		if seen = readReport[breakerState](t, b.sidecar, circuitBreaker, "creates"); seen.State != state {
			return fmt.Errorf("the state is %+v", seen)
		}
		return nil
	})
	return seen
}

// assertRefused asserts the response of an open breaker.
func (b breakerClient) assertRefused(t *testing.T) {
	t.Helper()
	err := b.createOnce(t)
	var status *apierrors.StatusError
	seconds, isPolite := apierrors.SuggestsClientDelay(err)
	if !errors.As(err, &status) || !apierrors.IsTooManyRequests(err) || !isPolite || seconds < 1 {
		t.Fatalf("an open breaker returns %v", err)
	}
	if causes := status.ErrStatus.Details.Causes; len(causes) != 1 || causes[0].Message != "creates" {
		t.Errorf("the causes are %+v", causes)
	}
}

// TestBreakerStaysOpenUntilPersonClosesIt opens a breaker that only a person can close.
func TestBreakerStaysOpenUntilPersonClosesIt(t *testing.T) {
	t.Parallel()
	b := startBreaker(t, jsonFields{"recoverPolicy": jsonFields{"type": "Manual"}, "recover": "monday"})
	check(t, b.create(t))
	b.tripBreaker(t)
	if seen := b.waitState(t, "Opened"); seen.Reason != "3 requests failed one after another" || seen.RecoversAt != "" || seen.LastTransitionTime == "" {
		t.Errorf("/status reports %+v", seen)
	}
	b.gate.setBroken(false)
	for range 10 {
		b.assertRefused(t)
	}
	must(b.client.CoreV1().ConfigMaps(b.namespace).List(t.Context(), meta.ListOptions{}))(t) // the rule is for creates
	if n := len(auditedRequests(t, shared.controlPlane, b.namespace, "create")); n != 1+failuresToTrip {
		t.Errorf("the API server saw %d creates", n)
	}
	b.recoverManually(t, 2, "monday", "Opened")
	b.assertRefused(t)
	b.recoverManually(t, 3, "tuesday", "Closed")
	check(t, b.createOnce(t))
	if n := len(auditedRequests(t, shared.controlPlane, b.namespace, "create")); n != 2+failuresToTrip {
		t.Errorf("the API server saw %d creates", n)
	}
}

// recoverManually publishes the rule with a new value of `recover` and another edit, and asserts the state that
// follows.
func (b breakerClient) recoverManually(t *testing.T, generation int64, value, state string) {
	t.Helper()
	rule := breakerSettings(b.namespace, jsonFields{"recoverPolicy": jsonFields{"type": "Manual"}, "recover": value, "probes": generation})
	check(t, b.sidecar.Apply(t.Context(), pluginChain(t, generation, map[string]jsonFields{circuitBreaker: rule})))
	b.waitState(t, state)
}

// TestBreakerSendsOneProbeAtATime lets clients wait behind an open breaker while one probe at a time checks the API
// server.
func TestBreakerSendsOneProbeAtATime(t *testing.T) {
	t.Parallel()
	const clients = 5
	b := startBreaker(t, sleepingWindow("2s"))
	b.tripBreaker(t)
	if seen := b.waitState(t, "Opened"); seen.RecoversAt <= seen.LastTransitionTime {
		t.Errorf("/status reports %+v", seen)
	}
	b.gate.block()
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
	b.waitForProbe(t, failuresToTrip+1)
	b.gate.unblock() // still broken: the probe fails
	if seen := b.waitState(t, "Opened"); seen.Reason != "a probe failed" {
		t.Errorf("/status reports %+v", seen)
	}
	b.gate.setBroken(false)
	group.Wait()
	b.waitState(t, "Closed")
	if succeeded.Load() != clients-1 || failed.Load() != 1 {
		t.Errorf("of %d creates %d succeeded and %d failed", clients, succeeded.Load(), failed.Load())
	}
	if seen := b.gate.counts(); seen.calls != failuresToTrip+clients {
		t.Errorf("the API server saw %+v", seen)
	}
	if opened, closed := ruleMetric(t, b.sidecar, "opened", "creates"), ruleMetric(t, b.sidecar, "closed", "creates"); opened != 2 || closed != 1 {
		t.Errorf("the breaker opened %d times and closed %d times", opened, closed)
	}
}

// waitForProbe waits until one probe is in flight at the API server and other requests were refused meanwhile.
func (b breakerClient) waitForProbe(t *testing.T, calls int) {
	t.Helper()
	eventually(t, "a probe is in flight", func() error {
		if seen := b.gate.counts(); seen.inFlight != 1 {
			return fmt.Errorf("the API server sees %+v", seen)
		}
		return nil
	})
	b.waitState(t, "HalfOpen")
	for range 10 {
		b.assertRefused(t)
	}
	if seen := b.gate.counts(); seen != (gateCounts{calls: calls, inFlight: 1, maxInFlight: 1}) {
		t.Errorf("while the breaker was half open the API server saw %+v", seen)
	}
}

// TestCallSpansOutageBehindBreaker cuts the connections to the API server: one call of a waiting client spans the
// failures, the open breaker and the recovery, and its caller sees no error.
func TestCallSpansOutageBehindBreaker(t *testing.T) {
	t.Parallel()
	cutter := must(rawhttp.NewCutter(shared.cluster.Address))(t)
	t.Cleanup(func() { _ = cutter.Close() })
	certificate := must(shared.cluster.CA.IssueClient("cut-off", "system:masters"))(t)
	rule := jsonFields{"rateLimitings": []jsonFields{{
		"name": "creates", "triggerPolicy": "Normal", "trip": jsonFields{"consecutiveFailures": failuresToTrip},
		"resourceRules": []jsonFields{configMapsMatch("default", "get")},
		"recoverPolicy": jsonFields{"type": "SleepingWindow", "sleepingWindowSize": "1s"},
	}}}
	chain := pluginChain(t, 1, map[string]jsonFields{circuitBreaker: rule})
	s := startSidecar(t, sidecar.Options{Chain: &chain, Kubeconfig: must(cluster.WriteKubeconfig(newDir(t), "cut-off",
		&api.Cluster{Server: "https://" + cutter.Address, CertificateAuthorityData: shared.cluster.CA.PEM},
		&api.AuthInfo{ClientCertificateData: certificate.Cert, ClientKeyData: certificate.Key}))(t)})
	b := breakerClient{sidecar: s, client: must(kubernetes.NewForConfig(clientConfig(s)))(t)}
	cutter.CutAfter(0)
	done := make(chan error)
	go func() {
		_, err := b.client.CoreV1().ConfigMaps("default").Get(t.Context(), "nothing", meta.GetOptions{})
		done <- err
	}()
	b.waitState(t, "Opened")
	cutter.CutAfter(1 << 62)
	if err := <-done; !apierrors.IsNotFound(err) {
		t.Errorf("the call returned %v", err)
	}
	b.waitState(t, "Closed")
}

// TestForcedBreakerRefusesAllButLock opens a breaker by force, for all writes and for everything about Secrets: an open
// watch ends, reads are refused, and an operator keeps its lock.
func TestForcedBreakerRefusesAllButLock(t *testing.T) {
	t.Parallel()
	s := startPlugin(t, circuitBreaker, forcedSettings("ForceClosed"))
	set := newObjectSet(t, shared.controlPlane, "ConfigMap", 1, 3, "a")
	namespace, _ := splitKey(set.names[0])
	op := startOperator(t, uniqueName("forced"), sidecarKubeconfig(t, s), "--app="+set.app, "--lock=forced", "--lock-namespace="+namespace)
	waitLeadingOperator(t, op)
	client := must(kubernetes.NewForConfig(clientConfig(s)))(t)
	stream := must(client.CoreV1().Secrets(namespace).Watch(t.Context(), meta.ListOptions{}))(t)
	defer stream.Stop()

	check(t, s.Apply(t.Context(), pluginChain(t, 2, map[string]jsonFields{circuitBreaker: forcedSettings("ForceOpened")})))
	if event := <-stream.ResultChan(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("the watch ended with %s %v", event.Type, event.Object)
	}
	err := client.CoreV1().RESTClient().Get().Namespace(namespace).Resource("secrets").MaxRetries(0).Do(t.Context()).Error()
	if !apierrors.IsTooManyRequests(err) {
		t.Errorf("the list returned %v", err)
	}
	if seen := readReport[breakerState](t, s, circuitBreaker, "all"); seen.State != "Opened" || seen.Reason != "forced" {
		t.Errorf("/status reports %+v", seen)
	}
	begin := lockRenewTime(t, namespace)
	eventually(t, "the operator renews its lock", func() error {
		if now := lockRenewTime(t, namespace); now.Sub(begin) < 3*time.Second {
			return fmt.Errorf("last renewed at %s", now)
		}
		return nil
	})

	check(t, s.Apply(t.Context(), pluginChain(t, 3, map[string]jsonFields{circuitBreaker: forcedSettings("ForceClosed")})))
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, map[string]*operatorProcess{"a": op})
	if n := op.countRecords(t, "leading"); n != 1 || !op.process.Alive() {
		t.Errorf("the operator led %d times, alive: %v", n, op.process.Alive())
	}
}

func forcedSettings(policy string) jsonFields {
	all := []string{"*"}
	return jsonFields{"rateLimitings": []jsonFields{{"name": "all", "triggerPolicy": policy, "resourceRules": []jsonFields{
		{"apiGroups": all, "resources": all, "verbs": writeVerbs, "namespaces": all},
		{"apiGroups": all, "resources": []string{"secrets"}, "verbs": all, "namespaces": all},
	}}}}
}

// lockRenewTime returns when the operator's lock was last renewed.
func lockRenewTime(t *testing.T, namespace string) time.Time {
	t.Helper()
	lease := must(shared.client.CoordinationV1().Leases(namespace).Get(t.Context(), "forced", meta.GetOptions{}))(t)
	return lease.Spec.RenewTime.Time
}
