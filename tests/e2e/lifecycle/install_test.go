package lifecycle

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/images"
	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/realnode"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file loads images and installs ctrlmesh as docs/install.md says.

const (
	// imagesVariable is a directory with the archives that `make images` writes. Without it debug builds are packed
	// with their shared libraries.
	imagesVariable = "CTRLMESH_IMAGES"
	managerImage   = "localhost/ctrlmesh-e2e/manager:1"
	proxyImage     = "localhost/ctrlmesh-e2e/proxy:1"
	operatorImage  = "localhost/ctrlmesh-e2e/operator:1"
)

// deployDir is the repository's directory of manifests, relative to this package.
var deployDir = filepath.Join("..", "..", "..", "deploy")

func (l *lifecycle) testInstall(t *testing.T) {
	begin := time.Now()
	l.loadImages(t)
	l.loadOperator(t)
	t.Logf("images were loaded after %s", rounded(time.Since(begin)))
	l.overlay = l.writeOverlay(t)
	l.applyOverlay(t)
}

func (l *lifecycle) applyOverlay(t *testing.T) {
	t.Helper()
	begin := time.Now()
	l.kubectl(t, "", "apply", "--kustomize="+l.overlay)
	l.waitManagersReady(t)
	t.Logf("managers were ready %s after kubectl apply", rounded(time.Since(begin)))
}

// waitManagersReady waits until only pods of the current managers exist: terminating ones still answer webhooks for
// some seconds.
func (l *lifecycle) waitManagersReady(t *testing.T) {
	t.Helper()
	l.kubectl(t, "", "rollout", "status", "--namespace=ctrlmesh", "deployment/ctrlmesh-manager", "--timeout="+waitTimeout.String())
	eventually(t, "no pod of earlier managers is left", func() error {
		pods := must(l.node.Client.CoreV1().Pods("ctrlmesh").List(t.Context(), meta.ListOptions{LabelSelector: "app.kubernetes.io/name=ctrlmesh-manager"}))(t)
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp != nil {
				return fmt.Errorf("%s is terminating", pod.Name)
			}
		}
		return nil
	})
}

func (l *lifecycle) loadImages(t *testing.T) {
	t.Helper()
	if archives := os.Getenv(imagesVariable); archives != "" {
		l.managerImage = l.loadReleaseImage(t, archives, "ctrlmesh-manager")
		l.proxyImage = l.loadReleaseImage(t, archives, "ctrlmesh-proxy")
		return
	}
	l.managerImage, l.proxyImage = managerImage, proxyImage
	l.loadPrograms(t, must(manager.Binary())(t), must(sidecar.Binary())(t))
}

func (l *lifecycle) loadOperator(t *testing.T) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "operator")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "ctrlmesh.kusionstack.io/e2e/operator")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, output)
	}
	l.loadImage(t, realnode.Image{Name: operatorImage, User: "1000", Entrypoint: []string{"/operator"}, Files: map[string]string{"/operator": program}})
}

// loadReleaseImage loads the image that people install, and returns its name.
func (l *lifecycle) loadReleaseImage(t *testing.T, archives, program string) string {
	t.Helper()
	archive, name, err := images.Find(archives, program)
	check(t, err)
	check(t, l.node.LoadImage(t.Context(), archive))
	t.Logf("%s from %s", name, archive)
	return name
}

// loadPrograms packs two programs as the images of manager and sidecar.
func (l *lifecycle) loadPrograms(t *testing.T, manager, proxy string) {
	t.Helper()
	// Without any authority the manager refuses to pull, even from a registry with plain HTTP.
	authorities := filepath.Join(t.TempDir(), "ca.crt")
	check(t, os.WriteFile(authorities, l.node.Config().CAData, 0o644))
	l.loadImage(t, realnode.Image{
		Name: l.managerImage, User: "65532", Entrypoint: []string{"/ctrlmesh-manager"},
		Files: map[string]string{"/ctrlmesh-manager": manager, "/etc/ssl/certs/ca-certificates.crt": authorities},
	})
	l.loadImage(t, realnode.Image{
		Name: l.proxyImage, User: "1359", Entrypoint: []string{"/ctrlmesh-proxy"},
		Files: map[string]string{"/ctrlmesh-proxy": proxy},
	})
}

func (l *lifecycle) loadImage(t *testing.T, image realnode.Image) {
	t.Helper()
	image = must(image.WithLibraries(t.Context()))(t)
	archive := filepath.Join(t.TempDir(), "image.tar")
	check(t, errors.Join(image.Write(archive), l.node.LoadImage(t.Context(), archive), os.Remove(archive)))
}

// writeOverlay writes an overlay like that of docs/install.md, with images and settings of its own.
func (l *lifecycle) writeOverlay(t *testing.T) string {
	t.Helper()
	return l.writeOverlayOn(t, deployDir)
}

// writeOverlayOn does the same for another version's directory of manifests.
func (l *lifecycle) writeOverlayOn(t *testing.T, deploy string) string {
	t.Helper()
	dir := filepath.Join(l.node.Dir, "overlay")
	check(t, os.MkdirAll(dir, 0o755))
	base := must(filepath.Abs(filepath.Join(deploy, "base")))(t)
	// Kustomize only accepts relative paths to directories, without symbolic links.
	base = must(filepath.Rel(dir, must(filepath.EvalSymlinks(base))(t)))(t)
	name, tag := nameAndTag(l.managerImage)
	env := fmt.Sprintf("\n            - {name: CTRLMESH_PROXY_IMAGE, value: %q}", l.proxyImage)
	for _, variable := range slices.Sorted(maps.Keys(l.settings)) {
		env += fmt.Sprintf("\n            - {name: %s, value: %q}", variable, l.settings[variable])
	}
	text := fmt.Sprintf(`
resources: [%s]
images:
- {name: ctrlmesh-manager, newName: %s, newTag: %q}
patches:
- patch: |
    apiVersion: apps/v1
    kind: Deployment
    metadata: {name: ctrlmesh-manager, namespace: ctrlmesh}
    spec:
      template:
        spec:
          containers:
          - name: manager
            env:%s
`, base, name, tag, env)
	check(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.TrimLeft(text, "\n")), 0o644))
	return dir
}

// nameAndTag splits an image's name, whose registry may have a port.
func nameAndTag(image string) (name, tag string) {
	at := strings.LastIndex(image, ":")
	return image[:at], image[at+1:]
}
