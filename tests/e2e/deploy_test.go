package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/process"
	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// This file applies deploy/, its overlays, its chart and its samples to a real API server.

func TestDeployIsAcceptedByAPIServer(t *testing.T) {
	t.Parallel()
	texts := renderAll(t)
	for name, text := range texts {
		t.Run("names_and_ports_match_in_"+name, func(t *testing.T) { assertReferences(t, parseManifests(t, text)) })
	}
	d := deploy(t)
	t.Run("ca_bundles_are_kept_when_applied_again", d.testBundlesAreKept)
	d.installForeignCRDs(t)
	for name, text := range texts {
		t.Run("api_server_accepts_"+name, func(t *testing.T) {
			d.kubectl(t, text, "apply", "--dry-run=server", "--filename=-")
			d.assertRestrictedPod(t, parseManifests(t, text))
		})
	}
	d.startManagerWithDeployedSettings(t, texts)
	for _, file := range filesIn(t, deployDir+"/samples") {
		t.Run("sample_is_accepted_"+filepath.Base(file), func(t *testing.T) { d.testSample(t, file) })
	}
}

// renderAll renders every overlay and the chart with all features on, for namespace ctrlmesh.
func renderAll(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, path := range kustomizations(t) {
		found[filepath.Base(path)] = kustomize(t, path)
	}
	found["chart"] = helmTemplate(t, manager.Namespace, "--set-json="+allSwitches)
	found["changed chart"] = helmTemplate(t, manager.Namespace, changeAllArguments()...)
	return found
}

// deployedMesh is a cluster to which deploy/ was applied.
type deployedMesh struct {
	*mesh
	adminKubeconfig string
}

// deploy runs the first command of docs/install.md.
func deploy(t *testing.T) *deployedMesh {
	t.Helper()
	plane := startOwnControlPlane(t)
	d := &deployedMesh{mesh: &mesh{controlPlane: plane}}
	d.dynamic = must(dynamic.NewForConfig(plane.cluster.AdminConfig()))(t)
	d.adminKubeconfig = must(plane.cluster.UserKubeconfig("installer", "system:masters"))(t)
	d.kubectl(t, "", "apply", "-k", deployDir)
	d.kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "--selector=app.kubernetes.io/part-of=ctrlmesh")
	return d
}

// kubectl runs a command that must succeed without a warning.
func (d *deployedMesh) kubectl(t *testing.T, input string, arguments ...string) string {
	t.Helper()
	out, errs, err := tryProgram(t, "kubectl", input, append([]string{"--kubeconfig=" + d.adminKubeconfig}, arguments...)...)
	if err != nil || strings.Contains(errs, "Warning:") {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(arguments, " "), err, out, errs)
	}
	return out
}

// testBundlesAreKept applies deploy/ again after the webhooks got a CA.
func (d *deployedMesh) testBundlesAreKept(t *testing.T) {
	for _, kind := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		d.patchWebhooks(t, kind, func(string) []map[string]any {
			return []map[string]any{{"op": "add", "path": "/caBundle", "value": d.cluster.CA.PEM}}
		})
	}
	d.kubectl(t, "", "apply", "-k", deployDir)
	if got, err := caBundle(t, d.mesh); !bytes.Equal(got, d.cluster.CA.PEM) {
		t.Errorf("the webhooks have the CA %q (%v)", got, err)
	}
}

// installForeignCRDs installs the CRDs of cert-manager and of the Prometheus operator.
func (d *deployedMesh) installForeignCRDs(t *testing.T) {
	t.Helper()
	installCertManager(t, d.cluster)
	for _, definition := range readObjects(t, "testdata/monitoring-crds.yaml") {
		testDefinition(t, d.dynamic, definition)
	}
}

// assertRestrictedPod creates the manager's pod in its namespace, whose Pod Security level is `restricted`.
func (d *deployedMesh) assertRestrictedPod(t *testing.T, objects manifests) {
	t.Helper()
	pod := func() map[string]any {
		of := oneOfKind[apps.Deployment](t, objects, "Deployment").Spec.Template
		made := core.Pod{ObjectMeta: meta.ObjectMeta{Name: "manager", Labels: of.Labels}, Spec: of.Spec}
		fields := map[string]any{}
		check(t, json.Unmarshal(must(json.Marshal(made))(t), &fields))
		return fields
	}
	_, err := dryRunPod(t, d.dynamic, manager.Namespace, pod())
	check(t, err)
	looser := pod()
	delete(looser["spec"].(map[string]any), "securityContext")
	if _, err := dryRunPod(t, d.dynamic, manager.Namespace, looser); err == nil || !strings.Contains(err.Error(), `PodSecurity "restricted`) {
		t.Errorf("a pod that may run as root: %v", err)
	}
}

