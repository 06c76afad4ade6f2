package story

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

// This file runs pods that say more about their sidecars, by labels, annotations and the manager's settings (docs/injection.md), and looks
// at what becomes of them.

const (
	// Settings of the managers, for all sidecars.
	extraEnvs   = "EVERYWHERE=a=b;TZ=UTC"
	proxyLog    = "info,access=debug"
	proxyMemory = "300Mi"
	// ownConfig is a kubeconfig that leads to the API server, in the pods that have one.
	ownConfig = "/own/config"
	// foreign is a namespace whose objects are of the operator and not of its shard.
	foreign = "team-q"
)

// obeysPods tells of pods side by side in one namespace, all of one shard.
func (s *story) obeysPods(t *testing.T) {
	o := s.operator("says", []string{"team-p"})
	o.apply(t, o.permissions())
	o.makeItems(t)
	s.apply(t, fmt.Sprintf("%s\n---\n%s", foreignItem(o), o.ownConfig(t, "own", "ConfigMap", tokenOfPod)))
	o.apply(t, o.shardsByApp())
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Distributed", "--all", "shardingconfigs", "--timeout="+patience.String())
	t.Run("flag and variable", o.goesItsOwnWay)
	t.Run("kubeconfig volume", o.goesElsewhere)
	t.Run("environment", o.hasSettings)
	t.Run("pull secret", o.pullsWithSecret)
	s.kubectl(t, "", "delete", "--namespace="+o.name, "pods,shardingconfigs,faultinjections,circuitbreakers", "--all", "--timeout="+patience.String())
}

func foreignItem(o *operator) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: item, namespace: %[1]s, labels: {app: %[2]s}}
`, foreign, o.name)
}

// tokenOfPod is whatever account a pod has.
const tokenOfPod = "tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"

// ownConfig is a kubeconfig that does not lead to the sidecar, in a ConfigMap or a Secret.
func (o *operator) ownConfig(t *testing.T, name, kind, user string) string {
	t.Helper()
	authority := base64.StdEncoding.EncodeToString(o.node.Config().CAData)
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: own,
  clusters: [{name: own, cluster: {server: "https://kubernetes.default.svc", certificate-authority-data: %s}}],
  users: [{name: own, user: {%s}}], contexts: [{name: own, context: {cluster: own, user: own}}]}`, authority, user)
	field := map[string]string{"ConfigMap": "data", "Secret": "stringData"}[kind]
	return asYAML(map[string]any{
		"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name, "namespace": o.name},
		field: map[string]any{"config": config},
	})
}

// says makes a pod of a manifest's spec with the operator's labels, and more of them.
func (o *operator) says(t *testing.T, name string, labels, annotations map[string]string, spec string) {
	t.Helper()
	pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{
		"name": name, "namespace": o.name, "annotations": annotations,
		"labels": union(map[string]string{"app": o.name, enableLabel: "true"}, labels),
	}}
	var parsed map[string]any
	check(t, yaml.Unmarshal([]byte(spec), &parsed))
	pod["spec"] = parsed
	o.apply(t, asYAML(pod))
}

func union(a, b map[string]string) map[string]string {
	all := map[string]string{}
	for _, some := range []map[string]string{a, b} {
		for key, value := range some {
			all[key] = value
		}
	}
	return all
}

// goesItsOwnWay: a container whose flag, or whose variable, is left alone goes past the sidecar by that, and only by that.
func (o *operator) goesItsOwnWay(t *testing.T) {
	for pod, test := range map[string]struct {
		label          string
		flag, variable []string
	}{
		"led":           {"", o.teams[0], o.teams[0]},
		"flag-left":     {"disable-fake-kubeconfig-arg", slices.Concat(o.teams[0], []string{foreign}), o.teams[0]},
		"variable-left": {"disable-fake-kubeconfig-env", o.teams[0], slices.Concat(o.teams[0], []string{foreign})},
	} {
		labels := map[string]string{}
		if test.label != "" {
			labels[ours+test.label] = "true"
		}
		o.says(t, pod, labels, nil, fmt.Sprintf(`
serviceAccountName: operator
restartPolicy: Never
containers:
- {name: flag, image: %[1]s, args: [--once, --app=%[2]s, --kubeconfig=%[3]s], volumeMounts: [{name: own, mountPath: /own}]}
- {name: variable, image: %[1]s, args: [--once, --app=%[2]s], env: [{name: KUBECONFIG, value: %[3]s}], volumeMounts: [{name: own, mountPath: /own}]}
volumes: [{name: own, configMap: {name: own}}]
`, operatorImage, o.name, ownConfig))
		o.ends(t, pod)
		theseAlone(t, "the flag of "+pod+" leads to", o.looked(t, pod, "flag"), test.flag)
		theseAlone(t, "the variable of "+pod+" leads to", o.looked(t, pod, "variable"), test.variable)
	}
}

