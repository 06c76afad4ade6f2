package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/process"
	admission "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// This file lets a real API server call the manager's webhooks, configured as in deploy/webhook except for the address:
// there are no Services.

// invalidFaultInjection passes the schema and its rules; only the webhook parses the expression.
const invalidFaultInjection = `
kind: FaultInjection
metadata: {name: broken}
spec:
  selector: {}
  httpFault:
  - match: {httpMatch: [{host: {regex: "("}}]}
    abort: {httpStatus: 500}
`

func TestWebhooksReviewObjects(t *testing.T) {
	t.Parallel()
	address := must(process.FreeAddress())(t)
	_, port, err := net.SplitHostPort(address)
	check(t, err)
	forAPIServer, forManager := webhookClientCertificate(t)
	m := newMeshAt(t, []string{forAPIServer}, append(forManager, "--webhook-bind-address=127.0.0.1", "--webhook-port="+port)...)
	namespace := m.newNamespace(t)
	stored := m.apply(t, namespace, invalidFaultInjection)
	started := m.startManager(t, "manager-0")
	installWebhooks(t, m, "https://"+address)

	t.Run("only_api_servers_get_responses", func(t *testing.T) { testAnswersAPIServersOnly(t, m, address) })
	t.Run("refusal_names_the_field", func(t *testing.T) { testRefusalNamesField(t, m, namespace) })
	t.Run("stored_mistake_can_be_corrected_and_deleted", func(t *testing.T) { testStoredMistakeCanBeDeleted(t, m, stored) })
	t.Run("overlapping_shards_get_a_warning", func(t *testing.T) { testWarnsOfOverlap(t, m, namespace) })
	t.Run("namespaces_and_objects_get_labels", func(t *testing.T) { testLabelsAtAdmission(t, m) })
	t.Run("broken_certificate_is_replaced", func(t *testing.T) { testBrokenCertificateIsReplaced(t, m, namespace) })
	t.Run("reset_bundle_is_restored", func(t *testing.T) { testBundleIsRepaired(t, m, namespace) })
	t.Run("updates_without_label_changes_are_not_reviewed", func(t *testing.T) { testReviewsOfLabelsOnly(t, m, started) })
	t.Run("objects_can_be_deleted_without_manager", func(t *testing.T) { testCleanUpWithoutManager(t, m, namespace, started) })
}

// webhookClientCertificate returns the API server's flag for a client certificate, as in docs/install.md, and the
// manager's flags that require it.
func webhookClientCertificate(t *testing.T) (string, []string) {
	t.Helper()
	authority := must(cluster.NewAuthority("webhook-clients"))(t)
	pair := must(authority.IssueClient("kube-apiserver"))(t)
	dir := newDir(t)
	for name, text := range map[string]string{
		"ca.crt": string(authority.PEM), "client.crt": string(pair.Cert), "client.key": string(pair.Key),
		"webhooks.kubeconfig": `{apiVersion: v1, kind: Config, users: [{name: "*", user: {client-certificate: DIR/client.crt, client-key: DIR/client.key}}]}`,
		"admission.yaml": `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: DIR/webhooks.kubeconfig}
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: DIR/webhooks.kubeconfig}
`,
	} {
		text = strings.ReplaceAll(text, "DIR", dir)
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return "--admission-control-config-file=" + filepath.Join(dir, "admission.yaml"),
		[]string{"--webhook-client-ca-file=" + filepath.Join(dir, "ca.crt"), "--webhook-client-name=kube-apiserver"}
}

// testAnswersAPIServersOnly: a client without a certificate gets no response.
func testAnswersAPIServersOnly(t *testing.T, m *mesh, address string) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(caBundle(t, m))(t))
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	response, err := client.Get("https://" + address + "/healthz")
	if err == nil {
		check(t, response.Body.Close())
		t.Errorf("a client without a certificate gets a response: %s", response.Status)
	} else if !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("a client without a certificate: %v", err)
	}
}

