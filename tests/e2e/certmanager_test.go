package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/process"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// This file reproduces a published bug of an unmodified operator with a FaultInjection from a file: cert-manager v1.9.2
// creates two CertificateRequests for one revision of a certificate if it learns of the first one late. Then it issues
// nothing until a person deletes one (github.com/cert-manager/cert-manager, issues 4956 and 6837).

// stuckMessage is cert-manager's message in that state.
const stuckMessage = "Multiple matching CertificateRequest resources exist, delete one of them"

var (
	certificates        = certManagerResource("certificates")
	certificateRequests = certManagerResource("certificaterequests")
	issuers             = certManagerResource("issuers")
)

func certManagerResource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: plural}
}

func TestCertManagerBugIsReproduced(t *testing.T) {
	t.Parallel()
	installCertManager(t, shared.cluster)
	t.Run("certificate_is_issued_without_fault", func(t *testing.T) {
		t.Parallel()
		m := startCertManager(t, nil)
		m.requestCertificate(t)
		m.waitIssued(t)
		if requests := m.certificateRequests(t); len(requests) != 1 || strings.Contains(m.readLog(t), stuckMessage) {
			t.Errorf("cert-manager created the requests %v:\n%s", requests, m.process.LogTail(4096))
		}
	})
	t.Run("certificate_is_stuck_with_delayed_watch", func(t *testing.T) {
		t.Parallel()
		rule := jsonFields{}
		check(t, yaml.Unmarshal(must(os.ReadFile(filepath.Join("testdata", "late-certificaterequests.yaml")))(t), &rule))
		m := startCertManager(t, rule)
		eventually(t, "the watch is delayed", func() error {
			if seen := readReport[faultReport](t, m.sidecar, faultInject, "late-requests"); seen.Fired == 0 {
				return fmt.Errorf("the fault reports %+v", seen)
			}
			return nil
		})
		m.requestCertificate(t)
		m.waitStuck(t)
		// Deleting one request by hand resolves it.
		request := m.certificateRequests(t)[0].GetName()
		check(t, m.client.Resource(certificateRequests).Namespace(m.namespace).Delete(t.Context(), request, meta.DeleteOptions{}))
		m.waitIssued(t)
	})
}

// certManager is a controller that works on one namespace, behind its own sidecar.
type certManager struct {
	sidecar   *sidecar.Sidecar
	process   *process.Process
	namespace string
	client    dynamic.Interface
}

// startCertManager runs the controller behind fault-inject; without settings, behind an empty chain.
func startCertManager(t *testing.T, settings jsonFields) *certManager {
	t.Helper()
	chain := pluginChain(t, 1, map[string]jsonFields{faultInject: settings})
	m := &certManager{
		sidecar:   startSidecar(t, sidecar.Options{Chain: &chain}),
		namespace: newNamespace(t),
		client:    must(dynamic.NewForConfig(shared.cluster.AdminConfig()))(t),
	}
	m.createObject(t, issuers, "Issuer", map[string]any{"selfSigned": map[string]any{}})
	var err error
	m.process, err = process.Start(process.Spec{
		Name: "cert-manager", Path: must(binaries.Path("cert-manager"))(t), LogDir: newDir(t),
		Args: []string{
			"--kubeconfig=" + sidecarKubeconfig(t, m.sidecar), "--namespace=" + m.namespace, "--leader-elect=false",
			"--metrics-listen-address=127.0.0.1:0",
		},
	})
	check(t, err)
	t.Cleanup(func() {
		m.process.Kill()
		if t.Failed() {
			t.Logf("end of %s:\n%s", m.process.LogPath, m.process.LogTail(4096))
		}
	})
	return m
}

// createObject creates the test's object of a kind.
func (m *certManager) createObject(t *testing.T, resource schema.GroupVersionResource, kind string, spec map[string]any) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(resource.GroupVersion().WithKind(kind))
	object.SetName("demo")
	_, err := m.client.Resource(resource).Namespace(m.namespace).Create(t.Context(), object, meta.CreateOptions{})
	check(t, err)
}

