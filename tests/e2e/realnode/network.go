package realnode

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// nodeNetwork keeps the node's network namespace open: this process can connect and listen in it.
type nodeNetwork struct {
	namespace *os.File
	// open are this process's connections in the namespace, which would keep it alive.
	mutex  sync.Mutex
	open   map[io.Closer]struct{}
	closed bool
}

func openNetwork(pid int) (*nodeNetwork, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	return &nodeNetwork{namespace: namespace, open: map[io.Closer]struct{}{}}, nil
}

func (n *nodeNetwork) close() {
	n.mutex.Lock()
	open := n.open
	n.open, n.closed = nil, true
	n.mutex.Unlock()
	for c := range open {
		_ = c.Close() // an error does not keep it open
	}
	_ = n.namespace.Close() // only used for reading
}

// Dial connects to an address of the node, a pod or a Service. The address is an IP and a port, because names can't be
// resolved there.
func (n *Node) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return n.network.dial(ctx, network, address)
}

// Listen accepts connections from the node and its pods, on an address of the node.
func (n *Node) Listen(network, address string) (net.Listener, error) {
	var listener net.Listener
	err := n.network.inNamespace(func() error {
		var err error
		listener, err = net.Listen(network, address)
		return err
	})
	if err != nil {
		return nil, err
	}
	return listener, n.network.track(listener)
}

func (n *nodeNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) == nil {
		return nil, fmt.Errorf("%s: only IP addresses can be dialled on the node", address)
	}
	var connection net.Conn
	err = n.inNamespace(func() error {
		var err error
		connection, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: connection, network: n}
	return tracked, n.track(tracked)
}

// track records what has to be closed so that the namespace can end.
func (n *nodeNetwork) track(c io.Closer) error {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.closed {
		return c.Close()
	}
	n.open[c] = struct{}{}
	return nil
}

type trackedConn struct {
	net.Conn
	network *nodeNetwork
}

func (t *trackedConn) Close() error {
	err := t.Conn.Close()
	t.network.mutex.Lock()
	defer t.network.mutex.Unlock()
	delete(t.network.open, t)
	return err
}

// inNamespace calls the function on a thread in the namespace: a socket belongs to the namespace in which it is
// created.
func (n *nodeNetwork) inNamespace(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- n.enterAndCall(f) }()
	return <-done
}

func (n *nodeNetwork) enterAndCall(f func() error) error {
	runtime.LockOSThread()
	outside, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer outside.Close()
	if err := unix.Setns(int(n.namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter the node's network: %w", err)
	}
	err = f()
	if back := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET); back != nil {
		return fmt.Errorf("leave the node's network: %w", back) // still locked: the thread ends with the goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// forward listens on a free port of the machine's loopback interface and forwards connections to the same port of the
// node's. It returns the address, and a function that stops forwarding.
func (n *nodeNetwork) forward() (string, func(), error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address := listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go n.proxyConnection(ctx, near, address)
		}
	}()
	return address, func() { cancel(); listener.Close() }, nil
}

// proxyConnection copies in both directions until both sides have ended, or the node has.
func (n *nodeNetwork) proxyConnection(ctx context.Context, near net.Conn, address string) {
	defer near.Close()
	far, err := n.dial(ctx, "tcp", address)
	if err != nil {
		return // the client sees a closed connection, as from a port without a listener
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { near.Close(); far.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { copyAndCloseWrite(far.(*trackedConn).Conn, near) })
	both.Go(func() { copyAndCloseWrite(near, far.(*trackedConn).Conn) })
	both.Wait()
}

// copyAndCloseWrite copies until the end of the stream and closes the other side for writing.
func copyAndCloseWrite(to, from net.Conn) {
	_, _ = io.Copy(to, from) // a broken connection counts as an end
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}
