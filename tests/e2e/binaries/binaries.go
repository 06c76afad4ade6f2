// Package binaries builds what the end-to-end tests run: kube-apiserver, kubectl, etcd, Helm, cert-manager, an OCI registry and what
// a node consists of, from Go modules alone.
//
// Each is built once into a directory of a cache outside the repository whose name is a hash of everything that decides
// the result, so that a changed version never meets an old file, and only what has changed is built. Starting them is the
// cluster package's business, and of the tests.
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
	"time"
)

// kubernetesVersion is stamped into the binaries: `go build` alone leaves the placeholder v0.0.0-master, and API
// machinery derives feature defaults from the version that it reads there. Keep in step with k8s/go.mod.
const kubernetesVersion = "1.36.3"

// program is one file of the cache and how it comes into being.
type program struct {
	name, module, pkg, ldflags string
	// data is a directory of the program's own Go module that the tests need as well: `crds` of `deploy/crds`.
	data string
	// tags of the build.
	tags string
	// cgo says that the program needs a C compiler, and then the C library of the machine.
	cgo bool
	// nodeOnly says that the program is part of a node, which only root on Linux can run.
	nodeOnly bool
}

const versionLdflags = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=v" + kubernetesVersion +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36" +
	" -X k8s.io/component-base/version.gitTreeState=clean"

// The smallest first: the linker of kube-apiserver is what needs memory, and it should not meet another build.
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
	// Without the tag `seccomp`: libseccomp is no Go module. See realnode/runtime.
	{name: "runc", module: "runc", pkg: "github.com/opencontainers/runc", ldflags: "-s -w", tags: "urfave_cli_no_docs", cgo: true, nodeOnly: true},
	{name: "ptp", module: "cni", pkg: cni + "/main/ptp", ldflags: "-s -w", nodeOnly: true},
	{name: "host-local", module: "cni", pkg: cni + "/ipam/host-local", ldflags: "-s -w", nodeOnly: true},
}

const (
	containerd = "github.com/containerd/containerd/v2/cmd"
	cni        = "github.com/containernetworking/plugins/plugins"
	// noSnapshotters leaves out ways to keep layers that need more than a file system.
	noSnapshotters = "no_btrfs no_devmapper no_zfs"
)

// certManager is a Go module, in a version with a published bug: see binaries/cert-manager/go.mod.
const certManager = "github.com/cert-manager/cert-manager"

// Path names the built program, or says how to build it.
func Path(name string) (string, error) { return cachedFile(name, name) }

// CertManagerCRDs names the directory with the custom resource definitions of the cert-manager that is built.
func CertManagerCRDs() (string, error) { return cachedFile("cert-manager", "crds") }

// nodeVariable, if it is `none`, leaves the node out, which takes some minutes more to build and to test.
const nodeVariable = "CTRLMESH_NODE"

// NodeUnavailable says why no node runs here; it is empty if one does.
func NodeUnavailable() string {
	if os.Getenv(nodeVariable) == "none" {
		return nodeVariable + " is none"
	}
	if user := os.Geteuid(); runtime.GOOS != "linux" || user != 0 {
		return fmt.Sprintf("a node needs root on Linux (namespaces, mounts, control groups), and this is user %d on %s", user, runtime.GOOS)
	}
	return ""
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
	return "", fmt.Errorf("nobody knows how to build %s: add it to binaries.go", program)
}

// Build makes every program that is missing and tells `log` what it does. A build that fails leaves nothing behind that
// the next one could mistake for a program.
func Build(log io.Writer) error {
	source, err := sourceDir()
	if err != nil {
		return err
	}
	for _, p := range programs {
		if reason := NodeUnavailable(); p.nodeOnly && reason != "" {
			fmt.Fprintf(log, "%s: left out, as %s\n", p.name, reason)
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
			fmt.Fprintf(log, "%s: built already, %s\n", p.name, target)
			continue
		}
		begin := time.Now()
		module := filepath.Join(source, p.module)
		// The program comes last: where it is, everything is.
		if err := errors.Join(p.copyData(module, dir), p.buildProgram(module, target, log)); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		fmt.Fprintf(log, "%s: built in %s, %s\n", p.name, time.Since(begin).Round(time.Second), target)
	}
	return nil
}

// copyData puts the module's data directory beside the program, under its last name.
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
	if err := os.RemoveAll(target); err != nil { // of a failed attempt
		return err
	}
	return os.CopyFS(target, os.DirFS(filepath.Join(strings.TrimSpace(string(root)), p.data)))
}

func (p program) buildProgram(module, target string, log io.Writer) error {
	partial := target + fmt.Sprintf(".%d.partial", os.Getpid())
	defer os.Remove(partial)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-tags", p.tags, "-ldflags", p.ldflags, "-o", partial, p.pkg)
	cmd.Dir = module
	// Static where it can be, so that the file depends on nothing of the machine that made it.
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

// sourceDir finds the modules next to this file, whatever the working directory is.
func sourceDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the build has no source positions: do not use -trimpath for the tests")
	}
	return filepath.Dir(file), nil
}
