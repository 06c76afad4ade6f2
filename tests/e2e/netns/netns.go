// Package netns makes a network of its own, as a pod has one: programs are started in it, and connections made by any user.
//
// Linux keeps networks per thread, so everything about one is done by one thread. Needs root.
package netns

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Network is one with a loopback interface alone.
type Network struct {
	jobs chan func()
}

// New makes a network whose loopback has these addresses besides its own (CIDR notation).
func New(addresses ...string) (*Network, error) {
	n := &Network{jobs: make(chan func())}
	made := make(chan error)
	go func() {
		// Never unlocked: a thread in a foreign network must serve nobody else, and ends with this goroutine.
		runtime.LockOSThread()
		err := prepare(addresses)
		made <- err
		if err != nil {
			return
		}
		for job := range n.jobs {
			job()
		}
	}()
	return n, <-made
}

func prepare(addresses []string) error {
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

// Close gives the network up. It ends with the last program and socket in it.
func (n *Network) Close() { close(n.jobs) }

// Do runs a function on the network's thread.
func (n *Network) Do(f func() error) error {
	done := make(chan error)
	n.jobs <- func() { done <- f() }
	return <-done
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
