package e2e

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// This file checks that the names, labels and ports of objects that are applied together refer to each other.

// assertReferences fails the test for each name, label or port that nothing matches.
func assertReferences(t *testing.T, objects manifests) {
	manager := oneOfKind[apps.Deployment](t, objects, "Deployment")
	pods := labels.Set(manager.Spec.Template.Labels)
	ports := assertDeployment(t, objects, manager)
	isManager := func(what string, selector *meta.LabelSelector) {
		if parsed := must(meta.LabelSelectorAsSelector(selector))(t); parsed.Empty() || !parsed.Matches(pods) {
			t.Errorf("%s selects %s, which is not %s", what, parsed, pods)
		}
	}
	isManager("the Deployment", manager.Spec.Selector)
	for _, budget := range allOfKind[policy.PodDisruptionBudget](t, objects, "PodDisruptionBudget") {
		isManager("the PodDisruptionBudget", budget.Spec.Selector)
	}
	if hasBudget := len(allOfKind[policy.PodDisruptionBudget](t, objects, "PodDisruptionBudget")) == 1; hasBudget != (*manager.Spec.Replicas > 1) {
		t.Errorf("%d managers, with a budget: %v", *manager.Spec.Replicas, hasBudget)
	}
	for _, service := range allOfKind[core.Service](t, objects, "Service") {
		isManager(service.Name, &meta.LabelSelector{MatchLabels: service.Spec.Selector})
		for _, port := range service.Spec.Ports {
			if target := port.TargetPort; ports[target.StrVal] == 0 && !slices.Contains(slices.Collect(maps.Values(ports)), target.IntVal) {
				t.Errorf("%s targets port %s, which is not among %v", service.Name, target.String(), ports)
			}
		}
	}
	network := oneOfKind[networking.NetworkPolicy](t, objects, "NetworkPolicy")
	isManager("the NetworkPolicy", &network.Spec.PodSelector)
	assertNetworkPolicy(t, network, ports)
	assertWebhooks(t, objects, manager.Namespace)
	assertNamespaces(t, objects, manager)
	assertMonitors(t, objects)
	assertCertificates(t, objects, manager)
	assertWebhookClients(t, manager)
}

// assertDeployment returns the ports of the manager by name.
func assertDeployment(t *testing.T, objects manifests, deployment apps.Deployment) map[string]int32 {
	known := managerSettings(t)
	pod := deployment.Spec.Template.Spec
	container := pod.Containers[0]
	if !objects.has("ServiceAccount", deployment.Namespace, pod.ServiceAccountName) {
		t.Errorf("there is no ServiceAccount %s", pod.ServiceAccountName)
	}
	set := map[string]bool{}
	for _, variable := range container.Env {
		if _, ok := known[variable.Name]; !ok {
			t.Errorf("the manager has no setting %s", variable.Name)
		}
		set[variable.Name] = true
	}
	for _, needed := range []string{"POD_NAME", "POD_NAMESPACE", "CTRLMESH_PROXY_IMAGE"} {
		if !set[needed] {
			t.Errorf("%s is not set", needed)
		}
	}
	ports := map[string]int32{}
	for _, port := range container.Ports {
		ports[port.Name] = port.ContainerPort
	}
	number := func(setting string) int32 {
		value := known[setting]
		return int32(must(strconv.Atoi(value[strings.LastIndex(value, ":")+1:]))(t))
	}
	listens := map[string]int32{
		"webhooks": number("WEBHOOK_PORT"), "metrics": number("CTRLMESH_METRICS_ADDRESS"), "health": number("CTRLMESH_HEALTH_ADDRESS"),
	}
	if !maps.Equal(ports, listens) {
		t.Errorf("the container's ports are %v, the manager listens on %v", ports, listens)
	}
	for path, probe := range map[string]*core.Probe{"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		if probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != "health" {
			t.Errorf("the probe of %s is %v", path, probe.HTTPGet)
		}
	}
	return ports
}

// assertNetworkPolicy asserts that every port of the manager is open, and those that the manager calls.
func assertNetworkPolicy(t *testing.T, network networking.NetworkPolicy, ports map[string]int32) {
	open := map[string]bool{}
	for _, rule := range network.Spec.Ingress {
		for _, port := range rule.Ports {
			open[port.Port.StrVal] = true
			// API servers and kubelets are not pods.
			if isForPods := len(rule.From) > 0; isForPods != (port.Port.StrVal == "metrics") {
				t.Errorf("port %s is open for %v", port.Port.StrVal, rule.From)
			}
		}
	}
	if want := slices.Sorted(maps.Keys(ports)); !slices.Equal(slices.Sorted(maps.Keys(open)), want) {
		t.Errorf("the open ports are %v, want %v", open, want)
	}
	called := map[string]bool{}
	for _, rule := range network.Spec.Egress {
		for _, port := range rule.Ports {
			called[port.Port.String()+"/"+string(*port.Protocol)] = true
		}
	}
	// Policies apply to connections to Services after address translation, so the API server's own port counts: 6443 is
	// kubeadm's, 8443 minikube's, 16443 MicroK8s', 443 that of clouds and registries.
	needed := []string{"443/TCP", "6443/TCP", "8443/TCP", "16443/TCP", "53/UDP", "53/TCP", managerSettings(t)["CTRLMESH_SIDECAR_PORT"] + "/TCP"}
	for _, port := range needed {
		if !called[port] {
			t.Errorf("the manager may not call %s", port)
		}
	}
}

