package lifecycle

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/realnode"
	"ctrlmesh.kusionstack.io/e2e/registry"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file lets kubelet pull the sidecar's image from a registry that requires a login.

const (
	privateRegistryImage = "localhost/ctrlmesh-e2e/private-registry:1"
	privateImage         = realnode.PlainRegistry + "/ctrlmesh/proxy:1"
	pullSecret           = "pulls-sidecars"
)

var (
	privateIP, privatePort, _ = strings.Cut(realnode.PlainRegistry, ":")
	privateRegistryManifest   = fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: private, namespace: settings}
spec: {clusterIP: %[1]s, selector: {app: private}, ports: [{port: %[2]s}]}
---
apiVersion: v1
kind: Pod
metadata: {name: private, namespace: settings, labels: {app: private}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: registry, image: %[3]s, args: [serve, /registry.yaml], readinessProbe: {tcpSocket: {port: %[2]s}, periodSeconds: 1}}]
`, privateIP, privatePort, privateRegistryImage)
)

// testPullSecret: injection gives a pod the name of the Secret from the managers' settings, and its sidecar starts once
// a Secret of that name exists in its namespace.
func (op *operator) testPullSecret(t *testing.T) {
	op.startPrivateRegistry(t)
	before := op.lifecycle.proxyImage
	op.lifecycle.proxyImage, op.lifecycle.settings["CTRLMESH_PROXY_IMAGE_PULL_SECRETS"] = privateImage, pullSecret
	op.writeOverlay(t)
	op.applyOverlay(t)
	op.createPod(t, "private-sidecar", nil, nil, fmt.Sprintf(`
serviceAccountName: operator
restartPolicy: Never
containers: [{name: main, image: %s, args: [--once, --app=%s]}]
`, operatorImage, op.name))
	eventually(t, "the sidecar can't be pulled", func() error {
		status, _ := realnode.ContainerStatus(op.getPod(t, "private-sidecar"), proxyContainer)
		if waiting := status.State.Waiting; waiting == nil || waiting.Reason != "ErrImagePull" && waiting.Reason != "ImagePullBackOff" {
			return fmt.Errorf("the sidecar is %+v", status.State)
		}
		return nil
	})
	op.createPullSecret(t)
	op.waitTerminated(t, "private-sidecar")
	assertNamespaces(t, "private-sidecar sees", op.listedNamespaces(t, "private-sidecar", "main"), op.teams[0])
	found := op.getPod(t, "private-sidecar")
	if image := sidecarImage(found); image != privateImage || len(found.Spec.ImagePullSecrets) != 1 {
		t.Errorf("the sidecar's image is %s, pulled with %v", image, found.Spec.ImagePullSecrets)
	}
	op.lifecycle.proxyImage = before
	delete(op.lifecycle.settings, "CTRLMESH_PROXY_IMAGE_PULL_SECRETS")
	op.writeOverlay(t)
	op.applyOverlay(t)
	op.kubectl(t, "", "delete", "--namespace="+op.name, "service/private")
}

// startPrivateRegistry runs the registry and pushes the sidecar's image. The node has no image of that name.
func (op *operator) startPrivateRegistry(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	config, users := filepath.Join(dir, "registry.yaml"), filepath.Join(dir, "users")
	check(t, errors.Join(os.WriteFile(config, must(registry.Configuration(":"+privatePort, "/users", "/tmp/images"))(t), 0o644), os.WriteFile(users, registry.HtpasswdFile(), 0o644)))
	op.lifecycle.loadImage(t, realnode.Image{
		Name: privateRegistryImage, User: "1000", Entrypoint: []string{"/registry"},
		Files: map[string]string{"/registry": must(binaries.Path("registry"))(t), "/registry.yaml": config, "/users": users},
	})
	op.apply(t, privateRegistryManifest)
	op.kubectl(t, "", "wait", "--namespace="+op.name, "--for=condition=Ready", "pod/private", "--timeout="+waitTimeout.String())
	image := realnode.Image{
		Name: privateImage, User: "1359", Entrypoint: []string{"/ctrlmesh-proxy"},
		// It must differ from the image of all other pods: kubelet does not give an image that was pulled with a Secret
		// to pods without it.
		Labels: map[string]string{"pulled": "with a Secret"},
		Files:  map[string]string{"/ctrlmesh-proxy": must(sidecar.Binary())(t)},
	}
	image = must(image.WithLibraries(t.Context()))(t)
	archive := filepath.Join(dir, "image.tar")
	check(t, image.Write(archive))
	address := op.getPod(t, "private").Status.PodIP + ":" + privatePort
	check(t, registry.RemoteWithLogin(address, op.node.Dial).PushImage("ctrlmesh/proxy", "1", archive))
}

func (op *operator) createPullSecret(t *testing.T) {
	t.Helper()
	login := base64.StdEncoding.EncodeToString([]byte(registry.User + ":" + registry.Password))
	secret := &core.Secret{
		ObjectMeta: meta.ObjectMeta{Name: pullSecret}, Type: core.SecretTypeDockerConfigJson,
		StringData: map[string]string{core.DockerConfigJsonKey: fmt.Sprintf(`{"auths": {%q: {"auth": %q}}}`, realnode.PlainRegistry, login)},
	}
	must(op.node.Client.CoreV1().Secrets(op.name).Create(t.Context(), secret, meta.CreateOptions{}))(t)
}
