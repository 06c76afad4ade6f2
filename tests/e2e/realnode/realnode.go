// Package realnode runs a cluster of one real node for tests: etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
// containerd, runc and kubelet, in namespaces of their own.
//
// The node is a machine in a directory: it has its own file system, processes and network, joined to the test by an open
// file alone. So it needs nothing that the machine would have to have installed, changes nothing there, and ends as a whole.
// Services are translated by this package in place of kube-proxy. See docs/adr, "The node of the tests".
package realnode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/process"
	"k8s.io/client-go/kubernetes"
)

const (
	// IP is the node's address. Pods and the API server's webhooks reach each other by it, the machine does not.
	IP = "10.88.254.1"
	// podCIDR is where pods get their addresses from.
	podCIDR = "10.88.0.0/24"
	// readyDeadline covers a busy machine; a quiet one needs 12 s.
	readyDeadline = 3 * time.Minute
	pollInterval  = 50 * time.Millisecond
)

// Options of a node. The zero value is a plain one.
type Options struct {
	// Name of the node, in the API and to itself: `node` if empty.
	Name string
	// APIServerFlags are added to kube-apiserver's command line.
	APIServerFlags []string
}

// Node is a running cluster of one node.
type Node struct {
	// Dir holds the node's files, data, keys and logs.
	Dir string
	// Name of the node.
	Name string
	// Cluster is its control plane.
	Cluster *cluster.Cluster
	// Kubeconfig of an administrator, for programs on the machine and on the node alike.
	Kubeconfig string
	// Client of the same.
	Client *kubernetes.Clientset

	programs programPaths
	pid1     *process.Process
	spawner  *process.Spawner
	network  *nodeNetwork
	cgroup   *nodeCgroup
	// processes are the programs that need no more than to be started, for their logs.
	processes []*process.Process
	// cleanups what goes on in this process, the last first.
	cleanups []func()
}

// Start brings a node up and returns when pods can run there. The directory must exist; the caller removes it after Stop.
func Start(ctx context.Context, dir string, options Options) (*Node, error) {
	if reason := binaries.NodeUnavailable(); reason != "" {
		return nil, errors.New(reason)
	}
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	dir, err := filepath.EvalSymlinks(dir) // the node sees it under its own name only
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if options.Name == "" {
		options.Name = "node"
	}
	n := &Node{Dir: dir, Name: options.Name}
	if err := n.start(ctx, options); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

func (n *Node) start(ctx context.Context, options Options) error {
	var err error
	if n.programs, err = findPrograms(ctx, n.path("bin")); err != nil {
		return err
	}
	if n.cgroup, err = newCgroup(); err != nil {
		return err
	}
	if err := n.writeFiles(); err != nil {
		return fmt.Errorf("write the node's files: %w", err)
	}
	if err := n.startPid1(); err != nil {
		return err
	}
	if n.network, err = openNetwork(n.pid1.Pid()); err != nil {
		return err
	}
	if err := n.startContainerd(); err != nil {
		return err
	}
	if err := n.startControlPlane(ctx, options); err != nil {
		return err
	}
	if err := n.startServices(); err != nil {
		return err
	}
	if err := n.startKubelet(ctx); err != nil {
		return err
	}
	if err := n.loadOwnImages(ctx); err != nil {
		return err
	}
	return n.waitReady(ctx)
}

// Stop ends the node and leaves nothing behind but the directory. It may be called twice.
func (n *Node) Stop() error {
	for _, end := range slices.Backward(n.cleanups) {
		end()
	}
	n.cleanups = nil
	// The kernel ends all of a node's processes with its first, and the mounts and interfaces with the processes.
	if n.pid1 != nil {
		n.pid1.Kill()
	}
	if n.spawner != nil {
		n.spawner.Close()
		n.spawner = nil
	}
	if n.network != nil {
		n.network.close()
		n.network = nil
	}
	if n.cgroup == nil {
		return nil
	}
	err := n.cgroup.remove()
	if err == nil {
		n.cgroup = nil
	}
	return err
}

// Logs is the end of all logs, for a failed test.
func (n *Node) Logs(bytes int) string {
	text := ""
	if n.Cluster != nil {
		text = n.Cluster.Logs(bytes)
	}
	for _, p := range append([]*process.Process{n.pid1}, n.processes...) {
		if p != nil {
			text += fmt.Sprintf("--- %s (%s)\n%s\n", p.Name, p.LogPath, p.LogTail(bytes))
		}
	}
	return text
}

func (n *Node) startPid1() error {
	said, says, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	args := []string{"-root=" + n.rootDir(), "-hostname=" + n.Name, "-address=" + IP + "/32", "-services=" + cluster.ServiceCIDR, "-writable=" + n.Dir}
	for _, dir := range n.programs.dirs() {
		args = append(args, "-read-only="+dir)
	}
	n.pid1, err = process.Start(process.Spec{
		Name: "pid1", Path: n.path("bin", "pid1"), LogDir: n.Dir, Args: args, Stdout: says,
		NewNamespaces: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	})
	says.Close()
	if err != nil {
		return fmt.Errorf("%w; a container that is not privileged can't run a node", err)
	}
	if _, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		return fmt.Errorf("the node's first process ended: %s", n.pid1.LogTail(4096))
	}
	n.spawner, err = process.SpawnInProcess(n.pid1.Pid())
	return err
}

// startProgram starts a program of the node.
func (n *Node) startProgram(name, path string, args ...string) error {
	p, err := process.Start(process.Spec{
		Name: name, Path: path, LogDir: n.Dir, Args: args, Spawner: n.spawner,
		Env: []string{"PATH=" + n.path("bin") + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TMPDIR=/tmp"},
	})
	if err != nil {
		return err
	}
	n.processes = append(n.processes, p)
	return nil
}

// rootDir is the directory that the node sees as its `/`.
func (n *Node) rootDir() string { return n.path("root") }

// path names one in the node's directory, which the node sees under the same name.
func (n *Node) path(parts ...string) string {
	return filepath.Join(append([]string{n.Dir}, parts...)...)
}
