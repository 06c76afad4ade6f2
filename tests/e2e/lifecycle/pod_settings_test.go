package lifecycle

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/metrics"
	"ctrlmesh.kusionstack.io/e2e/realnode"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// This file runs pods with labels and annotations for their sidecars, under the manager's settings (docs/injection.md),
// and checks the running processes.

const (
	// Settings of the managers, for all sidecars.
	extraEnvs   = "EVERYWHERE=a=b;TZ=UTC"
	proxyLog    = "info,access=debug"
	proxyMemory = "300Mi"
	// ownKubeconfigPath is a kubeconfig that names the API server, in the pods that have one.
	ownKubeconfigPath = "/own/config"
	// foreignNamespace has objects of the operator that are not in its shard.
	foreignNamespace = "team-q"
)

// testPodSettings runs its subtests with pods in one namespace, all in one shard.
func (l *lifecycle) testPodSettings(t *testing.T) {
	op := l.newOperator("settings", []string{"team-p"})
	op.apply(t, op.permissions())
	op.makeItems(t)
	l.apply(t, fmt.Sprintf("%s\n---\n%s", foreignItemManifest(op), op.createKubeconfig(t, "own", "ConfigMap", podTokenUser)))
	op.apply(t, op.shardingConfigsByApp())
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Distributed", "--all", "shardingconfigs", "--timeout="+waitTimeout.String())
	t.Run("flag_or_variable_bypasses_sidecar", op.testBypass)
	t.Run("sidecar_uses_kubeconfig_volume", op.testKubeconfigVolume)
	t.Run("settings_take_effect_in_processes", op.testSettings)
	t.Run("image_is_pulled_with_secret", op.testPullSecret)
	l.kubectl(t, "", "delete", "--namespace="+op.name, "pods,shardingconfigs,faultinjections,circuitbreakers", "--all", "--timeout="+waitTimeout.String())
}

func foreignItemManifest(op *operator) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: item, namespace: %[1]s, labels: {app: %[2]s}}
`, foreignNamespace, op.name)
}

// podTokenUser is the user of the pod's own service account.
const podTokenUser = "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"

// createKubeconfig creates a kubeconfig that does not lead to the sidecar, in a ConfigMap or a Secret.
func (op *operator) createKubeconfig(t *testing.T, name, kind, user string) string {
	t.Helper()
	authority := base64.StdEncoding.EncodeToString(op.node.Config().CAData)
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: own,
  clusters: [{name: own, cluster: {server: "https://kubernetes.default.svc", certificate-authority-data: %s}}],
  users: [{name: own, user: {%s}}], contexts: [{name: own, context: {cluster: own, user: own}}]}`, authority, user)
	field := map[string]string{"ConfigMap": "data", "Secret": "stringData"}[kind]
	return asYAML(map[string]any{
		"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": op.name},
		field: map[string]any{"config": config},
	})
}

// createPod creates a pod from the YAML of its spec, with the operator's labels and additional ones.
func (op *operator) createPod(t *testing.T, name string, labels, annotations map[string]string, spec string) {
	t.Helper()
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
		"name": name, "namespace": op.name, "annotations": annotations,
		"labels": mergeLabels(map[string]string{"app": op.name, enableLabel: "true"}, labels),
	}}
	var parsed map[string]any
	check(t, yaml.Unmarshal([]byte(spec), &parsed))
	pod["spec"] = parsed
	op.apply(t, asYAML(pod))
}

func mergeLabels(a, b map[string]string) map[string]string {
	all := map[string]string{}
	for _, some := range []map[string]string{a, b} {
		for key, value := range some {
			all[key] = value
		}
	}
	return all
}

// testBypass: a container whose flag or variable names another kubeconfig bypasses the sidecar, and without it does
// not.
func (op *operator) testBypass(t *testing.T) {
	for pod, test := range map[string]struct {
		label          string
		flag, variable []string
	}{
		"led":           {"", op.teams[0], op.teams[0]},
		"flag-left":     {"disable-fake-kubeconfig-arg", slices.Concat(op.teams[0], []string{foreignNamespace}), op.teams[0]},
		"variable-left": {"disable-fake-kubeconfig-env", op.teams[0], slices.Concat(op.teams[0], []string{foreignNamespace})},
	} {
		labels := map[string]string{}
		if test.label != "" {
			labels[groupPrefix+test.label] = "true"
		}
		op.createPod(t, pod, labels, nil, fmt.Sprintf(`
serviceAccountName: operator
restartPolicy: Never
containers:
- {name: flag, image: %[1]s, args: [--once, --app=%[2]s, --kubeconfig=%[3]s], volumeMounts: [{name: own, mountPath: /own}]}
- {name: variable, image: %[1]s, args: [--once, --app=%[2]s], env: [{name: KUBECONFIG, value: %[3]s}], volumeMounts: [{name: own, mountPath: /own}]}
volumes: [{name: own, configMap: {name: own}}]
`, operatorImage, op.name, ownKubeconfigPath))
		op.waitTerminated(t, pod)
		assertNamespaces(t, "the flag of "+pod+" leads to", op.listedNamespaces(t, pod, "flag"), test.flag)
		assertNamespaces(t, "the variable of "+pod+" leads to", op.listedNamespaces(t, pod, "variable"), test.variable)
	}
}

