package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file uses kubectl through the sidecar, as people do who debug a controller.

// kubectlThroughSidecar runs a command through the sidecar and returns its standard output.
func kubectlThroughSidecar(t *testing.T, s *sidecar.Sidecar, input string, arguments ...string) string {
	t.Helper()
	return runKubectl(t, sidecarKubeconfig(t, s), input, arguments...)
}

func runKubectl(t *testing.T, kubeconfig, input string, arguments ...string) string {
	t.Helper()
	return must(tryKubectl(t, kubeconfig, input, arguments...))(t)
}

// tryKubectl returns the standard output. The error of a command that fails has all of its output.
func tryKubectl(t *testing.T, kubeconfig, input string, arguments ...string) (string, error) {
	t.Helper()
	home := newDir(t)
	command := exec.CommandContext(t.Context(), shared.kubectl, append([]string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + home}, arguments...)...)
	command.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	command.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w\n%s%s", strings.Join(arguments, " "), err, out.String(), errs.String())
	}
	return out.String(), nil
}

func TestKubectlReadsOnlyShard(t *testing.T) {
	env := newTestEnv(t)
	t.Run("get_prints_only_objects_of_shard", func(t *testing.T) {
		for _, kind := range []string{"configmaps", "widgets"} {
			out := kubectlThroughSidecar(t, env.sidecar, "", "get", kind, "-n", env.namespace)
			if !strings.HasPrefix(out, "NAME") || !strings.Contains(out, "mine-x") || !strings.Contains(out, "mine-y") || strings.Contains(out, "foreign") {
				t.Errorf("got %s", out)
			}
		}
	})
	t.Run("get_prints_the_same_as_without_sidecar", func(t *testing.T) {
		for _, arguments := range [][]string{
			{"get", "cm", "-o", "yaml"}, {"get", "cm", "-o", "name"}, {"get", "cm", "--show-labels", "--no-headers", "--show-kind"}, {"get", "cm", "-o", "wide", "--sort-by=.metadata.name"},
			{"get", "cm", "--chunk-size=1"}, {"get", "cm", "-L", "app"}, {"get", "widgets", "-o", "json"}, {"get", "cm,widgets"}, {"describe", "cm"},
		} {
			arguments = append(arguments, "-n", env.namespace)
			got := kubectlThroughSidecar(t, env.sidecar, "", append(arguments, "-l", "app")...)
			want := runKubectl(t, shared.kubeconfig, "", append(arguments, "-l", "app,shard=a")...)
			if normalizeOutput(got) != normalizeOutput(want) {
				t.Errorf("kubectl %v:\n%s\nwant\n%s", arguments, got, want)
			}
		}
	})
	t.Run("get_by_name_and_raw", func(t *testing.T) {
		for _, arguments := range [][]string{
			{"get", "cm", "foreign-x", "-n", env.namespace, "-o", "yaml"}, {"get", "--raw", "/version"}, {"get", "--raw", "/openapi/v3"},
			{"auth", "can-i", "--list", "-n", env.namespace}, {"auth", "can-i", "create", "pods"}, {"auth", "whoami"}, {"api-resources"}, {"api-versions"},
			{"explain", "widgets", "--api-version=e2e.ctrlmesh.dev/v1"}, {"explain", "cm.data"}, {"version"}, {"cluster-info"},
		} {
			got, want := kubectlThroughSidecar(t, env.sidecar, "", arguments...), runKubectl(t, shared.kubeconfig, "", arguments...)
			if normalizeOutput(got) != normalizeOutput(want) {
				t.Errorf("kubectl %v:\n%s\nwant\n%s", arguments, got, want)
			}
		}
	})
	t.Run("watch_prints_changes", func(t *testing.T) { testKubectlWatch(t, env) })
	t.Run("wait_sees_deletion", func(t *testing.T) {
		out := kubectlThroughSidecar(t, env.sidecar, "", "wait", "--for=jsonpath={.data.key}=value", "cm", "--all", "-n", env.namespace, "--timeout=30s")
		if strings.Count(out, "condition met") != 2 || strings.Contains(out, "foreign") {
			t.Errorf("got %s", out)
		}
	})
}

