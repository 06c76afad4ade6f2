package e2e

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/process"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// This file runs Go clients against the test kit's API server, as started by `ctrlmesh plugin api-server`: client-go's
// typed clients and the controller-runtime operator of these tests, both in protobuf. The encodings of responses are
// compared with the real API server.

// startTestKit runs the server until the test ends, and returns the path of its kubeconfig.
func startTestKit(t *testing.T) string {
	t.Helper()
	dir := newDir(t)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	program := must(binaries.CargoBinary("ctrlmesh", "ctrlmesh-cli", "CTRLMESH_BIN"))(t)
	server := must(process.Start(process.Spec{
		Name: "testkit", Path: program, Args: []string{"plugin", "api-server", "--kubeconfig", kubeconfig}, LogDir: dir,
	}))(t)
	t.Cleanup(func() {
		if !server.Alive() {
			t.Errorf("the server exited during the test: %v\n%s", server.Err(), server.LogTail(2048))
		}
		server.Kill()
	})
	eventually(t, "the server has written its kubeconfig", func() error {
		if !server.Alive() {
			t.Fatalf("the server exited: %v\n%s", server.Err(), server.LogTail(2048))
		}
		// The file may still be empty.
		_, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		return err
	})
	return kubeconfig
}

// protobufClient only uses protobuf, and fails the test on a response in another encoding.
func protobufClient(t *testing.T, kubeconfig string) *kubernetes.Clientset {
	t.Helper()
	config := must(clientcmd.BuildConfigFromFlags("", kubeconfig))(t)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil && !strings.HasPrefix(response.Header.Get("Content-Type"), runtime.ContentTypeProtobuf) {
				t.Errorf("%s %s has a response in %q", request.Method, request.URL, response.Header.Get("Content-Type"))
			}
			return response, err
		})
	})
	return must(kubernetes.NewForConfig(config))(t)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

func TestTestKitServesTypedClientsInProtobuf(t *testing.T) {
	t.Parallel()
	client := protobufClient(t, startTestKit(t))
	const namespace = "default"
	named := meta.ObjectMeta{Name: "mine", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"ü": "\x00"}}
	micro := meta.NewMicroTime(time.Date(2026, 7, 1, 12, 0, 0, 1234000, time.UTC))
	percent, seconds := intstr.FromString("25%"), int32(0)
	template := core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: named.Labels}, Spec: core.PodSpec{Containers: []core.Container{{
		Name: "c", Image: "i", Resources: core.ResourceRequirements{Limits: core.ResourceList{"cpu": resource.MustParse("250m")}},
		LivenessProbe: &core.Probe{ProbeHandler: core.ProbeHandler{HTTPGet: &core.HTTPGetAction{Port: intstr.FromInt32(80)}}},
	}}}}
	t.Run("ConfigMap", func(t *testing.T) {
		testObjectLifecycle(t, client.CoreV1().ConfigMaps(namespace), &core.ConfigMap{ObjectMeta: named, BinaryData: map[string][]byte{"b": {0, 255}}})
	})
	t.Run("Pod", func(t *testing.T) {
		testObjectLifecycle(t, client.CoreV1().Pods(namespace), &core.Pod{ObjectMeta: named, Spec: template.Spec})
	})
	t.Run("core_Event", func(t *testing.T) {
		testObjectLifecycle(t, client.CoreV1().Events(namespace), &core.Event{ObjectMeta: named, EventTime: micro, Count: 2})
	})
	t.Run("Deployment", func(t *testing.T) {
		rolling := apps.DeploymentStrategy{RollingUpdate: &apps.RollingUpdateDeployment{MaxSurge: &percent}}
		selector := &meta.LabelSelector{MatchLabels: named.Labels}
		testObjectLifecycle(t, client.AppsV1().Deployments(namespace), &apps.Deployment{
			ObjectMeta: named, Spec: apps.DeploymentSpec{Replicas: &seconds, Selector: selector, Template: template, Strategy: rolling},
		})
	})
	t.Run("CronJob", func(t *testing.T) {
		job := batch.JobTemplateSpec{Spec: batch.JobSpec{Template: template}}
		testObjectLifecycle(t, client.BatchV1().CronJobs(namespace), &batch.CronJob{ObjectMeta: named, Spec: batch.CronJobSpec{Schedule: "* * * * *", JobTemplate: job}})
	})
	t.Run("Lease", func(t *testing.T) {
		testObjectLifecycle(t, client.CoordinationV1().Leases(namespace), &coordination.Lease{
			ObjectMeta: named, Spec: coordination.LeaseSpec{RenewTime: &micro, LeaseDurationSeconds: &seconds},
		})
	})
	t.Run("events_Event", func(t *testing.T) {
		testObjectLifecycle(t, client.EventsV1().Events(namespace), &events.Event{ObjectMeta: named, EventTime: micro, Note: "note"})
	})
	t.Run("ClusterRole", func(t *testing.T) {
		testObjectLifecycle(t, client.RbacV1().ClusterRoles(), &rbac.ClusterRole{ObjectMeta: named, Rules: []rbac.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}}}})
	})
	t.Run("collections", func(t *testing.T) { testCollection(t, client, namespace) })
}