// testKubeconfigVolume: the sidecar uses the server and user of the pod's kubeconfig. The pod's own account has no
// permissions.
func (op *operator) testKubeconfigVolume(t *testing.T) {
	token := strings.TrimSpace(op.kubectl(t, "", "create", "token", "operator", "--namespace="+op.name))
	op.apply(t, op.createKubeconfig(t, "upstream", "Secret", "token: "+token))
	for name, label := range map[string]string{"elsewhere": "upstream", "here": ""} {
		labels := map[string]string{}
		if label != "" {
			labels[groupPrefix+"kubeconfig-volume"] = label
		}
		op.createPod(t, name, labels, nil, fmt.Sprintf(`
restartPolicy: Never
containers: [{name: main, image: %s, args: [--once, --app=%s]}]
volumes: [{name: upstream, secret: {secretName: upstream}}]
`, operatorImage, op.name))
	}
	op.waitTerminated(t, "elsewhere")
	assertNamespaces(t, "elsewhere sees", op.listedNamespaces(t, "elsewhere", "main"), op.teams[0])
	eventually(t, "the pod's account has no permissions", func() error {
		if journal := op.containerJournal(t, "here", "main"); !hasRecord(journal, "failed", "403") {
			return fmt.Errorf("the journal is %v", journal)
		}
		return nil
	})
}

// waitTerminated waits until all containers of a pod have succeeded.
func (op *operator) waitTerminated(t *testing.T, pod string) {
	t.Helper()
	eventually(t, pod+" has ended", func() error {
		if found := op.getPod(t, pod); found.Status.Phase != core.PodSucceeded {
			return fmt.Errorf("the pod is %s: %+v", found.Status.Phase, found.Status.ContainerStatuses)
		}
		return nil
	})
}

// listedNamespaces returns the namespaces whose objects a container saw.
func (op *operator) listedNamespaces(t *testing.T, pod, container string) []string {
	t.Helper()
	seen := []string{}
	for _, record := range op.containerJournal(t, pod, container) {
		if namespace, _, _ := strings.Cut(record.Object, "/"); record.Event == "seen" {
			seen = append(seen, namespace)
		}
	}
	return seen
}

// testSettings: environment, directories, resources and API server address that a pod and the manager configure take
// effect in the pod's processes.
func (op *operator) testSettings(t *testing.T) {
	host, port := op.apiServerAddress(t)
	op.createPod(t, op.podName(0), nil, map[string]string{
		groupPrefix + "env-sync":   "CTRLMESH_DRAIN_TIMEOUT=7,GREETING",
		groupPrefix + "env-inject": `[{"name": "main", "env": [{"key": "GIVEN", "value": "x=y,z"}]}, {"name": "` + proxyContainer + `", "env": [{"key": "BOTH", "value": "1"}]}]`,
		groupPrefix + "log-path":   "/logs",
	}, fmt.Sprintf(`
serviceAccountName: operator
terminationGracePeriodSeconds: 1
containers:
- name: main
  image: %s
  args: [sleep]
  env: [{name: GREETING, value: "hello=you"}, {name: KUBERNETES_SERVICE_HOST, value: %q}, {name: KUBERNETES_SERVICE_PORT, value: %q}]
`, realnode.WorkloadImage, host, port))
	pod := op.podName(0)
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Ready", "pod/"+pod, "--timeout="+waitTimeout.String())
	op.assertEnv(t, pod, "main", "GIVEN=x=y,z", "GREETING=hello=you")
	op.assertEnv(t, pod, proxyContainer, "CTRLMESH_DRAIN_TIMEOUT=7", "GREETING=hello=you", "BOTH=1", "EVERYWHERE=a=b", "TZ=UTC",
		"CTRLMESH_LOG="+proxyLog, "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	if limit := must(op.node.MemoryLimit(t.Context(), op.name, pod, proxyContainer))(t); limit != 300<<20 {
		t.Errorf("the sidecar's limit is %d bytes, not %s", limit, proxyMemory)
	}
	op.assertSharedFolder(t, pod, "/logs")
	op.assertVisible(t, pod, op.teams[0]...)
	connections := must(op.node.OpenConnections(t.Context(), op.name, pod, proxyContainer))(t)
	if !slices.Contains(connections, net.JoinHostPort(host, port)) {
		t.Errorf("the sidecar is connected to %v, and not to %s:%s", connections, host, port)
	}
	if log := must(op.node.PodLog(t.Context(), op.name, pod, proxyContainer))(t); !strings.Contains(log, "access") {
		t.Errorf("the sidecar does not log requests: %s", log)
	}
	op.assertCounters(t, pod)
}