// installWebhooks applies both configurations with a URL, and waits until the manager has set their CA.
func installWebhooks(t *testing.T, m *mesh, url string) {
	t.Helper()
	registration := admission.SchemeGroupVersion
	for file, resource := range map[string]string{"validating": "validatingwebhookconfigurations", "mutating": "mutatingwebhookconfigurations"} {
		object := readObjects(t, "../../deploy/webhook/"+file+".yaml")[0]
		webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		check(t, err)
		for _, webhook := range webhooks {
			client := webhook.(map[string]any)["clientConfig"].(map[string]any)
			client["url"] = url + client["service"].(map[string]any)["path"].(string)
			delete(client, "service")
		}
		check(t, unstructured.SetNestedSlice(object.Object, webhooks, "webhooks"))
		_, err = m.dynamic.Resource(registration.WithResource(resource)).Create(t.Context(), object, meta.CreateOptions{FieldValidation: "Strict"})
		check(t, err)
	}
	eventually(t, "every webhook has a CA", func() error {
		_, err := caBundle(t, m)
		return err
	})
}

// caBundle returns the bundle that all webhooks have.
func caBundle(t *testing.T, m *mesh) ([]byte, error) {
	t.Helper()
	configurations := m.client.AdmissionregistrationV1()
	mutating := must(configurations.MutatingWebhookConfigurations().Get(t.Context(), "ctrlmesh-mutating", meta.GetOptions{}))(t)
	validating := must(configurations.ValidatingWebhookConfigurations().Get(t.Context(), "ctrlmesh-validating", meta.GetOptions{}))(t)
	bundles := [][]byte{}
	for _, webhook := range mutating.Webhooks {
		bundles = append(bundles, webhook.ClientConfig.CABundle)
	}
	for _, webhook := range validating.Webhooks {
		bundles = append(bundles, webhook.ClientConfig.CABundle)
	}
	if len(slices.CompactFunc(bundles, bytes.Equal)) != 1 || len(bundles[0]) == 0 {
		return nil, errors.New("some webhooks have no CA, or different ones")
	}
	return bundles[0], nil
}

// waitRefusal returns the API server's error for invalidFaultInjection, once the webhook is called.
func waitRefusal(t *testing.T, m *mesh, namespace string) *apierrors.StatusError {
	t.Helper()
	var status *apierrors.StatusError
	eventually(t, "the webhook refuses", func() error {
		text := strings.ReplaceAll(invalidFaultInjection, "name: broken", "name: "+uniqueName("broken"))
		_, err := m.tryApply(t.Context(), namespace, text)
		if !errors.As(err, &status) || !apierrors.IsInvalid(err) {
			return fmt.Errorf("the API server returns %v", err)
		}
		return nil
	})
	return status
}

func testRefusalNamesField(t *testing.T, m *mesh, namespace string) {
	const field = "spec.httpFault[0].match.httpMatch[0].host.regex"
	status := waitRefusal(t, m, namespace).Status()
	if !strings.Contains(status.Message, field) || len(status.Details.Causes) != 1 || status.Details.Causes[0].Field != field {
		t.Errorf("the refusal is %q, of %+v", status.Message, status.Details)
	}
	m.apply(t, namespace, strings.ReplaceAll(strings.ReplaceAll(invalidFaultInjection, `"("`, `"a.*"`), "broken", "whole"))
}

func testStoredMistakeCanBeDeleted(t *testing.T, m *mesh, stored *unstructured.Unstructured) {
	client := m.resource(stored.GetKind(), stored.GetNamespace())
	patch := func(text string) error {
		_, err := client.Patch(t.Context(), stored.GetName(), "application/merge-patch+json", []byte(text), meta.PatchOptions{})
		return err
	}
	check(t, patch(`{"metadata": {"labels": {"a": "b"}, "finalizers": ["e2e.example/hold"]}}`))
	if err := patch(`{"spec": {"httpFault": [{"match": {"httpMatch": [{"host": {"regex": "["}}]}, "abort": {"httpStatus": 500}}]}}`); !apierrors.IsInvalid(err) {
		t.Errorf("another mistake: %v", err)
	}
	check(t, client.Delete(t.Context(), stored.GetName(), meta.DeleteOptions{}))
	check(t, patch(`{"metadata": {"finalizers": null}}`))
	if _, err := client.Get(t.Context(), stored.GetName(), meta.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its finalizer was removed: %v", err)
	}
}