// typedClient has the methods of client-go's generated clients.
type typedClient[T any] interface {
	Create(context.Context, T, meta.CreateOptions) (T, error)
	Update(context.Context, T, meta.UpdateOptions) (T, error)
	Get(context.Context, string, meta.GetOptions) (T, error)
	Delete(context.Context, string, meta.DeleteOptions) error
	Watch(context.Context, meta.ListOptions) (watch.Interface, error)
}

// testObjectLifecycle creates, reads, updates, watches and deletes an object, and asserts that it comes back as it was
// sent.
func testObjectLifecycle[T interface {
	meta.Object
	runtime.Object
}](t *testing.T, client typedClient[T], object T) {
	t.Helper()
	ctx, name := t.Context(), object.GetName()
	stream := must(client.Watch(ctx, meta.ListOptions{}))(t)
	defer stream.Stop()
	created := must(client.Create(ctx, object, meta.CreateOptions{}))(t)
	expected := object.DeepCopyObject().(T)
	expected.SetNamespace(created.GetNamespace())
	expected.SetUID(created.GetUID())
	expected.SetResourceVersion(created.GetResourceVersion())
	expected.SetGeneration(created.GetGeneration())
	expected.SetCreationTimestamp(created.GetCreationTimestamp())
	expected.SetManagedFields(created.GetManagedFields())
	got := must(client.Get(ctx, name, meta.GetOptions{}))(t)
	if !equality.Semantic.DeepEqual(created, expected) || !equality.Semantic.DeepEqual(got, expected) || created.GetUID() == "" {
		t.Errorf("sent     %+v\ncreated  %+v\nread     %+v", expected, created, got)
	}
	got.SetAnnotations(map[string]string{"step": "2"})
	updated := must(client.Update(ctx, got, meta.UpdateOptions{}))(t)
	if _, err := client.Update(ctx, created, meta.UpdateOptions{}); err == nil || !strings.Contains(err.Error(), "the object has been modified") {
		t.Errorf("an update of an old version: %v", err)
	}
	other := types.UID("other")
	if err := client.Delete(ctx, name, meta.DeleteOptions{Preconditions: &meta.Preconditions{UID: &other}}); err == nil {
		t.Error("a precondition that does not hold was ignored")
	}
	check(t, client.Delete(ctx, name, *meta.NewPreconditionDeleteOptions(string(updated.GetUID()))))
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		event := <-stream.ResultChan()
		if found, ok := event.Object.(T); event.Type != want || !ok || found.GetName() != name {
			t.Errorf("event %s %v, want %s of %s", event.Type, event.Object, want, name)
		}
	}
}

