package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/manager"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// This file renders the repository's manifests: deploy/, its overlays and its chart.

const (
	deployDir = "../../deploy"
	chartDir  = deployDir + "/helm/ctrlmesh"
)

// kustomizations returns the directories that people apply.
func kustomizations(t *testing.T) []string {
	t.Helper()
	overlays := must(os.ReadDir(deployDir + "/overlays"))(t)
	paths := []string{deployDir}
	for _, overlay := range overlays {
		paths = append(paths, deployDir+"/overlays/"+overlay.Name())
	}
	return paths
}

// runProgram returns the output of a program that must not fail.
func runProgram(t *testing.T, program, input string, arguments ...string) string {
	t.Helper()
	out, errs, err := tryProgram(t, program, input, arguments...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", program, strings.Join(arguments, " "), err, out, errs)
	}
	return out
}

// tryProgram runs a program of the binaries package without this user's configuration.
func tryProgram(t *testing.T, program, input string, arguments ...string) (string, string, error) {
	t.Helper()
	home := newDir(t)
	command := exec.CommandContext(t.Context(), must(binaries.Path(program))(t), arguments...)
	command.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	command.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	return out.String(), errs.String(), err
}

func kustomize(t *testing.T, path string) string {
	t.Helper()
	return runProgram(t, "kubectl", "", "kustomize", path)
}

// helmTemplate renders the chart in a namespace, with additional arguments.
func helmTemplate(t *testing.T, namespace string, arguments ...string) string {
	t.Helper()
	return runProgram(t, "helm", "", append([]string{"template", "ctrlmesh", chartDir, "--namespace=" + namespace}, arguments...)...)
}

// manifests are rendered objects.
type manifests []*unstructured.Unstructured

func parseManifests(t *testing.T, text string) manifests {
	t.Helper()
	objects := manifests{}
	for _, document := range regexp.MustCompile(`(?m)^---$`).Split(text, -1) {
		object := &unstructured.Unstructured{}
		check(t, yaml.UnmarshalStrict([]byte(document), &object.Object))
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects
}

func objectID(object *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
}

// allOfKind decodes all objects of a kind; unknown fields are an error.
func allOfKind[T any](t *testing.T, objects manifests, kind string) []T {
	t.Helper()
	found := []T{}
	for _, object := range objects {
		if object.GetKind() != kind {
			continue
		}
		var typed T
		check(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, &typed, true))
		found = append(found, typed)
	}
	return found
}

// oneOfKind decodes the only object of a kind.
func oneOfKind[T any](t *testing.T, objects manifests, kind string) T {
	t.Helper()
	found := allOfKind[T](t, objects, kind)
	if len(found) != 1 {
		t.Fatalf("there are %d objects of kind %s", len(found), kind)
	}
	return found[0]
}

func (m manifests) has(kind, namespace, name string) bool {
	return slices.ContainsFunc(m, func(object *unstructured.Unstructured) bool {
		return object.GetKind() == kind && object.GetNamespace() == namespace && object.GetName() == name
	})
}

// managerSettings returns the manager's environment variables with their defaults, which may be empty, from its --help.
func managerSettings(t *testing.T) map[string]string {
	t.Helper()
	help := must(exec.CommandContext(t.Context(), must(manager.Binary())(t), "--help").Output())(t)
	found := map[string]string{}
	for _, match := range regexp.MustCompile(`\[env: (\w+)=\S*\](?:\s+\[default: ([^\]]*)\])?`).FindAllStringSubmatch(string(help), -1) {
		found[match[1]] = match[2]
	}
	if found["WEBHOOK_PORT"] != "9443" || len(found) < 20 {
		t.Fatalf("the manager's --help could not be parsed: %v", found)
	}
	return found
}
