package story

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/images"
	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/realnode"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file loads images and installs ctrlmesh as docs/install.md says.

const (
	// imagesVariable names a directory with the archives that `make images` writes. Without it debug builds are packed with their libraries.
	imagesVariable = "CTRLMESH_IMAGES"
	managerImage   = "localhost/ctrlmesh-e2e/manager:1"
	proxyImage     = "localhost/ctrlmesh-e2e/proxy:1"
	operatorImage  = "localhost/ctrlmesh-e2e/operator:1"
)

// deploy is the repository's directory with what is applied to a cluster, seen from this package.
var deploy = filepath.Join("..", "..", "..", "deploy")

func (s *story) isInstalled(t *testing.T) {
	begin := time.Now()
	s.loadImages(t)
	t.Logf("images were loaded after %s", rounded(time.Since(begin)))
	s.overlay = s.writeOverlay(t)
	begin = time.Now()
	s.kubectl(t, "", "apply", "--kustomize="+s.overlay)
	s.kubectl(t, "", "rollout", "status", "--namespace=ctrlmesh", "deployment/ctrlmesh-manager", "--timeout="+patience.String())
	t.Logf("two managers were ready %s after kubectl apply", rounded(time.Since(begin)))
}

func (s *story) loadImages(t *testing.T) {
	t.Helper()
	if archives := os.Getenv(imagesVariable); archives != "" {
		s.managerImage = s.loadReleased(t, archives, "ctrlmesh-manager")
		s.proxyImage = s.loadReleased(t, archives, "ctrlmesh-proxy")
	} else {
		s.loadBuilt(t)
	}
	program := filepath.Join(t.TempDir(), "operator")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "ctrlmesh.kusionstack.io/e2e/operator")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, output)
	}
	s.load(t, realnode.Image{Name: operatorImage, User: "1000", Entrypoint: []string{"/operator"}, Files: map[string]string{"/operator": program}})
}

// loadReleased loads what people install, and returns its name.
func (s *story) loadReleased(t *testing.T, archives, program string) string {
	t.Helper()
	archive, name, err := images.Find(archives, program)
	check(t, err)
	check(t, s.node.LoadImage(t.Context(), archive))
	t.Logf("%s of %s", name, archive)
	return name
}

// loadBuilt packs what was built for all other tests.
func (s *story) loadBuilt(t *testing.T) {
	t.Helper()
	s.managerImage, s.proxyImage = managerImage, proxyImage
	// Without any authority the manager asks no registry, not even one that speaks plain HTTP.
	authorities := filepath.Join(t.TempDir(), "ca.crt")
	check(t, os.WriteFile(authorities, s.node.Config().CAData, 0o644))
	s.load(t, realnode.Image{
		Name: s.managerImage, User: "65532", Entrypoint: []string{"/ctrlmesh-manager"},
		Files: map[string]string{"/ctrlmesh-manager": must(manager.Binary())(t), "/etc/ssl/certs/ca-certificates.crt": authorities},
	})
	s.load(t, realnode.Image{
		Name: s.proxyImage, User: "1359", Entrypoint: []string{"/ctrlmesh-proxy"},
		Files: map[string]string{"/ctrlmesh-proxy": must(sidecar.Binary())(t)},
	})
}

func (s *story) load(t *testing.T, image realnode.Image) {
	t.Helper()
	image = must(image.WithLibraries(t.Context()))(t)
	archive := filepath.Join(t.TempDir(), "image.tar")
	check(t, errors.Join(image.Write(archive), s.node.LoadImage(t.Context(), archive), os.Remove(archive)))
}

// writeOverlay makes the overlay of docs/install.md, which says where images are, and that a registry in the cluster speaks plain HTTP.
func (s *story) writeOverlay(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(s.node.Dir, "overlay")
	check(t, os.MkdirAll(dir, 0o755))
	base := must(filepath.Abs(filepath.Join(deploy, "base")))(t)
	// Kustomize knows directories by relative paths alone, without symbolic links in between.
	base = must(filepath.Rel(dir, must(filepath.EvalSymlinks(base))(t)))(t)
	name, tag := nameAndTag(s.managerImage)
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
            env:
            - {name: CTRLMESH_PROXY_IMAGE, value: %q}
            - {name: CTRLMESH_INSECURE_REGISTRIES, value: %q}
`, base, name, tag, s.proxyImage, registryHost)
	check(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.TrimLeft(text, "\n")), 0o644))
	return dir
}

// nameAndTag are the parts of an image's name, whose registry may have a port.
func nameAndTag(image string) (name, tag string) {
	at := strings.LastIndex(image, ":")
	return image[:at], image[at+1:]
}
