package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// This file runs the loop of docs/install.md that removes our finalizers if the managers were uninstalled first.

const (
	handOverFinalizer  = "ctrlmesh.kusionstack.io/hand-over"
	protectedFinalizer = "finalizer.ctrlmesh.kusionstack.io/protected"
	foreignFinalizer   = "example.com/foreign"
)

// finalizerCases are objects with finalizers, and those that are left after the loop. A deleted object without
// finalizers is gone.
var finalizerCases = []struct {
	kind, name    string
	before, after []string
	isDeleted     bool
}{
	{"ShardingConfig", "kept", []string{foreignFinalizer, handOverFinalizer, protectedFinalizer}, []string{foreignFinalizer}, false},
	{"ShardingConfig", "deleted", []string{handOverFinalizer}, nil, true},
	// This mark tells the next installation that the object was KusionStack's, and keeps it inactive.
	{"FaultInjection", "kept", []string{protectedFinalizer, foreignFinalizer}, []string{protectedFinalizer, foreignFinalizer}, false},
	{"FaultInjection", "deleted", []string{protectedFinalizer, foreignFinalizer}, []string{foreignFinalizer}, true},
	{"CircuitBreaker", "kept", []string{protectedFinalizer}, []string{protectedFinalizer}, false},
	{"CircuitBreaker", "deleted", []string{protectedFinalizer}, nil, true},
}

// shardSpec is the smallest valid spec of a ShardingConfig.
func shardSpec() map[string]any {
	labels := func() map[string]any { return map[string]any{"matchLabels": map[string]any{"shard": "a"}} }
	return map[string]any{"selector": labels(), "limits": []any{map[string]any{"selector": labels()}}}
}

func TestDocumentedLoopRemovesOurFinalizers(t *testing.T) {
	t.Parallel()
	plane := startOwnControlPlane(t)
	client := must(dynamic.NewForConfig(plane.cluster.AdminConfig()))(t)
	for _, file := range filesIn(t, deployDir+"/crd") {
		testDefinition(t, client, readObjects(t, file)[0])
	}
	for _, object := range finalizerCases {
		spec := map[string]any{"selector": map[string]any{}}
		if object.kind == "ShardingConfig" {
			spec = shardSpec()
		}
		made := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "ctrlmesh.kusionstack.io/v1alpha1", "kind": object.kind, "spec": spec,
		}}
		made.SetNamespace("default")
		made.SetName(object.name)
		made.SetFinalizers(object.before)
		_, err := createObject(t, client, made)
		check(t, err)
		if object.isDeleted {
			check(t, resourceClient(t, client, made).Delete(t.Context(), object.name, meta.DeleteOptions{}))
		}
	}
	admin := must(plane.cluster.UserKubeconfig("installer", "system:masters"))(t)
	// Each round removes one finalizer of each object.
	for runs := 0; runDocumentedLoop(t, admin) != ""; runs++ {
		if runs > 3 {
			t.Fatal("the loop never ends")
		}
	}
	for _, object := range finalizerCases {
		named := &unstructured.Unstructured{}
		named.SetKind(object.kind)
		named.SetNamespace("default")
		got, err := resourceClient(t, client, named).Get(t.Context(), object.name, meta.GetOptions{})
		if object.isDeleted && object.after == nil {
			if !apierrors.IsNotFound(err) {
				t.Errorf("%s %s still exists: %v, %v", object.kind, object.name, got, err)
			}
			continue
		}
		check(t, err)
		if !slices.Equal(got.GetFinalizers(), object.after) {
			t.Errorf("%s %s has %q, want %q", object.kind, object.name, got.GetFinalizers(), object.after)
		}
	}
}

// runDocumentedLoop runs the loop once and returns what it patched. A patch fails if the previous one changed the same
// object.
func runDocumentedLoop(t *testing.T, kubeconfig string) string {
	t.Helper()
	const begin = "kubectl get shardingconfigs,circuitbreakers,faultinjections -A -o go-template="
	_, loop, isThere := strings.Cut(string(must(os.ReadFile("../../docs/install.md"))(t)), "```sh\n"+begin)
	loop, _, isWhole := strings.Cut(loop, "```\n")
	if !isThere || !isWhole {
		t.Fatalf("docs/install.md does not say `%s`", begin)
	}
	kubectl := must(binaries.Path("kubectl"))(t)
	command := exec.CommandContext(t.Context(), "sh", "-uc", begin+loop+"true\n")
	command.Env = []string{"HOME=" + newDir(t), "KUBECONFIG=" + kubeconfig, "PATH=" + filepath.Dir(kubectl) + ":" + os.Getenv("PATH")}
	var errs strings.Builder
	command.Stderr = &errs
	out, err := command.Output()
	if err != nil {
		t.Fatalf("the loop failed: %v\n%s%s", err, out, errs.String())
	}
	return string(out)
}