// goesElsewhere: the sidecar goes where the pod's kubeconfig says, as who that says. The pod's own account may do nothing.
func (o *operator) goesElsewhere(t *testing.T) {
	token := strings.TrimSpace(o.kubectl(t, "", "create", "token", "operator", "--namespace="+o.name))
	o.apply(t, o.ownConfig(t, "upstream", "Secret", "token: "+token))
	for name, label := range map[string]string{"elsewhere": "upstream", "here": ""} {
		labels := map[string]string{}
		if label != "" {
			labels[ours+"kubeconfig-volume"] = label
		}
		o.says(t, name, labels, nil, fmt.Sprintf(`
restartPolicy: Never
containers: [{name: main, image: %s, args: [--once, --app=%s]}]
volumes: [{name: upstream, secret: {secretName: upstream}}]
`, operatorImage, o.name))
	}
	o.ends(t, "elsewhere")
	theseAlone(t, "elsewhere sees", o.looked(t, "elsewhere", "main"), o.teams[0])
	eventually(t, "the account of the pod may do nothing", func() error {
		if journal := o.journalOf(t, "here", "main"); !has(journal, "failed", "403") {
			return fmt.Errorf("its journal is %v", journal)
		}
		return nil
	})
}

// ends waits until all containers of a pod have done what they had to.
func (o *operator) ends(t *testing.T, pod string) {
	t.Helper()
	eventually(t, pod+" has ended", func() error {
		if found := o.get(t, pod); found.Status.Phase != core.PodSucceeded {
			return fmt.Errorf("it is %s: %+v", found.Status.Phase, found.Status.ContainerStatuses)
		}
		return nil
	})
}

// looked are the namespaces whose objects a container saw.
func (o *operator) looked(t *testing.T, pod, container string) []string {
	t.Helper()
	seen := []string{}
	for _, record := range o.journalOf(t, pod, container) {
		if namespace, _, _ := strings.Cut(record.Object, "/"); record.Event == "seen" {
			seen = append(seen, namespace)
		}
	}
	return seen
}

// hasSettings: what a pod and the manager say of environment, folders, resources and the way to the API server is so in its processes.
func (o *operator) hasSettings(t *testing.T) {
	host, port := o.apiServer(t)
	o.says(t, o.pod(0), nil, map[string]string{
		ours + "env-sync":   "CTRLMESH_DRAIN_TIMEOUT=7,GREETING",
		ours + "env-inject": `[{"name": "main", "env": [{"key": "GIVEN", "value": "x=y,z"}]}, {"name": "` + proxyContainer + `", "env": [{"key": "BOTH", "value": "1"}]}]`,
		ours + "log-path":   "/logs",
	}, fmt.Sprintf(`
serviceAccountName: operator
terminationGracePeriodSeconds: 1
containers:
- name: main
  image: %s
  args: [sleep]
  env: [{name: GREETING, value: "hello=you"}, {name: KUBERNETES_SERVICE_HOST, value: %q}, {name: KUBERNETES_SERVICE_PORT, value: %q}]
`, realnode.WorkloadImage, host, port))
	pod := o.pod(0)
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Ready", "pod/"+pod, "--timeout="+patience.String())
	o.hasVariables(t, pod, "main", "GIVEN=x=y,z", "GREETING=hello=you")
	o.hasVariables(t, pod, proxyContainer, "CTRLMESH_DRAIN_TIMEOUT=7", "GREETING=hello=you", "BOTH=1", "EVERYWHERE=a=b", "TZ=UTC",
		"CTRLMESH_LOG="+proxyLog, "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	if limit := must(o.node.MemoryLimit(t.Context(), o.name, pod, proxyContainer))(t); limit != 300<<20 {
		t.Errorf("the sidecar may have %d bytes, not %s", limit, proxyMemory)
	}
	o.sharesFolder(t, pod, "/logs")
	o.sees(t, pod, o.teams[0]...)
	connections := must(o.node.Connections(t.Context(), o.name, pod, proxyContainer))(t)
	if !slices.Contains(connections, net.JoinHostPort(host, port)) {
		t.Errorf("the sidecar has connections to %v, and none to %s:%s", connections, host, port)
	}
	if log := must(o.node.PodLog(t.Context(), o.name, pod, proxyContainer))(t); !strings.Contains(log, "access") {
		t.Errorf("the sidecar does not log requests: %s", log)
	}
	o.counts(t, pod)
}

