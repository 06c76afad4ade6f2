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

// This file breaks single requests of client-go, over HTTP/1.1 and HTTP/2: answers that are lost after the work was done, and
// refusals before. What is repeated, by whom, and what is then there, is the whole difference between them.

// broken is a create that meets a fault, and what follows from it.
type broken struct {
	do any
	// times that the fault strikes, on the first requests.
	times int
	// generate leaves the end of the name to the API server.
	generate bool
	// fails tells the error that the caller must see; nil for none.
	fails func(error) bool
	// sent by client-go, done by the API server, there at the end.
	sent, done, there int
}

var brokenCreates = map[string]broken{
	"L1_reset":   {do: fields{"lose": fields{"how": "reset"}}, fails: isTransport, sent: 1, done: 1, there: 1},
	"L1_gateway": {do: fields{"lose": fields{"how": "error"}}, fails: isPlain(504), sent: 1, done: 1, there: 1},
	"L1_store":   {do: fields{"lose": fields{"how": "error", "code": 500}}, fails: isPlain(500), sent: 1, done: 1, there: 1},

	"L2_name":      {do: fields{"lose": fields{"how": "retry"}}, fails: apierrors.IsAlreadyExists, sent: 2, done: 2, there: 1},
	"L2_generated": {do: fields{"lose": fields{"how": "retry"}}, generate: true, sent: 2, done: 2, there: 2},

	"N2_reset":  {do: fields{"reset": fields{"how": "internalError"}}, fails: isTransport, sent: 1},
	"N2_cancel": {do: fields{"reset": fields{"how": "cancel"}}, fails: isTransport, sent: 1},

	"N7_goaway": {do: "goaway", sent: 1, done: 1, there: 1},

	"B1_refused": {do: fields{"refuse": fields{}}, fails: isPlain(503), sent: 1},
	"B2_refused": {do: fields{"refuse": fields{"retryAfter": 1}}, times: 2, sent: 3, done: 1, there: 1},
}

// isTransport is an error without an answer.
func isTransport(err error) bool {
	var status apierrors.APIStatus
	return err != nil && !errors.As(err, &status)
}

// isPlain is an answer with this code, and without a word of when to come back.
func isPlain(code int32) func(error) bool {
	return func(err error) bool {
		var status apierrors.APIStatus
		_, hasDelay := apierrors.SuggestsClientDelay(err)
		return errors.As(err, &status) && status.Status().Code == code && !hasDelay
	}
}

// disturbed is a sidecar with one fault for each test by name, each in a namespace of its own.
type disturbed struct {
	sidecar    *sidecar.Sidecar
	namespaces map[string]string
	authority  *cluster.Authority
}

// struck is what a fault shows of itself.
type struck struct{ Matched, Fired int }

// transports by the version of HTTP that client-go then speaks.
var transports = []string{"HTTP/1.1", "HTTP/2.0"}

// disturb starts a sidecar with a fault for each name and each transport. The rest of a fault's rule is in `rules`, but for
// the namespace.
func disturb(t *testing.T, class string, rules map[string]fields, verbs map[string]string) disturbed {
	t.Helper()
	d := disturbed{namespaces: map[string]string{}, authority: must(cluster.NewAuthority("sidecar"))(t)}
	faults := []fields{}
	for name, rule := range rules {
		for _, transport := range transports {
			key := name + " " + transport
			d.namespaces[key] = newNamespace(t)
			fault := fields{"name": key, "match": fields{"resources": []fields{inNamespace(d.namespaces[key], verbs[name])}}}
			for field, value := range rule {
				fault[field] = value
			}
			faults = append(faults, fault)
		}
	}
	chain := pluginChain(t, 1, map[string]fields{faultInject: {"class": class, "faults": faults}})
	d.sidecar = startSidecar(t, sidecar.Options{Chain: &chain, TLSDir: servingDir(t, d.authority)})
	return d
}

// client speaks one version of HTTP, and demands that it did: JSON over HTTP/1.1, protobuf over HTTP/2.
func (d disturbed) client(t *testing.T, transport string) *kubernetes.Clientset {
	t.Helper()
	config := clientConfig(d.sidecar)
	if transport == "HTTP/2.0" {
		config.Host, config.TLSClientConfig = "https://"+d.sidecar.API, rest.TLSClientConfig{CAData: d.authority.PEM}
		config.ContentType = runtime.ContentTypeProtobuf
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return speaks{t, transport, next} })
	return must(kubernetes.NewForConfig(config))(t)
}

type speaks struct {
	t       *testing.T
	version string
	next    http.RoundTripper
}

func (s speaks) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.next.RoundTrip(request)
	if err == nil && response.Proto != s.version {
		s.t.Errorf("%s speaks %s", request.URL, response.Proto)
	}
	return response, err
}

// each runs a test for each transport, all at the same time.
func (d disturbed) each(t *testing.T, name string, test func(*testing.T, *kubernetes.Clientset, string)) {
	for _, transport := range transports {
		t.Run(name+" "+transport, func(t *testing.T) {
			t.Parallel()
			client, namespace := d.client(t, transport), d.namespaces[name+" "+transport]
			// A connection that was used before: Go resends some requests there by itself.
			must(client.CoreV1().Namespaces().Get(t.Context(), namespace, meta.GetOptions{}))(t)
			test(t, client, namespace)
		})
	}
}

