package rawhttp

import (
	"io"
	"net"
	"sync"
)

// Cutter forwards connections, counts response bytes, and breaks connections after a number of them, like an API server
// that dies while it responds. It does not parse what it forwards, such as TLS.
type Cutter struct {
	// Address that clients connect to.
	Address string

	listener net.Listener
	upstream string
	mu       sync.Mutex
	after    int64
	passed   int64
}

// NewCutter listens on loopback. Until CutAfter is called it cuts nothing.
func NewCutter(upstream string) (*Cutter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &Cutter{Address: listener.Addr().String(), listener: listener, upstream: upstream, after: 1 << 62}
	go c.serve()
	return c, nil
}

// CutAfter sets how many response bytes pass from now on, in all connections together.
func (c *Cutter) CutAfter(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after = bytes
}

// Passed returns how many response bytes have passed so far, in all connections together.
func (c *Cutter) Passed() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.passed
}

// Close stops listening; open connections end with their peers.
func (c *Cutter) Close() error { return c.listener.Close() }

func (c *Cutter) serve() {
	for {
		client, err := c.listener.Accept()
		if err != nil {
			return
		}
		go c.forward(client)
	}
}

func (c *Cutter) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client) // ends with the connection
	}()
	buffer := make([]byte, 16<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if !c.consume(int64(n)) {
			return
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// consume returns false once the bytes are used up.
func (c *Cutter) consume(bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after -= bytes
	if c.after < 0 {
		return false
	}
	c.passed += bytes
	return true
}