// requestCertificate creates a Certificate.
func (m *certManager) requestCertificate(t *testing.T) {
	t.Helper()
	m.createObject(t, certificates, "Certificate", map[string]any{
		"secretName": "demo-tls", "commonName": "demo", "issuerRef": map[string]any{"name": "demo"},
	})
}

func (m *certManager) certificateRequests(t *testing.T) []unstructured.Unstructured {
	t.Helper()
	return must(m.client.Resource(certificateRequests).Namespace(m.namespace).List(t.Context(), meta.ListOptions{}))(t).Items
}

// waitIssued waits until the certificate is issued.
func (m *certManager) waitIssued(t *testing.T) {
	t.Helper()
	eventually(t, "the certificate is issued", func() error {
		if !m.process.Alive() {
			t.Fatalf("cert-manager ended: %v", m.process.Err())
		}
		certificate, err := m.client.Resource(certificates).Namespace(m.namespace).Get(t.Context(), "demo", meta.GetOptions{})
		if err != nil {
			return err
		}
		if state := conditionStatus(certificate, "Ready"); state != "True" {
			return fmt.Errorf("the condition Ready is %q", state)
		}
		secret, err := shared.client.CoreV1().Secrets(m.namespace).Get(t.Context(), "demo-tls", meta.GetOptions{})
		if err == nil && len(secret.Data[core.TLSCertKey]) == 0 {
			err = fmt.Errorf("the Secret has %d keys", len(secret.Data))
		}
		return err
	})
}

// waitStuck waits until cert-manager reports stuckMessage, and asserts two signed requests for one revision and no
// certificate.
func (m *certManager) waitStuck(t *testing.T) {
	t.Helper()
	eventually(t, "cert-manager reports that it is stuck", func() error {
		if !strings.Contains(m.readLog(t), stuckMessage) {
			return fmt.Errorf("there are %v requests", len(m.certificateRequests(t)))
		}
		for _, request := range m.certificateRequests(t) {
			if state := conditionStatus(&request, "Ready"); state != "True" {
				return fmt.Errorf("the condition Ready of %s is %q", request.GetName(), state)
			}
		}
		return nil
	})
	requests := m.certificateRequests(t)
	for _, request := range requests {
		if revision := request.GetAnnotations()["cert-manager.io/certificate-revision"]; revision != "1" {
			t.Errorf("%s is for revision %s", request.GetName(), revision)
		}
	}
	certificate := must(m.client.Resource(certificates).Namespace(m.namespace).Get(t.Context(), "demo", meta.GetOptions{}))(t)
	if len(requests) != 2 || conditionStatus(certificate, "Ready") != "False" || conditionStatus(certificate, "Issuing") != "True" {
		t.Fatalf("%d requests; the certificate is %v", len(requests), certificate.Object["status"])
	}
}

func (m *certManager) readLog(t *testing.T) string {
	t.Helper()
	return string(must(os.ReadFile(m.process.LogPath))(t))
}

// conditionStatus returns the status of a condition; it is empty if there is no such condition.
func conditionStatus(object *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return fmt.Sprint(c["status"])
		}
	}
	return ""
}

// installCertManager installs cert-manager's CRDs unless an earlier test did, and waits until they are served.
func installCertManager(t *testing.T, in *cluster.Cluster) {
	t.Helper()
	client := must(extensionsclient.NewForConfig(in.AdminConfig()))(t).ApiextensionsV1().CustomResourceDefinitions()
	files := must(filepath.Glob(filepath.Join(must(binaries.CertManagerCRDs())(t), "*.yaml")))(t)
	for _, file := range files {
		var definition extensions.CustomResourceDefinition
		check(t, yaml.Unmarshal(must(os.ReadFile(file))(t), &definition))
		// The files are templates of a Helm chart.
		definition.Labels = nil
		if _, err := client.Create(t.Context(), &definition, meta.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			check(t, err)
		}
		eventually(t, definition.Name+" is served", func() error {
			state, err := client.Get(t.Context(), definition.Name, meta.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range state.Status.Conditions {
				if c.Type == extensions.Established && c.Status == extensions.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("the conditions are %v", state.Status.Conditions)
		})
	}
}