// sees demands how often a fault was met, and how often it struck.
func (d disturbed) sees(t *testing.T, name, namespace string, want struck) {
	t.Helper()
	for _, transport := range transports {
		key := name + " " + transport
		if d.namespaces[key] != namespace {
			continue
		}
		if seen := report[struck](t, d.sidecar, faultInject, key); seen != want {
			t.Errorf("the fault tells %+v, want %+v", seen, want)
		}
	}
}

// TestLostAnswers makes a ConfigMap with client-go for each fault of brokenCreates.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	rules, verbs := map[string]fields{}, map[string]string{}
	for name, b := range brokenCreates {
		rules[name], verbs[name] = fields{"do": b.do, "first": max(b.times, 1)}, "create"
	}
	d := disturb(t, "legal", rules, verbs)
	for name, b := range brokenCreates {
		d.each(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
			create := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "x", Namespace: namespace}}
			if b.generate {
				create.ObjectMeta = meta.ObjectMeta{GenerateName: "x-", Namespace: namespace}
			}
			_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), create, meta.CreateOptions{})
			if b.fails == nil && err != nil || b.fails != nil && !b.fails(err) {
				t.Errorf("the caller sees %v", err)
			}
			d.sees(t, name, namespace, struck{Matched: b.sent, Fired: max(b.times, 1)})
			if done := len(arrived(t, shared.controlPlane, namespace, "create")); done != b.done {
				t.Errorf("the API server did it %d times, want %d", done, b.done)
			}
			if there := names(t, namespace); len(there) != b.there {
				t.Errorf("there are %v, want %d", there, b.there)
			}
		})
	}
}

// TestLostForGood is L1 by silence: the caller gives up, and the object is there.
func TestLostForGood(t *testing.T) {
	t.Parallel()
	const name = "L1_hang"
	d := disturb(t, "legal", map[string]fields{name: {"do": fields{"lose": fields{"how": "hang"}}}}, map[string]string{name: "create"})
	d.each(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		ended := make(chan error)
		go func() {
			object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "x"}}
			_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, object, meta.CreateOptions{})
			ended <- err
		}()
		eventually(t, "the object is there", func() error {
			if there := names(t, namespace); len(there) != 1 {
				return fmt.Errorf("there are %v", there)
			}
			return nil
		})
		select {
		case err := <-ended:
			t.Fatalf("the call ended with %v", err)
		default:
		}
		giveUp()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the call ended with %v", err)
		}
		if done := len(arrived(t, shared.controlPlane, namespace, "create")); done != 1 {
			t.Errorf("the API server did it %d times", done)
		}
	})
}

// TestLostAnswerSparesWatches loses an answer beside a watch, over HTTP/2 on the same connection: the watch goes on, and tells of
// the object that the caller believes lost.
func TestLostAnswerSparesWatches(t *testing.T) {
	t.Parallel()
	const name = "L1_reset"
	d := disturb(t, "legal", map[string]fields{name: {"do": fields{"lose": fields{"how": "reset"}}}}, map[string]string{name: "create"})
	d.each(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
		configMaps := client.CoreV1().ConfigMaps(namespace)
		stream := must(configMaps.Watch(t.Context(), meta.ListOptions{}))(t)
		defer stream.Stop()
		for _, object := range []string{"x", "y"} {
			create := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: object}}
			if _, err := configMaps.Create(t.Context(), create, meta.CreateOptions{}); !isTransport(err) {
				t.Errorf("the caller sees %v", err)
			}
			event, isOpen := <-stream.ResultChan()
			if !isOpen || event.Type != watch.Added || event.Object.(*core.ConfigMap).Name != object {
				t.Fatalf("the watch, open: %v, tells %s %v", isOpen, event.Type, event.Object)
			}
		}
	})
}

// TestBrokenReadsAndUpdates: a get whose connection breaks is repeated below its caller, one whose stream breaks is not; a
// conflict is repeated by a caller that asks for it.
func TestBrokenReadsAndUpdates(t *testing.T) {
	t.Parallel()
	rules := map[string]fields{
		"N2_close":    {"do": fields{"reset": fields{"how": "close"}}, "first": 1},
		"N2_stream":   {"do": fields{"reset": fields{"how": "internalError"}}, "first": 1},
		"W1_conflict": {"do": "conflict", "first": 2},
	}
	d := disturb(t, "legal", rules, map[string]string{"N2_close": "get", "N2_stream": "get", "W1_conflict": "update"})
	for _, name := range []string{"N2_close", "N2_stream"} {
		d.each(t, name, func(t *testing.T, client *kubernetes.Clientset, namespace string) {
			createConfigMap(t, namespace, "x", nil, nil)
			_, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "x", meta.GetOptions{})
			// HTTP/1.1 has no stream but the connection.
			if name == "N2_stream" && d.namespaces[name+" HTTP/2.0"] == namespace {
				if !isTransport(err) {
					t.Errorf("the caller sees %v", err)
				}
				d.sees(t, name, namespace, struck{Matched: 1, Fired: 1})
				return
			}
			check(t, err)
			d.sees(t, name, namespace, struck{Matched: 2, Fired: 1})
		})
	}
	d.each(t, "W1_conflict", func(t *testing.T, client *kubernetes.Clientset, namespace string) {
		configMaps, object := client.CoreV1().ConfigMaps(namespace), createConfigMap(t, namespace, "x", nil, nil)
		if _, err := configMaps.Update(t.Context(), object, meta.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("a conflict is %v", err)
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
		d.sees(t, "W1_conflict", namespace, struck{Matched: 3, Fired: 2})
		if n := len(arrived(t, shared.controlPlane, namespace, "update")); n != 1 {
			t.Errorf("the API server saw %d updates", n)
		}
	})
}
