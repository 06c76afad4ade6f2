package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/manager"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// This file compares the Helm chart with what kustomize makes, and installs it with Helm.

// overlayValues maps each overlay to the values of the chart that mean the same.
var overlayValues = map[string][]string{
	".":                        nil,
	"overlays/cert-manager":    {"--set=certManager.enabled=true"},
	"overlays/monitoring":      {"--set=monitoring.enabled=true"},
	"overlays/webhook-clients": {"--set=webhookClients.configMap=ctrlmesh-webhook-clients"},
	"overlays/without-mesh-ca": {"--set=meshCA.enabled=false"},
	"overlays/development": {
		"--set=replicas=1", "--set-string=settings.CTRLMESH_PROXY_LOG=info\\,access=debug",
		"--set-string=settings.CTRLMESH_LOG=info\\,ctrlmesh_manager=debug\\,kube_client=error\\,kube_runtime=error",
	},
}

func TestChartEqualsManifests(t *testing.T) {
	t.Parallel()
	for path, values := range overlayValues {
		t.Run("equals_kustomize_"+path, func(t *testing.T) {
			runProgram(t, "helm", "", append([]string{"lint", "--strict", chartDir}, values...)...)
			assertSameObjects(t, parseManifests(t, kustomize(t, filepath.Join(deployDir, path))), parseManifests(t, helmTemplate(t, "ctrlmesh", values...)))
		})
	}
	if len(overlayValues) != len(kustomizations(t)) {
		t.Errorf("overlays are %v", kustomizations(t))
	}
	t.Run("names_and_ports_match_in_other_namespace", func(t *testing.T) {
		assertReferences(t, parseManifests(t, helmTemplate(t, "elsewhere", "--set=monitoring.enabled=true,certManager.enabled=true")))
	})
	t.Run("files_equal_those_of_deploy", testChartFiles)
	t.Run("versions_are_equal", testVersions)
	t.Run("every_value_is_described", testValuesDescribed)
	t.Run("every_value_has_an_effect", testValueEffects)
	t.Run("numbers_keep_their_format", testNumberFormat)
	t.Run("unknown_values_are_refused", func(t *testing.T) {
		for value, says := range map[string]string{"replica=1": "replica", "settings.POD_NAME=a": "POD_NAME", "networkPolicy.egressPorts={0}": "egressPorts"} {
			_, errs, err := tryProgram(t, "helm", "", "template", chartDir, "--set="+value)
			if err == nil || !strings.Contains(errs, says) {
				t.Errorf("%s: %v: %s", value, err, errs)
			}
		}
	})
	t.Run("managers_are_deleted_after_what_they_release", testUninstallHookOrder)
	t.Run("helm_installs_upgrades_and_uninstalls", testHelmLifecycle)
}