// normalizeOutput drops times and addresses, and sorts lines, because kubectl prints maps in any order.
func normalizeOutput(text string) string {
	lines := []string{}
	for _, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		kept := []string{}
		for _, field := range fields {
			isAge := strings.TrimRight(field, "0123456789hms") == ""
			if !isAge && !strings.Contains(field, "://") && !strings.HasPrefix(field, "\x1b") {
				kept = append(kept, field)
			}
		}
		lines = append(lines, strings.Join(kept, " "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func testKubectlWatch(t *testing.T, env *testEnv) {
	namespace := newNamespace(t)
	command := exec.CommandContext(t.Context(), shared.kubectl, "--kubeconfig="+sidecarKubeconfig(t, env.sidecar), "get", "cm", "-n", namespace, "--watch", "-o", "name", "--output-watch-events")
	out := must(command.StdoutPipe())(t)
	check(t, command.Start())
	defer func() { _, _ = command.Process.Kill(), command.Wait() }()
	lines := bufio.NewScanner(out)
	for i := range 3 {
		createConfigMap(t, namespace, fmt.Sprintf("foreign-%d", i), nil, nil)
		createConfigMap(t, namespace, fmt.Sprintf("mine-%d", i), map[string]string{"shard": "a"}, nil)
		if !lines.Scan() || !strings.Contains(lines.Text(), fmt.Sprintf("configmap/mine-%d", i)) {
			t.Fatalf("line %d: %q, %v", i, lines.Text(), lines.Err())
		}
	}
}

func TestKubectlWritesThroughSidecar(t *testing.T) {
	s := startShardSidecar(t, shardRule("s0", "a"))
	namespace := newNamespace(t)
	run := func(input string, arguments ...string) string {
		t.Helper()
		return kubectlThroughSidecar(t, s, input, append(arguments, "-n", namespace)...)
	}
	expect := func(want, got string) {
		t.Helper()
		if strings.TrimSpace(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	manifest := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine, labels: {shard: a}}\ndata: {k: %s}\n"
	data := func() string { return strings.TrimSpace(run("", "get", "cm", "mine", "-o", "jsonpath={.data.k}")) }

	expect("configmap/mine created", run(fmt.Sprintf(manifest, "one"), "apply", "-f", "-"))
	expect("configmap/mine configured", run(fmt.Sprintf(manifest, "two"), "apply", "-f", "-"))
	expect("two", data())
	expect("configmap/mine unchanged", run(fmt.Sprintf(manifest, "two"), "apply", "-f", "-"))
	expect("configmap/mine serverside-applied", run(fmt.Sprintf(manifest, "three"), "apply", "--server-side", "--force-conflicts", "-f", "-"))
	expect("three", data())
	if out := run(fmt.Sprintf(manifest, "four"), "apply", "--server-side", "--dry-run=server", "-f", "-"); !strings.Contains(out, "server dry run") {
		t.Errorf("got %q", out)
	}
	for kind, body := range map[string]string{
		"strategic": `{"data":{"k":"strategic"}}`, "merge": `{"data":{"k":"merge"}}`, "json": `[{"op":"replace","path":"/data/k","value":"json"}]`,
	} {
		expect("configmap/mine patched", run("", "patch", "cm", "mine", "--type="+kind, "-p", body))
		expect(kind, data())
	}
	expect("configmap/mine labeled", run("", "label", "cm", "mine", "x=y"))
	expect("configmap/mine annotated", run("", "annotate", "cm", "--all", "x=y"))
	expect("configmap/mine replaced", run(fmt.Sprintf(manifest, "five"), "replace", "-f", "-"))
	expect("configmap/foreign created", run("", "create", "cm", "foreign", "--from-literal=k=v"))
	expect("secret/s created", run("", "create", "secret", "generic", "s", "--from-literal=k=v"))
	if out := run("", "diff", "-f", writeFile(t, fmt.Sprintf(manifest, "five"))); out != "" {
		t.Errorf("diff: %s", out)
	}
	expect(`configmap "mine" deleted from `+namespace+" namespace", run("", "delete", "cm", "--all"))
	expect("configmap/foreign", run("", "get", "cm", "foreign", "-o", "name"))
	expect(`configmap "foreign" deleted from `+namespace+" namespace", run("", "delete", "cm", "foreign"))
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(newDir(t), "manifest.yaml")
	check(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}