// apiServerAddress returns an address of the API server that pods do not get otherwise.
func (op *operator) apiServerAddress(t *testing.T) (host, port string) {
	t.Helper()
	slices := must(op.node.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), meta.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}))(t)
	if len(slices.Items) == 0 || len(slices.Items[0].Ports) == 0 || len(slices.Items[0].Endpoints) == 0 {
		t.Fatalf("Service kubernetes has %+v", slices.Items)
	}
	slice := slices.Items[0]
	return slice.Endpoints[0].Addresses[0], fmt.Sprint(*slice.Ports[0].Port)
}

// assertEnv asserts that a container's process has these variables.
func (op *operator) assertEnv(t *testing.T, pod, container string, want ...string) {
	t.Helper()
	found := must(op.node.ProcessEnvironment(t.Context(), op.name, pod, container))(t)
	for _, variable := range want {
		if !slices.Contains(found, variable) {
			t.Errorf("%s has no %s: %q", container, variable, found)
		}
	}
}

// assertSharedFolder asserts that one container sees what another has written.
func (op *operator) assertSharedFolder(t *testing.T, pod, folder string) {
	t.Helper()
	const text = "a line of main"
	written := must(op.node.HostPath(t.Context(), op.name, pod, "main", folder+"/main.log"))(t)
	check(t, os.WriteFile(written, []byte(text), 0o644))
	seen := must(op.node.HostPath(t.Context(), op.name, pod, proxyContainer, folder+"/main.log"))(t)
	if got := string(must(os.ReadFile(seen))(t)); got != text {
		t.Errorf("the sidecar reads %q in %s", got, folder)
	}
}

const rateLimitManifest = `
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: seldom, namespace: settings}
spec:
  selector: {matchLabels: {app: settings}}
  rateLimitings:
  - name: seldom
    triggerPolicy: LimiterOnly
    bucket: {limit: 1, interval: 24h, burst: 2}
    resourceRules: [{apiGroups: [""], resources: [events], verbs: [list], namespaces: [default]}]
`

// assertCounters compares the sidecar's counters with the test's requests: nothing else sends any.
func (op *operator) assertCounters(t *testing.T, pod string) {
	t.Helper()
	op.apply(t, rateLimitManifest)
	op.apply(t, op.faultManifest("counted", "configmaps", "list", "default", http.StatusServiceUnavailable))
	for _, rule := range []string{"circuitbreakers/seldom", "faultinjections/counted"} {
		op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Enforced", rule, "--timeout="+waitTimeout.String())
	}
	address, end, err := op.node.Forward(t.Context(), op.name, pod, sidecarPort)
	check(t, err)
	defer end()
	counted := func(name string, labels ...string) float64 { return op.readMetric(t, pod, name, labels...) }
	ok, throttled, failed := counted("ctrlmesh_requests_total", `verb="list"`, `code="2xx"`), counted("ctrlmesh_requests_total", `verb="list"`, `code="4xx"`), counted("ctrlmesh_requests_total", `verb="list"`, `code="5xx"`)
	for resource, want := range map[string][]int{"events": {200, 200, 429}, "configmaps": {503, 503}} {
		for _, code := range want {
			if got := listCode(t, address, resource); got != code {
				t.Errorf("a list of %s returns %d, not %d", resource, got, code)
			}
		}
	}
	eventually(t, "all requests are counted", func() error {
		got := []float64{
			counted("ctrlmesh_requests_total", `verb="list"`, `code="2xx"`) - ok, counted("ctrlmesh_requests_total", `verb="list"`, `code="4xx"`) - throttled,
			counted("ctrlmesh_requests_total", `verb="list"`, `code="5xx"`) - failed, counted("ctrlmesh_plugin_refused_total", `label="seldom"`),
			counted("ctrlmesh_plugin_granted_total", `label="seldom"`), counted("ctrlmesh_plugin_fault_fired_total"),
		}
		if want := []float64{2, 1, 2, 1, 2, 2}; !slices.Equal(got, want) {
			return fmt.Errorf("the counters are %v, not %v", got, want)
		}
		return nil
	})
}

// readMetric returns a counter of a pod's sidecar, as a scraper reads it.
func (op *operator) readMetric(t *testing.T, pod, name string, labels ...string) float64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: op.node.Dial, DisableKeepAlives: true}, Timeout: waitTimeout}
	response := must(client.Get("http://" + net.JoinHostPort(op.getPod(t, pod).Status.PodIP, "5441") + "/metrics"))(t)
	defer response.Body.Close()
	return must(metrics.Sum(must(io.ReadAll(response.Body))(t), name, labels...))(t)
}