// assertSameObjects compares the rendered objects. The chart leaves its namespace to Helm, adds Helm's labels, and has
// hooks.
func assertSameObjects(t *testing.T, kustomized, charted manifests) {
	t.Helper()
	normal := func(objects manifests) map[string]any {
		found := map[string]any{}
		for _, object := range objects {
			if object.GetKind() == "Namespace" || object.GetAnnotations()["helm.sh/hook"] != "" {
				continue
			}
			name := objectID(object)
			if found[name] != nil {
				t.Errorf("the chart renders %s twice", name)
			}
			found[name] = normalized(object.DeepCopy()).Object
		}
		return found
	}
	want, got := normal(kustomized), normal(charted)
	for name := range want {
		if !reflect.DeepEqual(want[name], got[name]) {
			t.Errorf("%s: kustomize and the chart differ at %q, or %q", name, missingField(want[name], got[name], ""), missingField(got[name], want[name], ""))
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("only the chart renders %s", name)
	}
}

func normalized(object *unstructured.Unstructured) *unstructured.Unstructured {
	labels := object.GetLabels()
	for _, label := range []string{"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"} {
		delete(labels, label)
	}
	object.SetLabels(labels)
	annotations := object.GetAnnotations()
	delete(annotations, "helm.sh/resource-policy")
	if len(annotations) == 0 {
		annotations = nil
	}
	object.SetAnnotations(annotations)
	containers, ok, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
	if ok {
		variables := containers[0].(map[string]any)["env"].([]any)
		name := func(variable any) string { return fmt.Sprint(variable.(map[string]any)["name"]) }
		slices.SortFunc(variables, func(a, b any) int { return strings.Compare(name(a), name(b)) })
		_ = unstructured.SetNestedSlice(object.Object, containers, "spec", "template", "spec", "containers")
	}
	return object
}

// testChartFiles compares the chart's copies of files byte for byte: a chart can't read files outside of its directory.
func testChartFiles(t *testing.T) {
	read := func(pattern, root string) map[string]string {
		found := map[string]string{}
		for _, path := range must(filepath.Glob(filepath.Join(root, pattern)))(t) {
			found[must(filepath.Rel(root, path))(t)] = string(must(os.ReadFile(path))(t))
		}
		return found
	}
	for _, part := range []string{"crd", "rbac", "webhook"} {
		shipped := read(part+"/*.yaml", deployDir)
		if len(shipped) == 0 || !reflect.DeepEqual(shipped, read(part+"/*.yaml", chartDir+"/files")) {
			t.Errorf("the chart's %s differs from deploy/: run `make chart`", part)
		}
	}
}

func testVersions(t *testing.T) {
	version := regexp.MustCompile(`(?m)^version = "(.+)"$`).FindStringSubmatch(string(must(os.ReadFile("../../Cargo.toml"))(t)))[1]
	about := map[string]any{}
	check(t, yaml.Unmarshal(must(os.ReadFile(chartDir+"/Chart.yaml"))(t), &about))
	if about["version"] != version || about["appVersion"] != version {
		t.Errorf("the chart has version %v and appVersion %v, the programs have %s", about["version"], about["appVersion"], version)
	}
	for _, file := range []string{"base/deployment.yaml", "images/kustomization.yaml"} {
		text := string(must(os.ReadFile(filepath.Join(deployDir, file)))(t))
		for _, match := range regexp.MustCompile(`(?:ctrlmesh-\w+:|newTag: )(\S+)`).FindAllStringSubmatch(text, -1) {
			if match[1] != version {
				t.Errorf("%s has version %s, the programs have %s", file, match[0], version)
			}
		}
	}
}

// testValuesDescribed asserts that values.schema.json has a description and the default of each value, and no others.
func testValuesDescribed(t *testing.T) {
	values, schema := map[string]any{}, map[string]any{}
	check(t, yaml.Unmarshal(must(os.ReadFile(chartDir+"/values.yaml"))(t), &values))
	check(t, json.Unmarshal(must(os.ReadFile(chartDir+"/values.schema.json"))(t), &schema))
	assertDescribed(t, "", values, schema)
}

func assertDescribed(t *testing.T, path string, value any, schema map[string]any) {
	if text, _ := schema["description"].(string); text == "" {
		t.Errorf("%s has no description", path)
	}
	properties, _ := schema["properties"].(map[string]any)
	if fallback, ok := schema["default"]; ok {
		if !reflect.DeepEqual(fallback, value) {
			t.Errorf("%s is %v by default, the schema says %v", path, value, fallback)
		}
		return
	}
	fields, ok := value.(map[string]any)
	if !ok || schema["additionalProperties"] != false {
		t.Errorf("%s has no default, or accepts anything", path)
	}
	for name, field := range fields {
		of, ok := properties[name].(map[string]any)
		if !ok {
			t.Errorf("%s.%s is not described", path, name)
			continue
		}
		assertDescribed(t, path+"."+name, field, of)
	}
	for name := range properties {
		if _, ok := fields[name]; !ok && name != "global" {
			t.Errorf("%s.%s is described, but is not a value", path, name)
		}
	}
}

// allSwitches turns every switch on.
const allSwitches = "certManager.enabled=true,monitoring.enabled=true,uninstall.deleteShardingConfigs=true"

// changedValues are values other than the defaults, as JSON; switchedOffValues turn off what is on in [allSwitches].
var changedValues, switchedOffValues = map[string]string{
	"replicas":         `3`,
	"image.repository": `"registry.example/manager"`, "image.tag": `"2"`, "image.pullPolicy": `"Always"`,
	"image.digest":           `"sha256:0123456789012345678901234567890123456789012345678901234567890123"`,
	"imagePullSecrets":       `[{"name": "registry"}]`,
	"proxy.image.repository": `"registry.example/proxy"`, "proxy.image.tag": `"2"`,
	"proxy.image.digest":        `"sha256:0123456789012345678901234567890123456789012345678901234567890123"`,
	"settings":                  `{"CTRLMESH_QPS": 100, "CTRLMESH_LOG_FORMAT": "json"}`,
	"crds.keep":                 `false`,
	"resources":                 `{"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}`,
	"podAnnotations":            `{"example.com/a": "b"}`,
	"podLabels":                 `{"example.com/c": "d"}`,
	"nodeSelector":              `{"kubernetes.io/os": "linux"}`,
	"tolerations":               `[{"key": "control-plane", "operator": "Exists"}]`,
	"affinity":                  `{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}`,
	"topologySpreadConstraints": `[{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "ctrlmesh-manager"}}}]`,
	"priorityClassName":         `"system-cluster-critical"`,
	"volumes":                   `[{"name": "authorities", "configMap": {"name": "registries"}}]`,
	"volumeMounts":              `[{"name": "authorities", "mountPath": "/etc/registries", "readOnly": true}]`,
	"networkPolicy.egressPorts": `[443, 6443, 8443, 16443, 5000]`,
	"certManager.issuerRef":     `{"name": "company", "kind": "ClusterIssuer", "group": "cert-manager.io"}`,
	"webhookClients.configMap":  `"authorities"`, "webhookClients.names": `["kube-apiserver"]`,
	"monitoring.labels":        `{"release": "prometheus"}`,
	"monitoring.interval":      `"1m"`,
	"uninstall.timeoutSeconds": `60`,
}, map[string]string{
	"crds.install": `false`, "podDisruptionBudget.enabled": `false`, "networkPolicy.enabled": `false`,
	"certManager.enabled": `false`, "monitoring.enabled": `false`, "meshCA.enabled": `false`,
	"uninstall.deleteShardingConfigs": `false`,
}

// changeAllArguments returns the arguments that change all values at once.
func changeAllArguments() []string {
	arguments := []string{"--set=" + allSwitches}
	for value, to := range changedValues {
		arguments = append(arguments, "--set-json="+value+"="+to)
	}
	return arguments
}

func testValueEffects(t *testing.T) {
	schema := map[string]any{}
	check(t, json.Unmarshal(must(os.ReadFile(chartDir+"/values.schema.json"))(t), &schema))
	before := helmTemplate(t, "ctrlmesh", "--set-json="+allSwitches)
	for _, value := range valuePaths("", schema) {
		to, ok := changedValues[value]
		if !ok {
			to, ok = switchedOffValues[value]
		}
		if !ok {
			t.Errorf("no changed value is listed for %s", value)
		} else if helmTemplate(t, "ctrlmesh", "--set-json="+allSwitches, "--set-json="+value+"="+to) == before {
			t.Errorf("%s has no effect", value)
		}
	}
}

// testNumberFormat reads numbers from a file of values, which Helm parses as floats, whole or not.
func testNumberFormat(t *testing.T) {
	file := filepath.Join(newDir(t), "values.yaml")
	check(t, os.WriteFile(file, []byte(`settings: {WHOLE: 1000000, LARGE: 12345678901, FRACTION: 0.00005, MIXED: 1234567.5, SWITCH: false, TEXT: "1e6", MARK: a<b}`), 0o644))
	got := map[string]string{}
	for _, variable := range oneOfKind[apps.Deployment](t, parseManifests(t, helmTemplate(t, "ctrlmesh", "--values="+file)), "Deployment").Spec.Template.Spec.Containers[0].Env {
		got[variable.Name] = variable.Value
	}
	for name, want := range map[string]string{
		"WHOLE": "1000000", "LARGE": "12345678901", "FRACTION": "0.00005", "MIXED": "1234567.5", "SWITCH": "false", "TEXT": "1e6", "MARK": "a<b",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// valuePaths returns the paths of all values that have a default.
func valuePaths(path string, schema map[string]any) []string {
	if _, ok := schema["default"]; ok {
		return []string{strings.TrimPrefix(path, ".")}
	}
	found := []string{}
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		found = append(found, valuePaths(path+"."+name, property.(map[string]any))...)
	}
	return found
}

// testUninstallHookOrder: whatever the values are, a hook runs before Helm deletes the managers.
func testUninstallHookOrder(t *testing.T) {
	const keeps, deletes, definitionsGo = "--keep", "--timeout-seconds=240", "--with-definitions"
	for values, want := range map[string][]string{
		"replicas=2":                                           {keeps},
		"crds.keep=false":                                      {keeps, definitionsGo},
		"crds.install=false,crds.keep=false":                   {keeps},
		"uninstall.deleteShardingConfigs=true":                 {deletes},
		"uninstall.deleteShardingConfigs=true,crds.keep=false": {deletes, definitionsGo},
	} {
		hook := oneOfKind[batch.Job](t, parseManifests(t, helmTemplate(t, "ctrlmesh", "--set="+values)), "Job")
		if got := hook.Spec.Template.Spec.Containers[0].Args; !slices.Equal(got, append([]string{"uninstall"}, want...)) {
			t.Errorf("%s: the hook %q runs %q, want %q", values, hook.Annotations["helm.sh/hook"], got, want)
		}
	}
}

// testHelmLifecycle installs, upgrades and uninstalls with Helm: CRDs are upgraded with the chart and stay when it is
// uninstalled, and uninstalling fails while there are shards.
func testHelmLifecycle(t *testing.T) {
	plane := startOwnControlPlane(t)
	client := must(dynamic.NewForConfig(plane.cluster.AdminConfig()))(t)
	admin := must(plane.cluster.UserKubeconfig("installer", "system:masters"))(t)
	helm := func(arguments ...string) string {
		return runProgram(t, "helm", "", append(arguments, "--kubeconfig="+admin, "--namespace=mesh-system")...)
	}
	described := func() string {
		definition := must(client.Resource(definitions).Get(t.Context(), "managerstates.ctrlmesh.kusionstack.io", meta.GetOptions{}))(t)
		return string(must(definition.MarshalJSON())(t))
	}
	const release = "kubectl delete shardingconfigs --all -A"
	if notes := helm("install", "ctrlmesh", chartDir, "--create-namespace"); !strings.Contains(notes, enableProxy) || !strings.Contains(notes, release) {
		t.Errorf("the notes are %s", notes)
	}
	hook := "--set=uninstall.deleteShardingConfigs=true"
	if notes := helm("install", "other", chartDir, "--dry-run=client", hook); strings.Contains(notes, release) {
		t.Errorf("the release deletes the CRDs itself, and the notes are %s", notes)
	}
	next := filepath.Join(newDir(t), "ctrlmesh")
	check(t, os.CopyFS(next, os.DirFS(chartDir)))
	file := next + "/files/crd/managerstates.yaml"
	text := strings.Replace(string(must(os.ReadFile(file))(t)), "description: ", "description: Of the next version. ", 1)
	check(t, os.WriteFile(file, []byte(text), 0o644))
	helm("upgrade", "ctrlmesh", next)
	if got := described(); !strings.Contains(got, "Of the next version.") {
		t.Errorf("after an upgrade the CRD is %s", got)
	}
	removesShard := createShardUnvalidated(t, plane, client)
	hookOutput, err := helmUninstall(t, plane, admin)
	if err == nil {
		t.Fatalf("the release was uninstalled although a shard exists; the hook says %s", hookOutput)
	}
	for _, words := range []string{"1 ShardingConfig: default/shard", "kubectl delete shardingconfigs --all -A", "helm uninstall --no-hooks"} {
		if !strings.Contains(hookOutput, words) {
			t.Errorf("%v: the hook does not say %q, but %s", err, words, hookOutput)
		}
	}
	must(plane.client.AppsV1().Deployments("mesh-system").Get(t.Context(), "ctrlmesh-manager", meta.GetOptions{}))(t)
	removesShard()
	if hookOutput, err := helmUninstall(t, plane, admin); err != nil {
		t.Fatalf("%v: %s", err, hookOutput)
	}
	described()
	left := must(plane.client.AppsV1().Deployments("mesh-system").List(t.Context(), meta.ListOptions{}))(t)
	hooks := must(plane.client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(t.Context(), meta.ListOptions{}))(t)
	if len(left.Items)+len(hooks.Items) > 0 {
		t.Errorf("%v and %v still exist", left.Items, hooks.Items)
	}
	helm("install", "ctrlmesh", chartDir)
}

// createShardUnvalidated creates a shard although no manager runs to answer the chart's webhook. The returned function
// removes the shard.
func createShardUnvalidated(t *testing.T, plane controlPlane, client dynamic.Interface) func() {
	t.Helper()
	check(t, plane.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "ctrlmesh-validating", meta.DeleteOptions{}))
	shard := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": "ShardingConfig",
		"metadata": map[string]any{"name": "shard", "namespace": "default"}, "spec": shardSpec(),
	}}
	eventually(t, "the webhook is gone", func() error {
		_, err := resourceClient(t, client, shard).Create(t.Context(), shard, meta.CreateOptions{})
		return err
	})
	return func() {
		check(t, resourceClient(t, client, shard).Delete(t.Context(), "shard", meta.DeleteOptions{}))
		// Helm re-creates the hook's Job; the end of the old Job must not be taken for that of the new one.
		policy := meta.DeletePropagationBackground
		check(t, plane.client.BatchV1().Jobs("mesh-system").Delete(t.Context(), hookName, meta.DeleteOptions{PropagationPolicy: &policy}))
	}
}