// warningRecorder records the API server's warnings.
type warningRecorder struct {
	mutex sync.Mutex
	texts []string
}

func (w *warningRecorder) HandleWarningHeader(_ int, _ string, text string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.texts = append(w.texts, text)
}

func testWarnsOfOverlap(t *testing.T, m *mesh, namespace string) {
	recorder := &warningRecorder{}
	config := m.cluster.AdminConfig()
	config.WarningHandler = recorder
	resource := schema.GroupVersionResource{Group: "ctrlmesh.kusionstack.io", Version: "v1alpha1", Resource: "shardingconfigs"}
	client := must(dynamic.NewForConfig(config))(t).Resource(resource).Namespace(namespace)
	for _, name := range []string{"one", "two"} {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
			"metadata": map[string]any{"name": name, "namespace": namespace},
			"spec": map[string]any{
				"selector":   map[string]any{"matchLabels": map[string]any{"shard": name}},
				"controller": map[string]any{"leaderElectionName": "lock"},
				"limits": []any{map[string]any{
					"relateResources": []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"pods"}}},
					"selector":        map[string]any{"matchLabels": map[string]any{"ctrlmesh.kusionstack.io/namespace": namespace}},
				}},
			},
		}}
		_, err := client.Create(t.Context(), object, meta.CreateOptions{})
		check(t, err)
	}
	recorder.mutex.Lock()
	defer recorder.mutex.Unlock()
	if !strings.Contains(strings.Join(recorder.texts, "\n"), namespace+" can be in both one, two") {
		t.Errorf("the warnings are %q", recorder.texts)
	}
}

// testLabelsAtAdmission checks the response to the write itself: labels that are added later do not count.
func testLabelsAtAdmission(t *testing.T, m *mesh) {
	want := func(namespace string) map[string]string {
		sum := rune(0)
		for _, c := range namespace {
			sum += c
		}
		prefix := "ctrlmesh.kusionstack.io/"
		return map[string]string{prefix + "shard-hash": fmt.Sprint(sum % 32), prefix + "namespace": namespace, prefix + "control": "true"}
	}
	var name string
	eventually(t, "a namespace gets labels", func() error {
		name = uniqueName("labelled")
		made, err := m.client.CoreV1().Namespaces().Create(t.Context(), &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{})
		if err != nil {
			return err
		}
		delete(made.Labels, core.LabelMetadataName)
		if !maps.Equal(made.Labels, want(name)) {
			return fmt.Errorf("the labels of %s are %v", name, made.Labels)
		}
		return nil
	})
	configMap := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{GenerateName: "e2e-", Labels: map[string]string{"app": "e2e"}}}
	madeMap := must(m.client.CoreV1().ConfigMaps(name).Create(t.Context(), configMap, meta.CreateOptions{}))(t)
	pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "e2e"}, Spec: core.PodSpec{Containers: []core.Container{{Name: "e2e", Image: "e2e"}}}}
	madePod := must(m.client.CoreV1().Pods(name).Create(t.Context(), pod, meta.CreateOptions{}))(t)
	expected := want(name)
	if !maps.Equal(madePod.Labels, expected) {
		t.Errorf("the pod's labels are %v", madePod.Labels)
	}
	expected["app"] = "e2e"
	if !maps.Equal(madeMap.Labels, expected) {
		t.Errorf("the ConfigMap's labels are %v", madeMap.Labels)
	}
	hidden := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{GenerateName: "e2e-"}}
	if made := must(m.client.CoreV1().ConfigMaps("kube-system").Create(t.Context(), hidden, meta.CreateOptions{}))(t); len(made.Labels) != 0 {
		t.Errorf("labels in kube-system are %v", made.Labels)
	}
}

