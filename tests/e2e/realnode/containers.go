package realnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Crash kills the processes of a container, including native sidecars, with SIGKILL, as the kernel's OOM killer would.
// Kubelet is not told.
func (n *Node) Crash(ctx context.Context, namespace, pod, container string) error {
	processes, err := n.containerProcesses(ctx, namespace, pod, container)
	if err != nil {
		return err
	}
	for _, pid := range processes {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill process %d of container %s: %w", pid, container, err)
		}
	}
	return nil
}

// WatchExit returns a function that waits until the running container exits and returns when that was: kubelet's status
// has only whole seconds.
func (n *Node) WatchExit(ctx context.Context, namespace, pod, container string) (func() (time.Time, error), error) {
	processes, err := n.containerProcesses(ctx, namespace, pod, container)
	if err != nil {
		return nil, err
	}
	type end struct {
		at  time.Time
		err error
	}
	ends := make(chan end, 1)
	go func() {
		var err error
		for _, pid := range processes {
			err = errors.Join(err, waitExit(ctx, pid))
		}
		ends <- end{time.Now(), err}
	}()
	return func() (time.Time, error) {
		e := <-ends
		return e.at, e.err
	}, nil
}

// waitExit waits until the process exits or the context is cancelled.
func waitExit(ctx context.Context, pid int) error {
	const wake = 100 // milliseconds between checks of the context
	file, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch process %d: %w", pid, err)
	}
	defer unix.Close(file)
	for ctx.Err() == nil {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(file), Events: unix.POLLIN}}, wake)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("watch process %d: %w", pid, err)
		}
		if ready > 0 {
			return nil
		}
	}
	return ctx.Err()
}

// containerProcesses returns the processes of a running container, at least one.
func (n *Node) containerProcesses(ctx context.Context, namespace, pod, container string) ([]int, error) {
	found, err := n.Client.CoreV1().Pods(namespace).Get(ctx, pod, meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	status, ok := ContainerStatus(found, container)
	if !ok {
		return nil, fmt.Errorf("pod %s has no status for container %s", pod, container)
	}
	_, id, _ := strings.Cut(status.ContainerID, "://")
	if id == "" || status.State.Running == nil {
		return nil, fmt.Errorf("container %s of pod %s is not running: %+v", container, pod, status.State)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	var processes []int
	for _, group := range groups {
		// A process may exit at any time; then it is skipped.
		if text, err := os.ReadFile(group); err != nil || !strings.Contains(string(text), id) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(group)))
		if err != nil {
			return nil, err
		}
		processes = append(processes, pid)
	}
	if len(processes) == 0 {
		return nil, fmt.Errorf("container %s of pod %s has no process", container, pod)
	}
	return processes, nil
}

// ContainerStatus returns the status of a container, also of native sidecars.
func ContainerStatus(pod *core.Pod, name string) (core.ContainerStatus, bool) {
	for _, statuses := range [][]core.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			if status.Name == name {
				return status, true
			}
		}
	}
	return core.ContainerStatus{}, false
}
