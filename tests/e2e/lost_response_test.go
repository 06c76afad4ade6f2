package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

// This file breaks single requests of client-go, over HTTP/1.1 and HTTP/2: responses that are lost after the request
// was executed, and refusals before. The cases differ in what is retried, by whom, and in what exists in the end.

// brokenCreate is a create that meets a fault, and the expected result.
type brokenCreate struct {
	fault any
	// times is how many requests the fault hits, beginning with the first.
	times int
	// generate uses generateName.
	generate bool
	// wantError matches the error that the caller must get; nil means no error.
	wantError func(error) bool
	// wantSent counts requests sent by client-go, wantDone those executed by the API server, wantStored the objects in
	// the end.
	wantSent, wantDone, wantStored int
}

var brokenCreates = map[string]brokenCreate{
	"L1_reset":   {fault: jsonFields{"lose": jsonFields{"how": "reset"}}, wantError: isTransportError, wantSent: 1, wantDone: 1, wantStored: 1},
	"L1_gateway": {fault: jsonFields{"lose": jsonFields{"how": "error"}}, wantError: isStatusWithoutRetryAfter(504), wantSent: 1, wantDone: 1, wantStored: 1},
	"L1_store":   {fault: jsonFields{"lose": jsonFields{"how": "error", "code": 500}}, wantError: isStatusWithoutRetryAfter(500), wantSent: 1, wantDone: 1, wantStored: 1},

	"L2_name":      {fault: jsonFields{"lose": jsonFields{"how": "retry"}}, wantError: apierrors.IsAlreadyExists, wantSent: 2, wantDone: 2, wantStored: 1},
	"L2_generated": {fault: jsonFields{"lose": jsonFields{"how": "retry"}}, generate: true, wantSent: 2, wantDone: 2, wantStored: 2},

	"N2_reset":  {fault: jsonFields{"reset": jsonFields{"how": "internalError"}}, wantError: isTransportError, wantSent: 1},
	"N2_cancel": {fault: jsonFields{"reset": jsonFields{"how": "cancel"}}, wantError: isTransportError, wantSent: 1},

	"N7_goaway": {fault: "goaway", wantSent: 1, wantDone: 1, wantStored: 1},

	"B1_refused": {fault: jsonFields{"refuse": jsonFields{}}, wantError: isStatusWithoutRetryAfter(503), wantSent: 1},
	"B2_refused": {fault: jsonFields{"refuse": jsonFields{"retryAfter": 1}}, times: 2, wantSent: 3, wantDone: 1, wantStored: 1},
}

// isTransportError matches errors without a response.
func isTransportError(err error) bool {
	var status apierrors.APIStatus
	return err != nil && !errors.As(err, &status)
}

// isStatusWithoutRetryAfter matches a Status with this code and without retryAfterSeconds.
func isStatusWithoutRetryAfter(code int32) func(error) bool {
	return func(err error) bool {
		var status apierrors.APIStatus
		_, hasDelay := apierrors.SuggestsClientDelay(err)
		return errors.As(err, &status) && status.Status().Code == code && !hasDelay
	}
}

// faultySidecar is a sidecar with one fault for each test name, each in its own namespace.
type faultySidecar struct {
	sidecar    *sidecar.Sidecar
	namespaces map[string]string
	authority  *cluster.Authority
}

// faultReport is what a fault reports in /status.
type faultReport struct{ Matched, Fired int }

// transports are the versions of HTTP that client-go uses.
var transports = []string{"HTTP/1.1", "HTTP/2.0"}

// startFaultySidecar starts a sidecar with a fault for each name and transport. `rules` has the fault rules without
// their namespaces.
func startFaultySidecar(t *testing.T, class string, rules map[string]jsonFields, verbs map[string]string) faultySidecar {
	t.Helper()
	d := faultySidecar{namespaces: map[string]string{}, authority: must(cluster.NewAuthority("sidecar"))(t)}
	faults := []jsonFields{}
	for name, rule := range rules {
		for _, transport := range transports {
			key := name + " " + transport
			d.namespaces[key] = newNamespace(t)
			fault := jsonFields{"name": key, "match": jsonFields{"resources": []jsonFields{configMapsMatch(d.namespaces[key], verbs[name])}}}
			for field, value := range rule {
				fault[field] = value
			}
			faults = append(faults, fault)
		}
	}
	chain := pluginChain(t, 1, map[string]jsonFields{faultInject: {"class": class, "faults": faults}})
	d.sidecar = startSidecar(t, sidecar.Options{Chain: &chain, TLSDir: servingDir(t, d.authority)})
	return d
}

