package realnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// PauseImage runs the container that holds a pod's namespaces.
	PauseImage = "localhost/ctrlmesh-e2e/pause:1"
	// WorkloadImage runs the program of realnode/workload.
	WorkloadImage = "localhost/ctrlmesh-e2e/workload:1"
	// PlainRegistry is the address of a Service from which the node pulls images by plain HTTP, if a test creates it.
	PlainRegistry = "10.96.0.53:8443"
	// containerdSocket is a path on the node.
	containerdSocket = "/run/containerd/containerd.sock"
)

// containerdConfig avoids a negative oom_score_adj, which needs a privilege that the machine may have dropped (runc
// then says only "can't get final child's PID from pipe"), and AppArmor, whose profile would be loaded into the
// machine.
var containerdConfig = template.Must(template.New("").Parse(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "` + containerdSocket + `"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{{.Snapshotter}}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "` + PauseImage + `"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "` + registriesDir + `"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{{.Runtime}}"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{{.Plugins}}"]
    conf_dir = "/etc/cni/net.d"
    use_internal_loopback = true
`))

// registriesDir has a directory for each registry that needs configuration (containerd, docs/hosts.md).
const registriesDir = "/etc/containerd/certs.d"

// podNetwork connects each pod to the node by a veth pair and routes. A bridge would need a kernel module so that
// replies between pods pass the address translation of Services.
const podNetwork = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": false,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podCIDR + `"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

func (n *Node) containerdFiles() (map[string]string, error) {
	var config strings.Builder
	err := containerdConfig.Execute(&config, map[string]string{
		"Snapshotter": snapshotter(n.Dir), "Runtime": n.path("bin", "runtime"), "Plugins": n.path("bin"),
	})
	return map[string]string{
		"/etc/containerd/config.toml": config.String(), "/etc/cni/net.d/10-pods.conflist": podNetwork,
		registriesDir + "/" + PlainRegistry + "/hosts.toml": fmt.Sprintf("server = %q\n", "http://"+PlainRegistry),
	}, err
}

// snapshotter copies layers where an overlay can't be mounted on another one.
func snapshotter(dir string) string {
	var at unix.Statfs_t
	if err := unix.Statfs(dir, &at); err == nil && at.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}

func (n *Node) startContainerd() error {
	return n.startProgram("containerd", n.programs["containerd"], "--config=/etc/containerd/config.toml")
}

// LoadImage imports an OCI archive with the image names in it. Pods need `imagePullPolicy: Never` or `IfNotPresent`,
// because nothing can be pulled.
func (n *Node) LoadImage(ctx context.Context, archive string) error {
	_, err := n.ctr(ctx, "images", "import", "--snapshotter="+snapshotter(n.Dir), archive)
	return err
}

// TagImage gives a loaded image a second name.
func (n *Node) TagImage(ctx context.Context, name, other string) error {
	_, err := n.ctr(ctx, "images", "tag", name, other)
	return err
}

func (n *Node) ctr(ctx context.Context, args ...string) (string, error) {
	// The path through /proc of the first process is short: the socket's own path may be too long for an address.
	socket := fmt.Sprintf("/proc/%d/root%s", n.pid1.Pid(), containerdSocket)
	command := exec.CommandContext(ctx, n.programs["ctr"], append([]string{"--address=" + socket, "--namespace=k8s.io"}, args...)...)
	output, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, output)
	}
	return string(output), nil
}

// loadOwnImages builds and loads the pause image, which every pod needs, and the workload image.
func (n *Node) loadOwnImages(ctx context.Context) error {
	if err := n.waitUntil(ctx, "containerd", func() error {
		_, err := n.ctr(ctx, "version")
		return err
	}); err != nil {
		return err
	}
	program := map[string]string{"/workload": n.programs["workload"]}
	for _, image := range []Image{
		{Name: PauseImage, Entrypoint: []string{"/workload", "pause"}, Files: program},
		{Name: WorkloadImage, Entrypoint: []string{"/workload"}, Files: program},
	} {
		archive := filepath.Join(n.Dir, "image.tar")
		if err := errors.Join(image.Write(archive), n.LoadImage(ctx, archive), os.Remove(archive)); err != nil {
			return err
		}
	}
	return nil
}

// waitUntil polls until there is no error, and gives up early if a program of the node has ended.
func (n *Node) waitUntil(ctx context.Context, what string, ask func() error) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		for _, part := range n.processes {
			if !part.Alive() {
				return fmt.Errorf("%s ended (%v):\n%s", part.Name, part.Err(), part.LogTail(4096))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last: %w):\n%s", what, ctx.Err(), err, n.Logs(2048))
		case <-tick.C:
		}
	}
}