// assertWebhooks asserts that each webhook calls an existing Service, and that none can block the manager's own
// namespace, except for pods that ask for a sidecar.
func assertWebhooks(t *testing.T, objects manifests, namespace string) {
	clients := []admission.WebhookClientConfig{}
	for _, webhook := range oneOfKind[admission.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration").Webhooks {
		clients = append(clients, webhook.ClientConfig)
	}
	for _, webhook := range oneOfKind[admission.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration").Webhooks {
		clients = append(clients, webhook.ClientConfig)
		if *webhook.FailurePolicy == admission.Fail {
			if !reflect.DeepEqual(webhook.ObjectSelector.MatchLabels, map[string]string{enableProxy: "true"}) {
				t.Errorf("%s is called for %v and fails closed", webhook.Name, webhook.ObjectSelector)
			}
		} else if own := webhook.NamespaceSelector.MatchExpressions[0]; own.Operator != meta.LabelSelectorOpNotIn || !slices.Contains(own.Values, namespace) {
			t.Errorf("%s is called for objects in %s: %v", webhook.Name, namespace, own)
		}
	}
	for _, client := range clients {
		service := client.Service
		found := slices.IndexFunc(objects, func(object *unstructured.Unstructured) bool {
			return object.GetKind() == "Service" && object.GetNamespace() == service.Namespace && object.GetName() == service.Name
		})
		if found < 0 {
			t.Errorf("there is no Service %s/%s", service.Namespace, service.Name)
			continue
		}
		ports := allOfKind[core.Service](t, objects[found:found+1], "Service")[0].Spec.Ports
		if service.Port != nil || len(ports) != 1 || ports[0].Port != 443 {
			t.Errorf("%s has ports %v", service.Name, ports)
		}
	}
}

// assertNamespaces asserts that namespaced objects are in the manager's namespace, and that all objects have the
// part-of label.
func assertNamespaces(t *testing.T, objects manifests, manager apps.Deployment) {
	for _, object := range objects {
		if object.GetNamespace() != "" && object.GetNamespace() != manager.Namespace {
			t.Errorf("%s is not in %s", objectID(object), manager.Namespace)
		}
		if object.GetLabels()["app.kubernetes.io/part-of"] != "ctrlmesh" {
			t.Errorf("%s has no part-of label", objectID(object))
		}
	}
	account := rbac.Subject{Kind: rbac.ServiceAccountKind, Namespace: manager.Namespace, Name: manager.Spec.Template.Spec.ServiceAccountName}
	bound := map[string][]rbac.Subject{}
	for _, binding := range allOfKind[rbac.RoleBinding](t, objects, "RoleBinding") {
		bound["Role "+binding.RoleRef.Name] = binding.Subjects
	}
	for _, binding := range allOfKind[rbac.ClusterRoleBinding](t, objects, "ClusterRoleBinding") {
		bound["ClusterRole "+binding.RoleRef.Name] = binding.Subjects
	}
	for _, object := range objects {
		if kind := object.GetKind(); kind == "Role" || kind == "ClusterRole" {
			name := kind + " " + object.GetName()
			if !slices.Equal(bound[name], []rbac.Subject{account}) {
				t.Errorf("%s is bound to %v, want %v", name, bound[name], account)
			}
			delete(bound, name)
		}
	}
	if len(bound) > 0 {
		t.Errorf("there are no roles for %v", bound)
	}
	hasMeshCA := objects.has("ClusterRole", "", "ctrlmesh-manager-mesh-ca")
	if isOff := slices.Contains(manager.Spec.Template.Spec.Containers[0].Env, core.EnvVar{Name: "CTRLMESH_MESH_CA", Value: "false"}); isOff == hasMeshCA {
		t.Errorf("the mesh CA is off: %v, and its roles exist: %v", isOff, hasMeshCA)
	}
}

