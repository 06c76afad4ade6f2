// Command pid1 is the first process of a node: it sets up the node's file system and network in new namespaces, and
// then reaps orphaned processes.
//
// The realnode package starts it, and starts the node's programs beside it. When it ends, the kernel ends all of them,
// with their mounts and interfaces.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// ready is printed when programs can be started.
const ready = "ready"

type nodeSetup struct {
	root, hostname, address, services string
	readOnly, writable                []string
}

func main() {
	var n nodeSetup
	flag.StringVar(&n.root, "root", "", "directory that becomes the node's /")
	flag.StringVar(&n.hostname, "hostname", "", "name of the node")
	flag.StringVar(&n.address, "address", "", "the node's own address, with its prefix length")
	flag.StringVar(&n.services, "services", "", "addresses of Services, as a CIDR")
	flag.Func("read-only", "directory of the machine that is visible on the node under the same name (repeatable)", appendTo(&n.readOnly))
	flag.Func("writable", "the same, writable on the node (repeatable)", appendTo(&n.writable))
	flag.Parse()
	if err := n.setUpNode(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Println(ready)
	reap()
}

func appendTo(into *[]string) func(string) error {
	return func(value string) error {
		*into = append(*into, value)
		return nil
	}
}

func (n *nodeSetup) setUpNode() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("this is process %d: it must be process 1 of its namespaces", os.Getpid())
	}
	if err := n.setUpFiles(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return n.setUpNetwork()
}

// reap collects the exit status of orphans: a container's shim outlives the process that started it.
func reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	for range ended {
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
