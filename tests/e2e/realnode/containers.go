package realnode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Crash kills the processes of a container, native sidecars included, as the kernel would that has no memory left. Kubelet is not told.
func (n *Node) Crash(ctx context.Context, namespace, pod, container string) error {
	found, err := n.Client.CoreV1().Pods(namespace).Get(ctx, pod, meta.GetOptions{})
	if err != nil {
		return err
	}
	status, ok := ContainerStatus(found, container)
	if !ok {
		return fmt.Errorf("pod %s has no status of a container %s", pod, container)
	}
	_, id, _ := strings.Cut(status.ContainerID, "://")
	if id == "" || status.State.Running == nil {
		return fmt.Errorf("container %s of pod %s does not run: %+v", container, pod, status.State)
	}
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return err
	}
	killed := 0
	for _, group := range groups {
		// A process may end at any moment; then it is none.
		if text, err := os.ReadFile(group); err != nil || !strings.Contains(string(text), id) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(group)))
		if err != nil {
			return err
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill process %d of container %s: %w", pid, container, err)
		}
		killed++
	}
	if killed == 0 {
		return fmt.Errorf("container %s of pod %s has no process", container, pod)
	}
	return nil
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
