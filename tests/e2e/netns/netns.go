// Package netns makes a network of its own, as a pod has one: programs are started in it, and connections made by any user.
//
// Linux keeps networks per thread, so everything about one is done by one thread. It ends with the last program and socket in it.
// Needs root.
package netns

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"ctrlmesh.kusionstack.io/e2e/process"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network is one with a loopback interface alone.
type Network struct {
	*process.Spawner
}

// New makes a network whose loopback has these addresses besides its own (CIDR notation).
func New(addresses ...string) (*Network, error) {
	place, err := process.NewSpawner(func() error { return setUpLoopback(addresses) })
	return &Network{place}, err
}

func setUpLoopback(addresses []string) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, text := range addresses {
		address, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(loopback, address); err != nil {
			return fmt.Errorf("add %s: %w", text, err)
		}
	}
	return netlink.LinkSetUp(loopback)
}

// Dial connects as a user does: rules of the network see whose socket it is.
func (n *Network) Dial(ctx context.Context, user int, address string) (net.Conn, error) {
	var connection net.Conn
	err := n.Do(func() error {
		// A socket belongs to its thread's user for access to files.
		if err := unix.Setfsuid(user); err != nil {
			return err
		}
		dialer := net.Dialer{}
		var err error
		connection, err = dialer.DialContext(ctx, "tcp", address)
		if err := unix.Setfsuid(0); err != nil {
			return err
		}
		return err
	})
	return connection, err
}

// Listen opens a port.
func (n *Network) Listen(address string) (net.Listener, error) {
	var listener net.Listener
	err := n.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	return listener, err
}

// Start runs a program, which is killed when the network is closed.
func (n *Network) Start(command *exec.Cmd) error {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return n.Do(command.Start)
}

// serviceAccountDir is where clients of the API server look for what kubelet gives to every container.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// MountServiceAccount gives files of a service account (`token`, `ca.crt`, `namespace`) to what starts here from now on. Nothing else
// sees them: they are in a file system in memory, in mounts of this thread's own.
func (n *Network) MountServiceAccount(files map[string][]byte) error {
	return n.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("give the thread mounts of its own: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("keep mounts to the thread: %w", err)
		}
		if err := unix.Mount("tmpfs", "/var/run", "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount a file system in memory: %w", err)
		}
		if err := os.MkdirAll(serviceAccountDir, 0o755); err != nil {
			return err
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(serviceAccountDir, name), content, 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}
