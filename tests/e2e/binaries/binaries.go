// Package binaries builds the programs that the end-to-end tests run, from Go modules alone: kube-apiserver, kubectl,
// etcd, Helm, cert-manager, an OCI registry and the programs of a node.
//
// Each program is built once, into a cache outside the repository. The directory is named by a hash of all inputs, so a
// changed version never finds an old file, and only what changed is rebuilt. The cluster package and the tests start
// the programs.
package binaries

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// kubernetesVersion is stamped into the binaries: `go build` alone leaves the placeholder v0.0.0-master, and API
// machinery derives feature defaults from this version. Keep it in step with k8s/go.mod.
const kubernetesVersion = "1.36.3"

// program describes one binary of the cache and how to build it.
type program struct {
	name, module, pkg, ldflags string
	// data is a directory of the program's Go module that the tests also need, such as `deploy/crds`; its base name is
	// kept.
	data string
	// tags are build tags.
	tags string
	// cgo marks a program that needs a C compiler and is linked to the machine's C library.
	cgo bool
	// nodeOnly marks a program of a node, which runs only as root on Linux.
	nodeOnly bool
}

const versionLdflags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=v" + kubernetesVersion +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36" +
	" -X k8s.io/component-base/version.gitTreeState=clean"

// Smallest first: linking kube-apiserver needs much memory and must not run beside another build.
var programs = []program{
	{name: "etcd", module: "etcd", pkg: ".", ldflags: "-s -w"},
	{name: "cert-manager", module: "cert-manager", pkg: certManager + "/cmd/controller", ldflags: "-s -w", data: "deploy/crds"},
	{name: "registry", module: "registry", pkg: ".", ldflags: "-s -w"},
	{name: "helm", module: "helm", pkg: "helm.sh/helm/v4/cmd/helm", ldflags: "-s -w"},
	{name: "kube-apiserver", module: "k8s", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", ldflags: versionLdflags},
	{name: "kubectl", module: "k8s", pkg: "k8s.io/kubernetes/cmd/kubectl", ldflags: versionLdflags},
	{name: "kube-controller-manager", module: "k8s", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager", ldflags: versionLdflags, nodeOnly: true},
	{name: "kube-scheduler", module: "k8s", pkg: "k8s.io/kubernetes/cmd/kube-scheduler", ldflags: versionLdflags, nodeOnly: true},
	{name: "kubelet", module: "k8s", pkg: "k8s.io/kubernetes/cmd/kubelet", ldflags: versionLdflags, nodeOnly: true},
	{name: "containerd", module: "containerd", pkg: containerd + "/containerd", ldflags: "-s -w", tags: noSnapshotters, nodeOnly: true},
	{name: "containerd-shim-runc-v2", module: "containerd", pkg: containerd + "/containerd-shim-runc-v2", ldflags: "-s -w", nodeOnly: true},
	{name: "ctr", module: "containerd", pkg: containerd + "/ctr", ldflags: "-s -w", tags: noSnapshotters, nodeOnly: true},
	// Built without the tag `seccomp`, because libseccomp is not a Go module. See realnode/runtime.
	{name: "runc", module: "runc", pkg: "github.com/opencontainers/runc", ldflags: "-s -w", tags: "urfave_cli_no_docs", cgo: true, nodeOnly: true},
	{name: "ptp", module: "cni", pkg: cni + "/main/ptp", ldflags: "-s -w", nodeOnly: true},
	{name: "host-local", module: "cni", pkg: cni + "/ipam/host-local", ldflags: "-s -w", nodeOnly: true},
}

const (
	containerd = "github.com/containerd/containerd/v2/cmd"
	cni        = "github.com/containernetworking/plugins/plugins"
	// noSnapshotters excludes snapshotters that need more than a file system.
	noSnapshotters = "no_btrfs no_devmapper no_zfs"
)

// certManager is a Go module, used in a version with a published bug: see binaries/cert-manager/go.mod.
const certManager = "github.com/cert-manager/cert-manager"

// Path returns the path of a built program, or an error that says how to build it.
func Path(name string) (string, error) { return cachedFile(name, name) }

// CertManagerCRDs returns the directory with the custom resource definitions of the cached cert-manager.
func CertManagerCRDs() (string, error) { return cachedFile("cert-manager", "crds") }

// nodeVariable excludes the node's programs if its value is `none`; they take some minutes more to build and test. If it is
// `required`, tests that need a node or its privileges fail where none can run.
const nodeVariable, required = "CTRLMESH_NODE", "required"

// NodeUnavailable says why no node can run here; it is empty if one can.
func NodeUnavailable() string {
	if os.Getenv(nodeVariable) == "none" {
		return nodeVariable + " is none"
	}
	if user := os.Geteuid(); runtime.GOOS != "linux" || user != 0 {
		return fmt.Sprintf("a node needs root on Linux (namespaces, mounts, control groups), and this is user %d on %s", user, runtime.GOOS)
	}
	return ""
}

// NeedNode skips a test where no node can run, or fails it if a node is required.
func NeedNode(t *testing.T) {
	t.Helper()
	reason := NodeUnavailable()
	if reason == "" {
		return
	}
	if os.Getenv(nodeVariable) == required {
		t.Fatal(reason)
	}
	t.Skip("skipped: " + reason)
}

func cachedFile(program, file string) (string, error) {
	for _, p := range programs {
		if p.name != program {
			continue
		}
		dir, err := p.cacheDir()
		if err != nil {
			return "", err
		}
		path := filepath.Join(dir, file)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s is not built yet: run `go run ./cmd/build` in tests/e2e (%w)", program, err)
		}
		return path, nil
	}
	return "", fmt.Errorf("unknown program %s: add it to binaries.go", program)
}

// Build builds every missing program, those of a node only if needed, and logs to `log`. A failed build leaves nothing that
// the next one could take for a program.
func Build(log io.Writer, withNode bool) error {
	source, err := sourceDir()
	if err != nil {
		return err
	}
	for _, p := range programs {
		if p.nodeOnly && !withNode {
			continue
		}
		if reason := NodeUnavailable(); p.nodeOnly && reason != "" {
			fmt.Fprintf(log, "%s: skipped: %s\n", p.name, reason)
			continue
		}
		dir, err := p.cacheDir()
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the cache directory: %w", err)
		}
		target := filepath.Join(dir, p.name)
		if _, err := os.Stat(target); err == nil {
			fmt.Fprintf(log, "%s: already built, %s\n", p.name, target)
			continue
		}
		begin := time.Now()
		module := filepath.Join(source, p.module)
		// The program is renamed last, so if it exists, all other files do.
		if err := errors.Join(p.copyData(module, dir), p.buildProgram(module, target, log)); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		fmt.Fprintf(log, "%s: built in %s, %s\n", p.name, time.Since(begin).Round(time.Second), target)
	}
	return nil
}

