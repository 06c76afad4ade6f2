// Package binaries builds what the end-to-end tests run: kube-apiserver, kubectl and etcd, from Go modules alone.
//
// They are built once into a cache outside the repository whose name is a hash of everything that decides the result, so
// that a changed version never meets an old file. Starting them is the cluster package's business.
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
	"time"
)

// kubernetesVersion is stamped into the binaries: `go build` alone leaves the placeholder v0.0.0-master, and API
// machinery derives feature defaults from the version that it reads there. Keep in step with k8s/go.mod.
const kubernetesVersion = "1.36.3"

// program is one file of the cache and how it comes into being.
type program struct {
	name, module, pkg, ldflags string
}

const stamp = "-s -w" +
	" -X k8s.io/component-base/version.gitVersion=v" + kubernetesVersion +
	" -X k8s.io/component-base/version.gitMajor=1" +
	" -X k8s.io/component-base/version.gitMinor=36" +
	" -X k8s.io/component-base/version.gitTreeState=clean"

// The smallest first: the linker of kube-apiserver is what needs memory, and it should not meet another build.
var programs = []program{
	{"etcd", "etcd", ".", "-s -w"},
	{"kube-apiserver", "k8s", "k8s.io/kubernetes/cmd/kube-apiserver", stamp},
	{"kubectl", "k8s", "k8s.io/kubernetes/cmd/kubectl", stamp},
}

// Path names the built program, or says how to build it.
func Path(name string) (string, error) {
	dir, err := cacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built yet: run `go run ./cmd/build` in tests/e2e (%w)", name, err)
	}
	return path, nil
}

// Build makes every program that is missing and tells `log` what it does. A build that fails leaves nothing behind that
// the next one could mistake for a program.
func Build(log io.Writer) error {
	dir, err := cacheDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cache directory: %w", err)
	}
	source, err := sourceDir()
	if err != nil {
		return err
	}
	for _, p := range programs {
		target := filepath.Join(dir, p.name)
		if _, err := os.Stat(target); err == nil {
			fmt.Fprintf(log, "%s: built already, %s\n", p.name, target)
			continue
		}
		begin := time.Now()
		if err := p.build(filepath.Join(source, p.module), target, log); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		fmt.Fprintf(log, "%s: built in %s, %s\n", p.name, time.Since(begin).Round(time.Second), target)
	}
	return nil
}

func (p program) build(module, target string, log io.Writer) error {
	partial := target + fmt.Sprintf(".%d.partial", os.Getpid())
	defer os.Remove(partial)
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", p.ldflags, "-o", partial, p.pkg)
	cmd.Dir = module
	// Static, so that the file depends on nothing of the machine that made it.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(partial, target)
}

// cacheDir is `$CTRLMESH_CACHE/e2e/<hash>`, by default below `~/.cache/ctrlmesh`.
func cacheDir() (string, error) {
	root := os.Getenv("CTRLMESH_CACHE")
	if root == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no home directory for the cache, set CTRLMESH_CACHE: %w", err)
		}
		root = filepath.Join(home, ".cache", "ctrlmesh")
	}
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	digest := sha256.New()
	fmt.Fprintln(digest, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, p := range programs {
		fmt.Fprintln(digest, p.name, p.pkg, p.ldflags)
		for _, file := range []string{"go.mod", "go.sum", "main.go"} {
			text, err := os.ReadFile(filepath.Join(source, p.module, file))
			if errors.Is(err, os.ErrNotExist) && file == "main.go" {
				continue // k8s names its mains by `tool` lines
			}
			if err != nil {
				return "", err
			}
			digest.Write(text)
		}
	}
	return filepath.Join(root, "e2e", hex.EncodeToString(digest.Sum(nil))[:16]), nil
}

// sourceDir finds the two modules next to this file, whatever the working directory is.
func sourceDir() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the build has no source positions: do not use -trimpath for the tests")
	}
	return filepath.Dir(file), nil
}
