// Package netns creates network namespaces like those of pods: programs run in them, and connections can be opened as
// any user.
//
// Linux has one network namespace per thread, so one thread does everything for a namespace. The namespace ends with
// its last program and socket. Needs root.
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

// Network is a network namespace with only a loopback interface.
type Network struct {
	*process.Spawner
}

// New creates a network whose loopback interface has these additional addresses (CIDR notation).
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

// Dial connects as a user: rules of the network see the owner of the socket.
func (n *Network) Dial(ctx context.Context, user int, address string) (net.Conn, error) {
	var connection net.Conn
	err := n.Do(func() error {
		// A socket belongs to the file-system user of its thread.
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

// Listen listens in the network.
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

// serviceAccountDir is where in-cluster clients look for the service account's files.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// MountServiceAccount provides files of a service account (`token`, `ca.crt`, `namespace`) to programs that start here
// from now on. No other process sees them: they are in a tmpfs in this thread's own mount namespace.
func (n *Network) MountServiceAccount(files map[string][]byte) error {
	return n.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("create a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("tmpfs", "/var/run", "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount a tmpfs: %w", err)
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
