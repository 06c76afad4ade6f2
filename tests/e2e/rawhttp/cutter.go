package rawhttp

import (
	"io"
	"net"
	"sync"
)

// Cutter forwards connections to an address and breaks each one off after so many bytes of answer: an API server that
// dies in the middle of a sentence. What it forwards, TLS for instance, it does not understand.
type Cutter struct {
	// Address to connect to.
	Address string

	listener net.Listener
	upstream string
	mu       sync.Mutex
	after    int64
}

// NewCutter listens on loopback. It cuts nothing until it is told to.
func NewCutter(upstream string) (*Cutter, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &Cutter{Address: listener.Addr().String(), listener: listener, upstream: upstream, after: 1 << 62}
	go c.serve()
	return c, nil
}

// CutAfter sets how many bytes of answers pass from now on, over all connections together.
func (c *Cutter) CutAfter(bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after = bytes
}

// Close stops listening; connections that are open end with their peers.
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
		_, _ = io.Copy(server, client) // its end is the connection's end
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

// consume is false once the bytes are used up.
func (c *Cutter) consume(bytes int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.after -= bytes
	return c.after >= 0
}