const hookName = "ctrlmesh-uninstall"

// helmUninstall uninstalls the release with Helm, and returns the output of its hook.
func helmUninstall(t *testing.T, plane controlPlane, kubeconfig string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	binary := must(manager.Binary())(t)
	hookOutput := make(chan string, 1)
	go func() {
		text, err := runHookJob(ctx, plane, binary, kubeconfig)
		hookOutput <- fmt.Sprintf("%s (%v)", text, err)
	}()
	_, errs, err := tryProgram(t, "helm", "", "uninstall", "ctrlmesh", "--kubeconfig="+kubeconfig, "--namespace=mesh-system", "--timeout="+waitTimeout.String())
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs)
	}
	return <-hookOutput, err
}

// runHookJob plays kubelet and the Job controller: it runs the hook's command with this checkout's manager, and writes
// the result into the Job's status.
func runHookJob(ctx context.Context, plane controlPlane, binary, kubeconfig string) (string, error) {
	jobs := plane.client.BatchV1().Jobs("mesh-system")
	job, err := jobs.Get(ctx, hookName, meta.GetOptions{})
	for ; apierrors.IsNotFound(err); job, err = jobs.Get(ctx, hookName, meta.GetOptions{}) {
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, binary, job.Spec.Template.Spec.Containers[0].Args...)
	command.Env = []string{"KUBECONFIG=" + kubeconfig}
	output, failed := command.CombinedOutput()
	now := meta.Now()
	job.Status.StartTime = &now
	ends := []batch.JobConditionType{batch.JobSuccessCriteriaMet, batch.JobComplete}
	if failed != nil {
		ends = []batch.JobConditionType{batch.JobFailureTarget, batch.JobFailed}
	} else {
		job.Status.CompletionTime = &now
	}
	for _, end := range ends {
		job.Status.Conditions = append(job.Status.Conditions, batch.JobCondition{Type: end, Status: core.ConditionTrue, LastTransitionTime: now})
	}
	_, err = jobs.UpdateStatus(ctx, job, meta.UpdateOptions{})
	return string(output), err
}
