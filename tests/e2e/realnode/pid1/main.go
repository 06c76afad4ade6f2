// Command pid1 is the first process of a node: it makes the node's file system and network out of fresh namespaces, and
// then adopts and reaps what others leave behind.
//
// The realnode package starts it, and starts the node's programs beside it. When it ends, the kernel ends all of them, with
// their mounts and interfaces.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ready is the line on standard output that says that programs can be started.
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
	flag.Func("read-only", "directory of the machine that the node sees under the same name (repeated)", appendTo(&n.readOnly))
	flag.Func("writable", "the same, and it can write there (repeated)", appendTo(&n.writable))
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
		return fmt.Errorf("this is process %d: it needs namespaces of its own, in which it is 1", os.Getpid())
	}
	if err := n.setUpFiles(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(n.hostname)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return n.setUpNetwork()
}

// reap takes the exit status of orphans: a container's shim outlives the process that started it.
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
