package story

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

// This file runs the unmodified operator of the operator package as a StatefulSet, with one ShardingConfig for each of its pods.

const (
	proxyContainer = "ctrlmesh-proxy"
	mainContainer  = "manager"
	lookContainer  = "look"
	enableLabel    = "ctrlmesh.kusionstack.io/enable-proxy"
	lock           = "operator"
	// sidecarPort is where the operator's requests go, on the pod's loopback interface.
	sidecarPort = 5443
)

// operator is a StatefulSet in a namespace of its own, whose name is the name of everything.
type operator struct {
	*story
	name     string
	replicas int
	// labels and annotations of the pod template, beside the label that asks for a sidecar.
	labels, annotations map[string]string
	// teams are the namespaces that each pod handles, by the pod's number.
	teams [][]string
	// steps were asked for, by namespace/name of the object.
	steps map[string]int
	// plugins of each shard, as YAML.
	plugins string
	// looksFirst: an init container asks the API server, too.
	looksFirst bool
}

func (s *story) operator(name string, teams ...[]string) *operator {
	return &operator{story: s, name: name, replicas: len(teams), teams: teams, steps: map[string]int{}}
}

func (o *operator) pod(i int) string { return fmt.Sprintf("%s-%d", o.name, i) }

// pods are the names of all.
func (o *operator) pods() []string {
	var names []string
	for i := range o.replicas {
		names = append(names, o.pod(i))
	}
	return names
}

// permissions that its service account has with and without ctrlmesh.
func (o *operator) permissions() string {
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
`, o.name)
}

// template of its pods. The sidecar's resources are those of a node that has few.
func (o *operator) template(mesh bool) map[string]any {
	labels := map[string]string{"app": o.name}
	annotations := map[string]string{
		"ctrlmesh.kusionstack.io/proxy-resource": `{"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}`,
	}
	if mesh {
		labels[enableLabel] = "true"
		for key, value := range o.labels {
			labels[key] = value
		}
		for key, value := range o.annotations {
			annotations[key] = value
		}
	}
	var first []any
	if o.looksFirst {
		first = []any{map[string]any{"name": lookContainer, "image": operatorImage, "args": []string{"--once", "--app=" + o.name}}}
	}
	return map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": annotations},
		"spec": map[string]any{
			"serviceAccountName":            "operator",
			"terminationGracePeriodSeconds": 30,
			"initContainers":                first,
			"containers": []any{map[string]any{
				"name": mainContainer, "image": operatorImage,
				"args":           []string{"--id=$(POD_NAME)", "--app=" + o.name, "--lock=" + lock, "--lock-namespace=" + o.name, fmt.Sprintf("--health=:%d", healthPort)},
				"env":            []any{map[string]any{"name": "POD_NAME", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.name"}}}},
				"readinessProbe": probe("/readyz", 1), "livenessProbe": probe("/healthz", 10),
			}},
		},
	}
}

// single is one pod beside the StatefulSet, to be changed and applied.
func (o *operator) single(name string, mesh bool) map[string]any {
	pod := o.template(mesh)
	pod["apiVersion"], pod["kind"] = "v1", "Pod"
	metadata := pod["metadata"].(map[string]any)
	metadata["name"], metadata["namespace"] = name, o.name
	return pod
}

// statefulSet as YAML, which JSON is.
func (o *operator) statefulSet(mesh bool) string {
	set := map[string]any{
		"apiVersion": "apps/v1", "kind": "StatefulSet",
		"metadata": map[string]any{"name": o.name, "namespace": o.name},
		"spec": map[string]any{
			"serviceName": o.name, "replicas": o.replicas, "podManagementPolicy": "Parallel",
			"selector": map[string]any{"matchLabels": map[string]any{"app": o.name}},
			"template": o.template(mesh),
		},
	}
	return asYAML(set)
}

func asYAML(object map[string]any) string {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // there is nothing in it that JSON does not have
	}
	return string(text)
}

// shards are the ShardingConfigs, one for each pod, by the namespaces that it handles.
func (o *operator) shards() string {
	var text strings.Builder
	for i, teams := range o.teams {
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
`, o.pod(i), o.name, lock, strings.Join(teams, ", "))
		text.WriteString(o.plugins)
	}
	return text.String()
}

// shardsByApp are the same for pods that no StatefulSet has numbered.
func (o *operator) shardsByApp() string {
	return strings.ReplaceAll(o.shards(), "statefulset.kubernetes.io/pod-name: "+o.pod(0), "app: "+o.name)
}

// starts applies rules first, as docs/install.md says, and waits until all pods are ready.
func (o *operator) starts(t *testing.T) {
	t.Helper()
	o.apply(t, o.permissions())
	o.apply(t, o.shards())
	begin := time.Now()
	o.apply(t, o.statefulSet(true))
	o.ready(t)
	t.Logf("%d pods of %s were ready after %s", o.replicas, o.name, rounded(time.Since(begin)))
	o.enforced(t)
}

func (o *operator) ready(t *testing.T) {
	t.Helper()
	o.kubectl(t, "", "rollout", "status", "--namespace="+o.name, "statefulset/"+o.name, "--timeout="+patience.String())
}

// enforced waits until every ShardingConfig says so.
func (o *operator) enforced(t *testing.T) {
	t.Helper()
	o.kubectl(t, "", "wait", "--namespace="+o.name, "--for=condition=Enforced", "--all", "shardingconfigs", "--timeout="+patience.String())
}

func (o *operator) get(t *testing.T, pod string) *core.Pod {
	t.Helper()
	return must(o.node.Client.CoreV1().Pods(o.name).Get(t.Context(), pod, meta.GetOptions{}))(t)
}

// record is a line of an operator's journal; see operator/main.go.
type record struct {
	Event, ID, Object, Step, Detail string
}

// journal is what a pod's operator has written since its container started.
func (o *operator) journal(t *testing.T, pod string) []record {
	t.Helper()
	return o.journalOf(t, pod, mainContainer)
}

func (o *operator) journalOf(t *testing.T, pod, container string) []record {
	t.Helper()
	log := must(o.node.PodLog(t.Context(), o.name, pod, container))(t)
	var found []record
	for line := range strings.Lines(log) {
		var r record
		// Its log for people is in there, too.
		if json.Unmarshal([]byte(line), &r) == nil && r.Event != "" {
			found = append(found, r)
		}
	}
	return found
}

// has tells whether a journal has a record of a kind, with this in its detail.
func has(journal []record, event, detail string) bool {
	return slices.ContainsFunc(journal, func(r record) bool { return r.Event == event && strings.Contains(r.Detail, detail) })
}
