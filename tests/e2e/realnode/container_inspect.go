package realnode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// This file inspects a container's program from outside, because images of one program have no shell.

// ProcessEnvironment returns the variables of a running container's first process.
func (n *Node) ProcessEnvironment(ctx context.Context, namespace, pod, container string) ([]string, error) {
	text, err := n.readProc(ctx, namespace, pod, container, "environ")
	return strings.Split(strings.Trim(text, "\x00"), "\x00"), err
}

// OpenConnections returns the remote addresses of a pod's open TCP connections, IPv4 only.
func (n *Node) OpenConnections(ctx context.Context, namespace, pod, container string) ([]string, error) {
	const established = "01"
	text, err := n.readProc(ctx, namespace, pod, container, filepath.Join("net", "tcp"))
	if err != nil {
		return nil, err
	}
	var found []string
	for line := range strings.Lines(text) {
		// proc(5): sl local_address rem_address st ...
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != established {
			continue
		}
		var ip [4]byte
		var port int
		// The address is a number in the machine's byte order.
		if _, err := fmt.Sscanf(fields[2], "%02X%02X%02X%02X:%04X", &ip[3], &ip[2], &ip[1], &ip[0], &port); err != nil {
			return nil, fmt.Errorf("parse %q: %w", line, err)
		}
		found = append(found, fmt.Sprintf("%d.%d.%d.%d:%d", ip[0], ip[1], ip[2], ip[3], port))
	}
	return found, nil
}

// HostPath returns the path of a running container's file on this machine.
func (n *Node) HostPath(ctx context.Context, namespace, pod, container, path string) (string, error) {
	first, err := n.firstProcess(ctx, namespace, pod, container)
	return filepath.Join("/proc", strconv.Itoa(first), "root", path), err
}

// MemoryLimit returns the limit of a running container in bytes, for both versions of control groups.
func (n *Node) MemoryLimit(ctx context.Context, namespace, pod, container string) (int64, error) {
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		path, err := n.HostPath(ctx, namespace, pod, container, file)
		if err != nil {
			return 0, err
		}
		if text, err := os.ReadFile(path); err == nil {
			return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		}
	}
	return 0, fmt.Errorf("container %s of pod %s has no memory controller", container, pod)
}

// Pause stops a container's processes with SIGSTOP until the returned function is called: they keep their connections
// and answer nobody.
func (n *Node) Pause(ctx context.Context, namespace, pod, container string) (func() error, error) {
	processes, err := n.containerProcesses(ctx, namespace, pod, container)
	if err != nil {
		return nil, err
	}
	signal := func(signal unix.Signal) error {
		for _, pid := range processes {
			if err := unix.Kill(pid, signal); err != nil {
				return fmt.Errorf("signal process %d of container %s: %w", pid, container, err)
			}
		}
		return nil
	}
	return func() error { return signal(unix.SIGCONT) }, signal(unix.SIGSTOP)
}

func (n *Node) readProc(ctx context.Context, namespace, pod, container, file string) (string, error) {
	first, err := n.firstProcess(ctx, namespace, pod, container)
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(first), file))
	return string(text), err
}

// firstProcess returns the oldest process of a container, which has the lowest number.
func (n *Node) firstProcess(ctx context.Context, namespace, pod, container string) (int, error) {
	processes, err := n.containerProcesses(ctx, namespace, pod, container)
	if err != nil {
		return 0, err
	}
	return slices.Min(processes), nil
}
