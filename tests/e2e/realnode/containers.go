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

// Crash kills the processes of a container, native sidecars included, as the kernel would that has no memory left. Kubelet is not told.
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

// WatchExit returns a function that waits for the end of a container that runs now, and tells when that was: kubelet's word has whole seconds.
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

// waitExit waits for the end of a process, or of the context.
func waitExit(ctx context.Context, pid int) error {
	const wake = 100 // milliseconds, to look at the context
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

// containerProcesses of a container that runs. There is at least one.
func (n *Node) containerProcesses(ctx context.Context, namespace, pod, container string) ([]int, error) {
	found, err := n.Client.CoreV1().Pods(namespace).Get(ctx, pod, meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	status, ok := ContainerStatus(found, container)
	if !ok {
		return nil, fmt.Errorf("pod %s has no status of a container %s", pod, container)
	}
	_, id, _ := strings.Cut(status.ContainerID, "://")
	if id == "" || status.State.Running == nil {
		return nil, fmt.Errorf("container %s of pod %s does not run: %+v", container, pod, status.State)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	var processes []int
	for _, group := range groups {
		// A process may end at any moment; then it is none.
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

// ContainerStatus is that of a container, native sidecars included.
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