func testReviewsOfLabelsOnly(t *testing.T, m *mesh, started *manager.Manager) {
	configMaps := m.client.CoreV1().ConfigMaps(m.newNamespace(t))
	made := must(configMaps.Create(t.Context(), &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "e2e"}}, meta.CreateOptions{}))(t)
	reviews := func() float64 {
		return must(started.Metric(t.Context(), "ctrlmesh_manager_webhook_reviews_total", `webhook="Resource"`))(t)
	}
	before := reviews()
	made.Data = map[string]string{"a": "b"}
	made = must(configMaps.Update(t.Context(), made, meta.UpdateOptions{}))(t)
	if after := reviews(); after != before {
		t.Errorf("%v more reviews for new data", after-before)
	}
	labels := made.Labels
	made.Labels = nil
	made = must(configMaps.Update(t.Context(), made, meta.UpdateOptions{}))(t)
	if after := reviews(); after == before || !maps.Equal(made.Labels, labels) {
		t.Errorf("without labels: %v more reviews, and %v", after-before, made.Labels)
	}
}

// testCleanUpWithoutManager: without a manager a mistake can't be stored, but everything else works.
func testCleanUpWithoutManager(t *testing.T, m *mesh, namespace string, gone *manager.Manager) {
	text := strings.ReplaceAll(strings.ReplaceAll(invalidFaultInjection, `"("`, `"a.*"`), "broken", "left-behind")
	stored := m.apply(t, namespace, text)
	client := m.resource(stored.GetKind(), namespace)
	patch := func(text string) error {
		_, err := client.Patch(t.Context(), stored.GetName(), "application/merge-patch+json", []byte(text), meta.PatchOptions{})
		return err
	}
	check(t, patch(`{"metadata": {"finalizers": ["e2e.example/hold"]}}`))
	check(t, gone.Stop())
	const another = `{"spec": {"selector": {"matchLabels": {"a": "b"}}}}`
	if err := patch(another); !apierrors.IsInternalError(err) {
		t.Errorf("a spec without validation: %v", err)
	}
	check(t, patch(`{"metadata": {"labels": {"a": "b"}, "finalizers": ["e2e.example/hold", "e2e.example/too"]}}`))
	check(t, patch(`{"metadata": {"finalizers": ["e2e.example/hold"]}}`))
	check(t, client.Delete(t.Context(), stored.GetName(), meta.DeleteOptions{}))
	check(t, patch(another))
	check(t, patch(`{"metadata": {"finalizers": null}}`))
	if _, err := client.Get(t.Context(), stored.GetName(), meta.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its finalizer was removed: %v", err)
	}
}

func testBrokenCertificateIsReplaced(t *testing.T, m *mesh, namespace string) {
	before := must(caBundle(t, m))(t)
	secrets := m.client.CoreV1().Secrets(manager.Namespace)
	const name = "ctrlmesh-webhook-certs"
	_, err := secrets.Patch(t.Context(), name, "application/merge-patch+json", []byte(`{"data": {"tls.key": "bm9uZQ=="}}`), meta.PatchOptions{})
	check(t, err)
	eventually(t, "the key is replaced, and every webhook trusts the new and the old one", func() error {
		secret := must(secrets.Get(t.Context(), name, meta.GetOptions{}))(t)
		got, err := caBundle(t, m)
		if err != nil {
			return err
		}
		if string(secret.Data["tls.key"]) == "none" || !bytes.Contains(got, before) || !bytes.HasPrefix(got, secret.Data["ca-cert.pem"]) || len(got) == len(before) {
			return fmt.Errorf("the bundle has %d bytes, of %d before", len(got), len(before))
		}
		return nil
	})
	waitRefusal(t, m, namespace)
}

func testBundleIsRepaired(t *testing.T, m *mesh, namespace string) {
	before := must(caBundle(t, m))(t)
	configurations := m.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	configuration := must(configurations.Get(t.Context(), "ctrlmesh-validating", meta.GetOptions{}))(t)
	configuration.Webhooks[2].ClientConfig.CABundle = nil
	_, err := configurations.Update(t.Context(), configuration, meta.UpdateOptions{})
	check(t, err)
	eventually(t, "the bundle is restored", func() error {
		got, err := caBundle(t, m)
		if err == nil && !bytes.Equal(got, before) {
			err = errors.New("the bundle is different")
		}
		return err
	})
	waitRefusal(t, m, namespace)
}