// copyData copies the module's data directory beside the program, under its base name.
func (p program) copyData(module, dir string) error {
	if p.data == "" {
		return nil
	}
	list := exec.Command("go", "list", "-f", "{{.Module.Dir}}", p.pkg)
	list.Dir = module
	list.Env = append(os.Environ(), "GOWORK=off")
	root, err := list.Output()
	if err != nil {
		return fmt.Errorf("find the module of %s: %w", p.pkg, err)
	}
	target := filepath.Join(dir, filepath.Base(p.data))
	if err := os.RemoveAll(target); err != nil { // left by a failed attempt
		return err
	}
	return os.CopyFS(target, os.DirFS(filepath.Join(strings.TrimSpace(string(root)), p.data)))
}

func (p program) buildProgram(module, target string, log io.Writer) error {
	partial := target + fmt.Sprintf(".%d.partial", os.Getpid())
	defer os.Remove(partial)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", p.tags, "-ldflags", p.ldflags, "-o", partial, p.pkg)
	cmd.Dir = module
	// Static where possible, so that the file depends on nothing of the build machine.
	cgo := "CGO_ENABLED=0"
	if p.cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = append(os.Environ(), cgo, "GOWORK=off")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(partial, target)
}

// CacheRoot is `$CTRLMESH_CACHE`, by default `~/.cache/ctrlmesh`.
func CacheRoot() (string, error) {
	if root := os.Getenv("CTRLMESH_CACHE"); root != "" {
		return root, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no home directory for the cache, set CTRLMESH_CACHE: %w", err)
	}
	return filepath.Join(home, ".cache", "ctrlmesh"), nil
}

// cacheDir is `e2e/<hash>` below CacheRoot.
func (p program) cacheDir() (string, error) {
	root, err := CacheRoot()
	if err != nil {
		return "", err
	}
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	digest := sha256.New()
	fmt.Fprintln(digest, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	fmt.Fprintln(digest, p.name, p.pkg, p.ldflags, p.data)
	if p.tags != "" {
		fmt.Fprintln(digest, p.tags)
	}
	for _, file := range []string{"go.mod", "go.sum", "main.go"} {
		text, err := os.ReadFile(filepath.Join(source, p.module, file))
		if errors.Is(err, os.ErrNotExist) && file == "main.go" {
			continue // the other modules name their mains by `tool` lines
		}
		if err != nil {
			return "", err
		}
		digest.Write(text)
	}
	return filepath.Join(root, "e2e", hex.EncodeToString(digest.Sum(nil))[:16]), nil
}

// sourceDir returns the directory of this file, independent of the working directory.
func sourceDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the binary has no source positions: do not use -trimpath for the tests")
	}
	return filepath.Dir(file), nil
}
