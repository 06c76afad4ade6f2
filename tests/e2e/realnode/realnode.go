// Package realnode runs a cluster with one real node for tests: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, containerd, runc and kubelet, in their own namespaces.
//
// The node is a machine in a directory: it has its own file system, processes and network, connected to the test only
// by an open file. So it needs no installed programs, changes nothing on the machine, and ends as a whole. This package
// translates the addresses of Services in place of kube-proxy. See docs/adr/0019.
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
	// IP is the node's address. Pods and the API server's webhooks reach each other by it; the machine can't reach it.
	IP = "10.88.254.1"
	// podCIDR is the address range of pods.
	podCIDR = "10.88.0.0/24"
	// readyDeadline covers a busy machine; an idle one needs 12 s.
	readyDeadline = 3 * time.Minute
	pollInterval  = 50 * time.Millisecond
)

// Options of a node; the zero value is valid.
type Options struct {
	// Name of the node, in the API and as its host name; `node` if empty.
	Name string
	// APIServerFlags are appended to kube-apiserver's command line.
	APIServerFlags []string
}

// Node is a running cluster of one node.
type Node struct {
	// Dir contains the node's files, data, keys and logs.
	Dir  string
	Name string
	// Cluster is the control plane.
	Cluster *cluster.Cluster
	// Kubeconfig of an administrator; programs on the machine and on the node can use it.
	Kubeconfig string
	// Client uses the same credentials.
	Client *kubernetes.Clientset

	programs programPaths
	pid1     *process.Process
	spawner  *process.Spawner
	network  *nodeNetwork
	cgroup   *nodeCgroup
	// processes are the programs that only have to be started and logged.
	processes []*process.Process
	// cleanups end what runs in this process, in reverse order.
	cleanups []func()
}

// Start starts a node and returns when pods can run there. The directory must exist; the caller removes it after Stop.
func Start(ctx context.Context, dir string, options Options) (*Node, error) {
	if reason := binaries.NodeUnavailable(); reason != "" {
		return nil, errors.New(reason)
	}
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	dir, err := filepath.EvalSymlinks(dir) // the node sees the directory only under its real name
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

// Stop ends the node; only the directory is left. It may be called twice.
func (n *Node) Stop() error {
	for _, end := range slices.Backward(n.cleanups) {
		end()
	}
	n.cleanups = nil
	// When the node's first process ends, the kernel ends all others, and then the mounts and interfaces.
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

// Logs returns the end of all logs, for a failed test.
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
	outputReader, outputWriter, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outputReader.Close()
	args := []string{"-root=" + n.rootDir(), "-hostname=" + n.Name, "-address=" + IP + "/32", "-services=" + cluster.ServiceCIDR, "-writable=" + n.Dir}
	for _, dir := range n.programs.dirs() {
		args = append(args, "-read-only="+dir)
	}
	n.pid1, err = process.Start(process.Spec{
		Name: "pid1", Path: n.path("bin", "pid1"), LogDir: n.Dir, Args: args, Stdout: outputWriter,
		NewNamespaces: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	})
	outputWriter.Close()
	if err != nil {
		return fmt.Errorf("%w; a container that is not privileged can't run a node", err)
	}
	if _, err := bufio.NewReader(outputReader).ReadString('\n'); err != nil {
		return fmt.Errorf("the node's first process ended: %s", n.pid1.LogTail(4096))
	}
	n.spawner, err = process.SpawnInProcess(n.pid1.Pid())
	return err
}

// startProgram starts a program on the node.
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

// rootDir is the node's `/`.
func (n *Node) rootDir() string { return n.path("root") }

// path returns a path in the node's directory, which has the same name on the node.
func (n *Node) path(parts ...string) string {
	return filepath.Join(append([]string{n.Dir}, parts...)...)
}
