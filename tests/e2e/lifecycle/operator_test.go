package lifecycle

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file runs the unmodified operator of the operator package as a StatefulSet, with one ShardingConfig for each of
// its pods.

const (
	proxyContainer    = "ctrlmesh-proxy"
	operatorContainer = "manager"
	initContainer     = "look"
	enableLabel       = "ctrlmesh.kusionstack.io/enable-proxy"
	lock              = "operator"
	// sidecarPort is the sidecar's port on the pod's loopback interface.
	sidecarPort = 5443
)

// operator is a StatefulSet in its own namespace; all of its objects have the same name.
type operator struct {
	*lifecycle
	name     string
	replicas int
	// labels and annotations of the pod template, in addition to the label that asks for a sidecar.
	labels, annotations map[string]string
	// teams are the namespaces of each pod, by the pod's number.
	teams [][]string
	// steps are the requested steps, by namespace/name of the object.
	steps map[string]int
	// plugins of each shard, as YAML.
	plugins string
	// hasInitContainer adds an init container that also uses the API server.
	hasInitContainer bool
}

func (l *lifecycle) newOperator(name string, teams ...[]string) *operator {
	return &operator{lifecycle: l, name: name, replicas: len(teams), teams: teams, steps: map[string]int{}}
}

func (op *operator) podName(i int) string { return fmt.Sprintf("%s-%d", op.name, i) }

// podNames returns the names of all pods.
func (op *operator) podNames() []string {
	var names []string
	for i := range op.replicas {
		names = append(names, op.podName(i))
	}
	return names
}

// permissions are those of its service account, with and without ctrlmesh.
func (op *operator) permissions() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: operator, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules:
- {apiGroups: [""], resources: [configmaps, events], verbs: ["*"]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: ["*"]}
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, name: operator, namespace: %[1]s}]
`, op.name)
}

// podTemplate returns the pod template. The sidecar's resources are those for a small node.
func (op *operator) podTemplate(mesh bool) map[string]any {
	labels := map[string]string{"app": op.name}
	annotations := map[string]string{
		"ctrlmesh.kusionstack.io/proxy-resource": `{"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}`,
	}
	if mesh {
		labels[enableLabel] = "true"
		for key, value := range op.labels {
			labels[key] = value
		}
		for key, value := range op.annotations {
			annotations[key] = value
		}
	}
	var first []any
	if op.hasInitContainer {
		first = []any{map[string]any{"name": initContainer, "image": operatorImage, "args": []string{"--once", "--app=" + op.name}}}
	}
	return map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": annotations},
		"spec": map[string]any{
			"serviceAccountName":            "operator",
			"terminationGracePeriodSeconds": 30,
			"initContainers":                first,
			"containers": []any{map[string]any{
				"name": operatorContainer, "image": operatorImage,
				"args":           []string{"--id=$(POD_NAME)", "--app=" + op.name, "--lock=" + lock, "--lock-namespace=" + op.name, fmt.Sprintf("--health=:%d", healthPort)},
				"env":            []any{map[string]any{"name": "POD_NAME", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.name"}}}},
				"readinessProbe": probeSpec("/readyz", 1), "livenessProbe": probeSpec("/healthz", 10),
			}},
		},
	}
}

// singlePod returns one pod beside the StatefulSet, for the caller to change and apply.
func (op *operator) singlePod(name string, mesh bool) map[string]any {
	pod := op.podTemplate(mesh)
	pod["apiVersion"], pod["kind"] = "v1", "Pod"
	metadata := pod["metadata"].(map[string]any)
	metadata["name"], metadata["namespace"] = name, op.name
	return pod
}

// statefulSet returns the manifest as JSON, which is valid YAML.
func (op *operator) statefulSet(mesh bool) string {
	set := map[string]any{
		"apiVersion": "apps/v1", "kind": "StatefulSet",
		"metadata": map[string]any{"name": op.name, "namespace": op.name},
		"spec": map[string]any{
			"serviceName": op.name, "replicas": op.replicas, "podManagementPolicy": "Parallel",
			"selector": map[string]any{"matchLabels": map[string]any{"app": op.name}},
			"template": op.podTemplate(mesh),
		},
	}
	return asYAML(set)
}

func asYAML(object map[string]any) string {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // JSON can express everything in it
	}
	return string(text)
}

// shardingConfigs returns one ShardingConfig for each pod, with its namespaces.
func (op *operator) shardingConfigs() string {
	var text strings.Builder
	for i, teams := range op.teams {
		fmt.Fprintf(&text, `
---
apiVersion: ctrlmesh.kusionstack.io/v1alpha1
kind: ShardingConfig
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  selector: {matchLabels: {statefulset.kubernetes.io/pod-name: %[1]s}}
  controller: {leaderElectionName: %[3]s}
  limits:
  - relateResources: [{apiGroups: [""], resources: [configmaps]}]
    selector:
      matchExpressions:
      - {key: ctrlmesh.kusionstack.io/namespace, operator: In, values: [%[4]s]}
`, op.podName(i), op.name, lock, strings.Join(teams, ", "))
		text.WriteString(op.plugins)
	}
	return text.String()
}

// shardingConfigsByApp selects pods by their app label, for pods without a StatefulSet's number.
func (op *operator) shardingConfigsByApp() string {
	return strings.ReplaceAll(op.shardingConfigs(), "statefulset.kubernetes.io/pod-name: "+op.podName(0), "app: "+op.name)
}

// deployInMesh applies the ShardingConfigs first, as docs/install.md says, and waits until all pods are ready.
func (op *operator) deployInMesh(t *testing.T) {
	t.Helper()
	op.apply(t, op.permissions())
	op.apply(t, op.shardingConfigs())
	begin := time.Now()
	op.apply(t, op.statefulSet(true))
	op.waitReady(t)
	t.Logf("%d pods of %s were ready after %s", op.replicas, op.name, rounded(time.Since(begin)))
	op.waitEnforced(t)
}

func (op *operator) waitReady(t *testing.T) {
	t.Helper()
	op.kubectl(t, "", "rollout", "status", "--namespace="+op.name, "statefulset/"+op.name, "--timeout="+waitTimeout.String())
}

// waitEnforced waits until every ShardingConfig is enforced.
func (op *operator) waitEnforced(t *testing.T) {
	t.Helper()
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Enforced", "--all", "shardingconfigs", "--timeout="+waitTimeout.String())
}

func (op *operator) getPod(t *testing.T, pod string) *core.Pod {
	t.Helper()
	return must(op.node.Client.CoreV1().Pods(op.name).Get(t.Context(), pod, meta.GetOptions{}))(t)
}

// record is a line of an operator's journal; see operator/main.go.
type record struct {
	Event, ID, Object, Step, Detail string
}

// journal returns what a pod's operator has written since its container started.
func (op *operator) journal(t *testing.T, pod string) []record {
	t.Helper()
	return op.containerJournal(t, pod, operatorContainer)
}

func (op *operator) containerJournal(t *testing.T, pod, container string) []record {
	t.Helper()
	log := must(op.node.PodLog(t.Context(), op.name, pod, container))(t)
	var found []record
	for line := range strings.Lines(log) {
		var r record
		// The log also has lines for people.
		if json.Unmarshal([]byte(line), &r) == nil && r.Event != "" {
			found = append(found, r)
		}
	}
	return found
}

// hasRecord returns whether a journal has a record of a kind whose detail contains a text.
func hasRecord(journal []record, event, detail string) bool {
	return slices.ContainsFunc(journal, func(r record) bool { return r.Event == event && strings.Contains(r.Detail, detail) })
}
