package realnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

// cachedPrograms are built by the binaries package.
var cachedPrograms = []string{
	"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl",
	"containerd", "containerd-shim-runc-v2", "ctr", "runc", "ptp", "host-local",
}

// nodePrograms are the repository's own, small enough to be built for each node.
var nodePrograms = []string{"pid1", "runtime", "workload"}

// programPaths maps names to paths.
type programPaths map[string]string

// findPrograms fills a directory with links to the cached programs, and builds the node's own.
func findPrograms(ctx context.Context, dir string) (programPaths, error) {
	if _, err := exec.LookPath("mount"); err != nil {
		return nil, fmt.Errorf("kubelet needs mount(8), from the package util-linux or mount: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	found := programPaths{}
	for _, name := range cachedPrograms {
		path, err := binaries.Path(name)
		if err != nil {
			return nil, err
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		found[name] = path
	}
	args := []string{"build", "-buildvcs=false", "-ldflags=-s -w", "-o", dir + string(filepath.Separator)}
	for _, name := range nodePrograms {
		args = append(args, "ctrlmesh.kusionstack.io/e2e/realnode/"+name)
		found[name] = filepath.Join(dir, name)
	}
	build := exec.CommandContext(ctx, "go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the node's own programs: %w\n%s", err, output)
	}
	return found, nil
}

// dirs returns the directories of the cache that must be visible on the node.
func (p programPaths) dirs() []string {
	var dirs []string
	for _, name := range cachedPrograms {
		dirs = append(dirs, filepath.Dir(p[name]))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}