// monitor has the fields of a ServiceMonitor or PodMonitor that the test reads.
type monitor struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		Selector            meta.LabelSelector `json:"selector"`
		NamespaceSelector   map[string]bool    `json:"namespaceSelector"`
		Endpoints           []scrapeEndpoint   `json:"endpoints"`
		PodMetricsEndpoints []scrapeEndpoint   `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

type scrapeEndpoint struct {
	Port     string `json:"port"`
	Interval string `json:"interval"`
}

func assertMonitors(t *testing.T, objects manifests) {
	for _, monitor := range allOfKind[monitor](t, objects, "ServiceMonitor") {
		selected := slices.DeleteFunc(allOfKind[core.Service](t, objects, "Service"), func(service core.Service) bool {
			return !labels.SelectorFromSet(monitor.Spec.Selector.MatchLabels).Matches(labels.Set(service.Labels))
		})
		if len(selected) != 1 || selected[0].Spec.Ports[0].Name != monitor.Spec.Endpoints[0].Port {
			t.Errorf("the ServiceMonitor selects %v", selected)
		}
	}
	for _, monitor := range allOfKind[monitor](t, objects, "PodMonitor") {
		injected := string(must(os.ReadFile(injectionTestdata + "/01-deployment.after.yaml"))(t))
		pod := allOfKind[core.Pod](t, parseManifests(t, injected), "Pod")[0]
		if !labels.SelectorFromSet(monitor.Spec.Selector.MatchLabels).Matches(labels.Set(pod.Labels)) {
			t.Errorf("the PodMonitor selects %v, pods have %v", monitor.Spec.Selector.MatchLabels, pod.Labels)
		}
		if port := pod.Spec.InitContainers[0].Ports[0].Name; port != monitor.Spec.PodMetricsEndpoints[0].Port {
			t.Errorf("the PodMonitor scrapes port %s", port)
		}
	}
}

// certificate has the fields of cert-manager's Certificate that the test reads.
type certificate struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		CommonName  string            `json:"commonName"`
		SecretName  string            `json:"secretName"`
		Duration    string            `json:"duration"`
		RenewBefore string            `json:"renewBefore"`
		IsCA        bool              `json:"isCA"`
		DNSNames    []string          `json:"dnsNames"`
		PrivateKey  map[string]any    `json:"privateKey"`
		IssuerRef   map[string]string `json:"issuerRef"`
	} `json:"spec"`
}

// webhookClientCA is the variable for the file with the authorities of API servers' client certificates.
const webhookClientCA = "CTRLMESH_WEBHOOK_CLIENT_CA_FILE"

// managerVariable returns a variable of the manager; it is empty if the variable is not set.
func managerVariable(manager apps.Deployment, name string) string {
	for _, variable := range manager.Spec.Template.Spec.Containers[0].Env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// assertWebhookClients asserts that the file with the authorities is ca.crt of a ConfigMap, as in docs/install.md.
func assertWebhookClients(t *testing.T, manager apps.Deployment) {
	file := managerVariable(manager, webhookClientCA)
	pod := manager.Spec.Template.Spec
	for _, mount := range pod.Containers[0].VolumeMounts {
		isMounted := func(volume core.Volume) bool { return volume.Name == mount.Name && volume.ConfigMap != nil }
		if slices.ContainsFunc(pod.Volumes, isMounted) && file == mount.MountPath+"/ca.crt" {
			return
		}
	}
	if file != "" {
		t.Errorf("no ConfigMap is mounted at %s", file)
	}
}

// assertCertificates asserts that cert-manager renews the webhooks' certificate if it issues one at all.
func assertCertificates(t *testing.T, objects manifests, manager apps.Deployment) {
	mounted := managerVariable(manager, "WEBHOOK_CERT_DIR")
	found := allOfKind[certificate](t, objects, "Certificate")
	if len(found) == 0 {
		isSecret := func(volume core.Volume) bool { return volume.Secret != nil }
		if mounted != "" || slices.ContainsFunc(manager.Spec.Template.Spec.Volumes, isSecret) {
			t.Errorf("no Certificate renews the Secret mounted in %s", mounted)
		}
		return
	}
	served := found[slices.IndexFunc(found, func(c certificate) bool { return !c.Spec.IsCA })]
	if want := "ctrlmesh-manager-webhook." + manager.Namespace + ".svc"; !slices.Equal(served.Spec.DNSNames, []string{want}) {
		t.Errorf("the certificate's names are %v, want %s", served.Spec.DNSNames, want)
	}
	volume := manager.Spec.Template.Spec.Volumes[0] // volumes from the chart's values come later
	mount := manager.Spec.Template.Spec.Containers[0].VolumeMounts[0]
	if volume.Secret.SecretName != served.Spec.SecretName || mount.Name != volume.Name || mount.MountPath != mounted {
		t.Errorf("the manager reads %s of %s, mounted in %s", mounted, volume.Secret.SecretName, mount.MountPath)
	}
	for _, object := range objects {
		from := object.GetAnnotations()["cert-manager.io/inject-ca-from"]
		if strings.HasSuffix(object.GetKind(), "WebhookConfiguration") && from != served.Namespace+"/"+served.Name {
			t.Errorf("%s gets its CA from %q", objectID(object), from)
		}
	}
	for _, certificate := range found {
		issuer := certificate.Spec.IssuerRef
		if name := issuer["name"]; issuer["kind"] != "ClusterIssuer" && !objects.has("Issuer", manager.Namespace, name) {
			t.Errorf("there is no issuer %s", name)
		}
	}
}