// client returns a client for one version of HTTP, and asserts that it is used: JSON over HTTP/1.1, protobuf over
// HTTP/2.
func (d faultySidecar) client(t *testing.T, transport string) *kubernetes.Clientset {
	t.Helper()
	config := clientConfig(d.sidecar)
	if transport == "HTTP/2.0" {
		config.Host, config.TLSClientConfig = "https://"+d.sidecar.API, rest.TLSClientConfig{CAData: d.authority.PEM}
		config.ContentType = runtime.ContentTypeProtobuf
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return protocolChecker{t, transport, next} })
	return must(kubernetes.NewForConfig(config))(t)
}

type protocolChecker struct {
	t       *testing.T
	version string
	next    http.RoundTripper
}

func (s protocolChecker) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.next.RoundTrip(request)
	if err == nil && response.Proto != s.version {
		s.t.Errorf("%s is requested over %s", request.URL, response.Proto)
	}
	return response, err
}

// forEachTransport runs a test for each transport, in parallel.
func (d faultySidecar) forEachTransport(t *testing.T, name string, test func(*testing.T, *kubernetes.Clientset, string)) {
	for _, transport := range transports {
		t.Run(name+" "+transport, func(t *testing.T) {
			t.Parallel()
			client, namespace := d.client(t, transport), d.namespaces[name+" "+transport]
			// On a reused connection Go itself retries some requests.
			must(client.CoreV1().Namespaces().Get(t.Context(), namespace, meta.GetOptions{}))(t)
			test(t, client, namespace)
		})
	}
}

// assertFaultReport asserts how often a fault matched and fired.
func (d faultySidecar) assertFaultReport(t *testing.T, name, namespace string, want faultReport) {
	t.Helper()
	for _, transport := range transports {
		key := name + " " + transport
		if d.namespaces[key] != namespace {
			continue
		}
		if seen := readReport[faultReport](t, d.sidecar, faultInject, key); seen != want {
			t.Errorf("the fault reports %+v, want %+v", seen, want)
		}
	}
}

// TestBrokenCreateIsRepeatedOrReported creates a ConfigMap with client-go for each fault of brokenCreates.
func TestBrokenCreateIsRepeatedOrReported(t *testing.T) {
	t.Parallel()
	rules, verbs := map[string]jsonFields{}, map[string]string{}
	for name, b := range brokenCreates {
		rules[name], verbs[name] = jsonFields{"do": b.fault, "first": max(b.times, 1)}, "create"
	}
	d := startFaultySidecar(t, "legal", rules, verbs)
	for name, b := range brokenCreates {
		d.forEachTransport(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
			create := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "x", Namespace: namespace}}
			if b.generate {
				create.ObjectMeta = meta.ObjectMeta{GenerateName: "x-", Namespace: namespace}
			}
			_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), create, meta.CreateOptions{})
			if b.wantError == nil && err != nil || b.wantError != nil && !b.wantError(err) {
				t.Errorf("the caller gets %v", err)
			}
			d.assertFaultReport(t, name, namespace, faultReport{Matched: b.wantSent, Fired: max(b.times, 1)})
			if done := len(auditedRequests(t, shared.controlPlane, namespace, "create")); done != b.wantDone {
				t.Errorf("the API server executed it %d times, want %d", done, b.wantDone)
			}
			if there := configMapNames(t, namespace); len(there) != b.wantStored {
				t.Errorf("%v exist, want %d", there, b.wantStored)
			}
		})
	}
}