// startManagerWithDeployedSettings runs one manager with the settings of all Deployments combined, and points the
// webhooks to it: there are no Services.
func (d *deployedMesh) startManagerWithDeployedSettings(t *testing.T, texts map[string]string) {
	t.Helper()
	ctx := t.Context()
	d.managerKubeconfig = must(d.cluster.TokenKubeconfig(ctx, manager.Namespace, manager.ServiceAccount))(t)
	address := must(process.FreeAddress())(t)
	_, port, err := net.SplitHostPort(address)
	check(t, err)
	variables := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		for _, variable := range oneOfKind[apps.Deployment](t, parseManifests(t, texts[name]), "Deployment").Spec.Template.Spec.Containers[0].Env {
			// Certificates of other issuers do not exist here.
			isOfCertificates := variable.Name == "WEBHOOK_CERT_DIR" || strings.HasPrefix(variable.Name, "CTRLMESH_WEBHOOK_CLIENT_")
			if variable.ValueFrom == nil && !isOfCertificates {
				variables[variable.Name] = variable.Value
			}
		}
	}
	options := manager.Options{
		Name: "manager-0", Dir: newDir(t), Kubeconfig: d.managerKubeconfig,
		Flags: []string{"--webhook-bind-address=127.0.0.1", "--webhook-port=" + port},
	}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		options.Env = append(options.Env, name+"="+variables[name])
	}
	started := must(manager.Start(ctx, options))(t)
	t.Cleanup(func() { check(t, started.Stop()) })
	t.Cleanup(func() { assertPermissionsSuffice(t, d.mesh) })
	for _, kind := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		d.patchWebhooks(t, kind, func(path string) []map[string]any {
			return []map[string]any{{"op": "remove", "path": "/service"}, {"op": "add", "path": "/url", "value": "https://" + address + path}}
		})
	}
	eventually(t, "every webhook has the manager's CA", func() error {
		if got, err := caBundle(t, d.mesh); err != nil || bytes.Equal(got, d.cluster.CA.PEM) {
			return fmt.Errorf("the webhooks have the bundle %q (%w)", got, err)
		}
		return nil
	})
	waitRefusal(t, d.mesh, d.newNamespace(t))
}

// patchWebhooks changes the client configuration of each webhook, depending on the path of its Service.
func (d *deployedMesh) patchWebhooks(t *testing.T, resource string, change func(path string) []map[string]any) {
	t.Helper()
	configurations := d.dynamic.Resource(admission.SchemeGroupVersion.WithResource(resource))
	for _, object := range must(configurations.List(t.Context(), meta.ListOptions{}))(t).Items {
		patch := []map[string]any{}
		webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		check(t, err)
		for i, webhook := range webhooks {
			path, _, err := unstructured.NestedString(webhook.(map[string]any), "clientConfig", "service", "path")
			check(t, err)
			for _, operation := range change(path) {
				operation["path"] = fmt.Sprintf("/webhooks/%d/clientConfig%s", i, operation["path"])
				patch = append(patch, operation)
			}
		}
		_, err = configurations.Patch(t.Context(), object.GetName(), types.JSONPatchType, must(json.Marshal(patch))(t), meta.PatchOptions{})
		check(t, err)
	}
}

// testSample applies a sample and waits until a manager has accepted its objects.
func (d *deployedMesh) testSample(t *testing.T, file string) {
	namespace := d.newNamespace(t)
	d.kubectl(t, "", "apply", "--server-side", "--dry-run=server", "--namespace="+namespace, "--filename="+file)
	objects := parseManifests(t, string(must(os.ReadFile(file))(t)))
	if objects[0].GetKind() == "ManagerState" {
		return // the manager's own object
	}
	d.kubectl(t, "", "apply", "--namespace="+namespace, "--filename="+file)
	for _, object := range objects {
		eventually(t, objectID(object)+" is accepted", func() error {
			got := must(d.resource(object.GetKind(), namespace).Get(t.Context(), object.GetName(), meta.GetOptions{}))(t)
			conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
			states := map[any]any{}
			for _, condition := range conditions {
				states[condition.(map[string]any)["type"]] = condition.(map[string]any)["status"]
			}
			if states["Accepted"] != "True" || states["Overlapping"] == "True" {
				return fmt.Errorf("the conditions are %v", conditions)
			}
			return nil
		})
	}
}