// apiServer is an address of the API server that no pod is told.
func (o *operator) apiServer(t *testing.T) (host, port string) {
	t.Helper()
	slices := must(o.node.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), meta.ListOptions{LabelSelector: "kubernetes.io/service-name=kubernetes"}))(t)
	if len(slices.Items) == 0 || len(slices.Items[0].Ports) == 0 || len(slices.Items[0].Endpoints) == 0 {
		t.Fatalf("Service kubernetes has %+v", slices.Items)
	}
	slice := slices.Items[0]
	return slice.Endpoints[0].Addresses[0], fmt.Sprint(*slice.Ports[0].Port)
}

// hasVariables demands of a container's program these among its variables.
func (o *operator) hasVariables(t *testing.T, pod, container string, want ...string) {
	t.Helper()
	found := must(o.node.Environment(t.Context(), o.name, pod, container))(t)
	for _, variable := range want {
		if !slices.Contains(found, variable) {
			t.Errorf("%s has no %s: %q", container, variable, found)
		}
	}
}

// sharesFolder demands that one container sees what another has written.
func (o *operator) sharesFolder(t *testing.T, pod, folder string) {
	t.Helper()
	const text = "a line of main"
	written := must(o.node.File(t.Context(), o.name, pod, "main", folder+"/main.log"))(t)
	check(t, os.WriteFile(written, []byte(text), 0o644))
	seen := must(o.node.File(t.Context(), o.name, pod, proxyContainer, folder+"/main.log"))(t)
	if got := string(must(os.ReadFile(seen))(t)); got != text {
		t.Errorf("the sidecar reads %q in %s", got, folder)
	}
}

const limit = `
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: CircuitBreaker
metadata: {name: seldom, namespace: says}
spec:
  selector: {matchLabels: {app: says}}
  rateLimitings:
  - name: seldom
    triggerPolicy: LimiterOnly
    bucket: {limit: 1, interval: 24h, burst: 2}
    resourceRules: [{apiGroups: [""], resources: [events], verbs: [list], namespaces: [default]}]
`

// counts compares the sidecar's counters with what was asked: nobody else does.
func (o *operator) counts(t *testing.T, pod string) {
	t.Helper()
	o.apply(t, limit)
	o.apply(t, o.fault("counted", "configmaps", "list", "default", http.StatusServiceUnavailable))
	for _, rule := range []string{"circuitbreakers/seldom", "faultinjections/counted"} {
		o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Enforced", rule, "--timeout="+patience.String())
	}
	address, end, err := o.node.Forward(t.Context(), o.name, pod, sidecarPort)
	check(t, err)
	defer end()
	counted := func(name string, labels ...string) float64 { return o.metric(t, pod, name, labels...) }
	ok, throttled, failed := counted("ctrlmesh_requests_total", `verb="list"`, `code="2xx"`), counted("ctrlmesh_requests_total", `verb="list"`, `code="4xx"`), counted("ctrlmesh_requests_total", `verb="list"`, `code="5xx"`)
	for resource, want := range map[string][]int{"events": {200, 200, 429}, "configmaps": {503, 503}} {
		for _, code := range want {
			if got := lists(t, address, resource); got != code {
				t.Errorf("a list of %s gets %d, not %d", resource, got, code)
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
			return fmt.Errorf("counted are %v, not %v", got, want)
		}
		return nil
	})
}

// metric is a counter of a pod's sidecar, asked as a scraper does.
func (o *operator) metric(t *testing.T, pod, name string, labels ...string) float64 {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: o.node.Dial, DisableKeepAlives: true}, Timeout: patience}
	response := must(client.Get("http://" + net.JoinHostPort(o.get(t, pod).Status.PodIP, "5441") + "/metrics"))(t)
	defer response.Body.Close()
	return must(metrics.Sum(must(io.ReadAll(response.Body))(t), name, labels...))(t)
}