// TestTimedOutCreateIsExecuted is L1 without any response: the caller times out, and the object exists.
func TestTimedOutCreateIsExecuted(t *testing.T) {
	t.Parallel()
	const name = "L1_hang"
	d := startFaultySidecar(t, "legal", map[string]jsonFields{name: {"do": jsonFields{"lose": jsonFields{"how": "hang"}}}}, map[string]string{name: "create"})
	d.forEachTransport(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		ended := make(chan error)
		go func() {
			object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "x"}}
			_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, meta.CreateOptions{})
			ended <- err
		}()
		eventually(t, "the object exists", func() error {
			if there := configMapNames(t, namespace); len(there) != 1 {
				return fmt.Errorf("%v exist", there)
			}
			return nil
		})
		select {
		case err := <-ended:
			t.Fatalf("the call returned %v", err)
		default:
		}
		giveUp()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the call returned %v", err)
		}
		if done := len(auditedRequests(t, shared.controlPlane, namespace, "create")); done != 1 {
			t.Errorf("the API server executed it %d times", done)
		}
	})
}

// TestLostResponseSparesWatches loses a response beside a watch, over HTTP/2 on the same connection: the watch stays
// open, and reports the object that the caller believes lost.
func TestLostResponseSparesWatches(t *testing.T) {
	t.Parallel()
	const name = "L1_reset"
	d := startFaultySidecar(t, "legal", map[string]jsonFields{name: {"do": jsonFields{"lose": jsonFields{"how": "reset"}}}}, map[string]string{name: "create"})
	d.forEachTransport(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
		configMaps := client.CoreV1().ConfigMaps(namespace)
		stream := must(configMaps.Watch(t.Context(), meta.ListOptions{}))(t)
		defer stream.Stop()
		for _, object := range []string{"x", "y"} {
			create := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: object}}
			if _, err := configMaps.Create(t.Context(), create, meta.CreateOptions{}); !isTransportError(err) {
				t.Errorf("the caller gets %v", err)
			}
			event, isOpen := <-stream.ResultChan()
			if !isOpen || event.Type != watch.Added || event.Object.(*core.ConfigMap).Name != object {
				t.Fatalf("the watch, open: %v, reports %s %v", isOpen, event.Type, event.Object)
			}
		}
	})
}

// TestClientsRetryBrokenReadsAndConflicts: a get whose connection breaks is retried by the transport, one whose
// stream breaks is not; a conflict is retried by a caller that uses RetryOnConflict.
func TestClientsRetryBrokenReadsAndConflicts(t *testing.T) {
	t.Parallel()
	rules := map[string]jsonFields{
		"N2_close":    {"do": jsonFields{"reset": jsonFields{"how": "close"}}, "first": 1},
		"N2_stream":   {"do": jsonFields{"reset": jsonFields{"how": "internalError"}}, "first": 1},
		"W1_conflict": {"do": "conflict", "first": 2},
	}
	d := startFaultySidecar(t, "legal", rules, map[string]string{"N2_close": "get", "N2_stream": "get", "W1_conflict": "update"})
	for _, name := range []string{"N2_close", "N2_stream"} {
		d.forEachTransport(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
			createConfigMap(t, namespace, "x", nil, nil)
			_, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "x", meta.GetOptions{})
			// In HTTP/1.1 there are no streams.
			if name == "N2_stream" && d.namespaces[name+" HTTP/2.0"] == namespace {
				if !isTransportError(err) {
					t.Errorf("the caller gets %v", err)
				}
				d.assertFaultReport(t, name, namespace, faultReport{Matched: 1, Fired: 1})
				return
			}
			check(t, err)
			d.assertFaultReport(t, name, namespace, faultReport{Matched: 2, Fired: 1})
		})
	}
	d.forEachTransport(t, "W1_conflict", func(t *testing.T, client *kubernetes.Clientset, namespace string) {
		configMaps, object := client.CoreV1().ConfigMaps(namespace), createConfigMap(t, namespace, "x", nil, nil)
		if _, err := configMaps.Update(t.Context(), object, meta.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("a conflict returns %v", err)
		}
		check(t, retry.RetryOnConflict(retry.DefaultRetry, func() error {
			fresh, err := configMaps.Get(t.Context(), "x", meta.GetOptions{})
			if err != nil {
				return err
			}
			fresh.Data = map[string]string{"k": "v"}
			_, err = configMaps.Update(t.Context(), fresh, meta.UpdateOptions{})
			return err
		}))
		d.assertFaultReport(t, "W1_conflict", namespace, faultReport{Matched: 3, Fired: 2})
		if n := len(auditedRequests(t, shared.controlPlane, namespace, "update")); n != 1 {
			t.Errorf("the API server saw %d updates", n)
		}
	})
}