// testCollection tests pages, an informer, a patch and the deletion of a collection.
func testCollection(t *testing.T, client kubernetes.Interface, namespace string) {
	ctx, secrets := t.Context(), client.CoreV1().Secrets(namespace)
	for i := range 3 {
		object := &core.Secret{ObjectMeta: meta.ObjectMeta{GenerateName: "s-"}, Data: map[string][]byte{"k": {byte(i)}}}
		must(secrets.Create(ctx, object, meta.CreateOptions{}))(t)
	}
	page := must(secrets.List(ctx, meta.ListOptions{Limit: 2}))(t)
	rest := must(secrets.List(ctx, meta.ListOptions{Continue: page.Continue}))(t)
	if len(page.Items) != 2 || len(rest.Items) != 1 || *page.RemainingItemCount != 1 {
		t.Errorf("the pages contain %d and %d", len(page.Items), len(rest.Items))
	}
	informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Secrets().Informer()
	go informer.Run(ctx.Done())
	eventually(t, "the informer holds the Secrets", func() error {
		if held := len(informer.GetStore().ListKeys()); !informer.HasSynced() || held != 3 {
			return fmt.Errorf("the informer holds %d", held)
		}
		return nil
	})
	name := rest.Items[0].Name
	patched := must(secrets.Patch(ctx, name, types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"l":"m"}}}`), meta.PatchOptions{}))(t)
	if patched.Labels["l"] != "m" {
		t.Errorf("the patch returned %+v", patched)
	}
	check(t, secrets.DeleteCollection(ctx, meta.DeleteOptions{}, meta.ListOptions{LabelSelector: "l=m"}))
	if left := must(secrets.List(ctx, meta.ListOptions{}))(t); len(left.Items) != 2 {
		t.Errorf("%d are left", len(left.Items))
	}
}

func TestTestKitRunsOperator(t *testing.T) {
	t.Parallel()
	kubeconfig := startTestKit(t)
	client := protobufClient(t, kubeconfig).CoreV1().ConfigMaps("default")
	op := startOperator(t, "a", kubeconfig, "--app=a", "--lock=operator")
	waitLeadingOperator(t, op)
	objects := []string{}
	for i := range 20 {
		name := fmt.Sprintf("object-%d", i)
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"app": "a"}}, Data: map[string]string{"step": "1"}}
		must(client.Create(t.Context(), object, meta.CreateOptions{}))(t)
		objects = append(objects, "default/"+name)
	}
	eventually(t, "the operator has handled all objects", func() error {
		list, err := client.List(t.Context(), meta.ListOptions{LabelSelector: "app=a"})
		if err != nil {
			return err
		}
		for _, object := range list.Items {
			if object.Data["observed"] != "1" || object.Data["by"] != "a" {
				return fmt.Errorf("%s has %v", object.Name, object.Data)
			}
		}
		return nil
	})
	check(t, client.DeleteCollection(t.Context(), meta.DeleteOptions{}, meta.ListOptions{LabelSelector: "app=a"}))
	op.waitForgotten(t, objects)
	if handled := op.countRecords(t, "handled"); handled != len(objects) {
		t.Errorf("the operator handled %d steps of %d", handled, len(objects))
	}
	op.assertNoFaults(t)
}

// negotiation is a request, and the response that both servers must give.
type negotiation struct {
	method, path, accept, contentType, body string
	code                                    int
	wantContentType                         string
	reason                                  meta.StatusReason
	// isCustomResource marks a kind that the command's server does not have. The test kit's own tests check the same
	// (testkit/tests/api/protobuf.rs).
	isCustomResource bool
}

const (
	metadataOnly = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	asTable      = ";as=Table;g=meta.k8s.io;v=v1"
	onConfigMaps = "/api/v1/namespaces/default/configmaps"
	onWidgets    = "/apis/e2e.ctrlmesh.dev/v1/namespaces/default/widgets"
)

var negotiations = []negotiation{
	{path: onConfigMaps, accept: protobufType, code: 200, wantContentType: protobufType},
	{path: onConfigMaps, accept: protobufType + ", */*", code: 200, wantContentType: protobufType},
	{path: onConfigMaps, accept: "*/*", code: 200, wantContentType: runtime.ContentTypeJSON},
	{path: onConfigMaps, accept: "application/json;q=0.5, " + protobufType, code: 200, wantContentType: protobufType},
	{path: onConfigMaps, accept: protobufType + metadataList, code: 200, wantContentType: protobufType},
	{path: onConfigMaps, accept: protobufType + asTable + ",application/json", code: 200, wantContentType: runtime.ContentTypeJSON},
	{path: onConfigMaps, accept: protobufType + asTable, code: 406, wantContentType: runtime.ContentTypeJSON, reason: meta.StatusReasonNotAcceptable},
	{path: onConfigMaps, accept: "application/xml", code: 406, wantContentType: runtime.ContentTypeJSON, reason: meta.StatusReasonNotAcceptable},
	{path: onConfigMaps + "?watch=1&timeoutSeconds=1", accept: protobufType, code: 200, wantContentType: protobufType + ";stream=watch"},
	{path: onConfigMaps + "/none", accept: protobufType, code: 404, wantContentType: protobufType, reason: meta.StatusReasonNotFound},
	{path: onConfigMaps + "/none", accept: protobufType + metadataOnly, code: 404, wantContentType: runtime.ContentTypeJSON, reason: meta.StatusReasonNotFound},
	{method: "POST", path: onConfigMaps, contentType: protobufType, body: "{}", code: 400, wantContentType: runtime.ContentTypeJSON, reason: meta.StatusReasonBadRequest},
	{method: "POST", path: onConfigMaps, contentType: "text/plain", body: "{}", code: 415, wantContentType: runtime.ContentTypeJSON, reason: meta.StatusReasonUnsupportedMediaType},
	{path: onWidgets, accept: protobufType, code: 406, wantContentType: protobufType, reason: meta.StatusReasonNotAcceptable, isCustomResource: true},
	{path: onWidgets, accept: protobufType + ", */*", code: 200, wantContentType: runtime.ContentTypeJSON, isCustomResource: true},
	{path: onWidgets, accept: protobufType + metadataList, code: 200, wantContentType: protobufType, isCustomResource: true},
}

func TestTestKitNegotiatesEncodingsAsUpstream(t *testing.T) {
	t.Parallel()
	testKit := must(clientcmd.BuildConfigFromFlags("", startTestKit(t)))(t)
	for name, config := range map[string]*rest.Config{"upstream": shared.cluster.AdminConfig(), "testkit": testKit} {
		client := must(rest.HTTPClientFor(config))(t)
		for _, a := range negotiations {
			if a.isCustomResource && name == "testkit" {
				continue
			}
			code, answered, body := a.send(t, client, config.Host)
			if code != a.code || answered != a.wantContentType || statusReason(body) != a.reason {
				t.Errorf("%s: %+v\nreturns %d %q %q", name, a, code, answered, statusReason(body))
			}
		}
	}
}

func (a negotiation) send(t *testing.T, client *http.Client, host string) (int, string, []byte) {
	t.Helper()
	request := must(http.NewRequestWithContext(t.Context(), a.method, host+a.path, strings.NewReader(a.body)))(t)
	for name, value := range map[string]string{"Accept": a.accept, "Content-Type": a.contentType} {
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	response := must(client.Do(request))(t)
	defer response.Body.Close()
	body := must(io.ReadAll(response.Body))(t)
	// Blanks inside the media type have no meaning.
	mediaType, parameters, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	check(t, err)
	if stream := parameters["stream"]; stream != "" {
		mediaType += ";stream=" + stream
	}
	return response.StatusCode, mediaType, body
}

// statusReason returns the reason of the Status in a body, in any encoding; empty if the body is not a Status.
func statusReason(body []byte) meta.StatusReason {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if status, ok := object.(*meta.Status); err == nil && ok {
		return status.Reason
	}
	return ""
}
