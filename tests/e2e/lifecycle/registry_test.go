package lifecycle

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/realnode"
	"ctrlmesh.kusionstack.io/e2e/registry"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file lets pods run a plugin from a registry in the cluster, as docs/registries.md says, and then another version
// of it.

const (
	registryImage = "localhost/ctrlmesh-e2e/registry:1"
	// registryHost is the address of a Service. The manager's NetworkPolicy allows its port.
	registryHost = "registry.registry.svc:8443"
	registryPort = "8443"
	// guardedPath is what both versions of the plugin refuse to delete, each with its own message.
	guardedPath = "/api/v1/namespaces/payments?dryRun=All"
)

const registryManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: registry}
---
apiVersion: v1
kind: Service
metadata: {name: registry, namespace: registry}
spec:
  selector: {app: registry}
  ports: [{port: ` + registryPort + `}]
---
apiVersion: v1
kind: Pod
metadata: {name: registry, namespace: registry, labels: {app: registry}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: registry
    image: ` + registryImage + `
    args: [serve, /registry.yaml]
    readinessProbe: {httpGet: {path: /v2/, port: ` + registryPort + `}, periodSeconds: 1}
`

// pluginVersion has the code, the settings and the expected response of a version.
type pluginVersion struct {
	tag, guest, settings, message string
	code                          int
}

func (l *lifecycle) testRegistryPlugin(t *testing.T) {
	op := l.mainOperator
	r := l.startRegistry(t)
	for _, v := range []pluginVersion{
		{"1.0", "hello", `{protectedNamespaces: [payments]}`, "payments is protected by the plugin hello", http.StatusForbidden},
		{"1.1", "scripted", `
      subscribe: [{verbs: [delete], resources: [namespaces]}]
      onRequest: [{then: {refuse: {code: 451, message: so says the second}}}]`, "so says the second", http.StatusUnavailableForLegalReasons},
	} {
		component := must(os.ReadFile(filepath.Join(os.Getenv("CTRLMESH_PLUGINS_DIR"), v.guest+".wasm")))(t)
		must(r.Push("you/guard", v.tag, component))(t)
		op.plugins = fmt.Sprintf(`
  plugins:
  - name: guard
    image: oci://%s/you/guard:%s
    timeoutMs: 100
    settings: %s
`, registryHost, v.tag, v.settings)
		begin := time.Now()
		op.apply(t, op.shardingConfigs())
		for _, condition := range []string{"PluginsResolved", "Enforced"} {
			op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition="+condition, "--all", "shardingconfigs", "--timeout="+waitTimeout.String())
		}
		t.Logf("version %s was enforced %s after it was configured", v.tag, rounded(time.Since(begin)))
		for _, pod := range op.podNames() {
			op.assertRefusedByPlugin(t, pod, v)
		}
	}
	op.assertStepsHandled(t)
	op.plugins = ""
	op.apply(t, op.shardingConfigs())
	op.waitEnforced(t)
	l.kubectl(t, "", "delete", "namespace/registry", "--timeout="+waitTimeout.String())
}

// startRegistry runs a registry in the cluster. Its content is lost with its pod.
func (l *lifecycle) startRegistry(t *testing.T) *registry.Registry {
	t.Helper()
	config := filepath.Join(t.TempDir(), "registry.yaml")
	check(t, os.WriteFile(config, must(registry.Configuration(":"+registryPort, "", ""))(t), 0o644))
	l.loadImage(t, realnode.Image{
		Name: registryImage, User: "1000", Entrypoint: []string{"/registry"},
		Files: map[string]string{"/registry": must(binaries.Path("registry"))(t), "/registry.yaml": config},
	})
	l.apply(t, registryManifest)
	l.kubectl(t, "", "wait", "--namespace=registry", "--for=condition=Ready", "pod/registry", "--timeout="+waitTimeout.String())
	pod := must(l.node.Client.CoreV1().Pods("registry").Get(t.Context(), "registry", meta.GetOptions{}))(t)
	return registry.Remote(pod.Status.PodIP+":"+registryPort, l.node.Dial)
}

// assertRefusedByPlugin asserts that a pod's sidecar runs this version.
func (op *operator) assertRefusedByPlugin(t *testing.T, pod string, v pluginVersion) {
	t.Helper()
	address, end, err := op.node.Forward(t.Context(), op.name, pod, sidecarPort)
	check(t, err)
	defer end()
	request := must(http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+address+guardedPath, nil))(t)
	response := must(http.DefaultClient.Do(request))(t)
	defer response.Body.Close()
	body := must(io.ReadAll(response.Body))(t)
	if response.StatusCode != v.code || !strings.Contains(string(body), v.message) {
		t.Errorf("with %s of version %s %s answers %s: %s", v.guest, v.tag, pod, response.Status, body)
	}
}
