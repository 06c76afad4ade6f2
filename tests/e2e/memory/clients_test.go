package memory

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file has clients that make the sidecar hold as much as they can, while plugins hold as much as they may.

const (
	largePath = "/api/v1/namespaces/default/secrets"
	// largeBytes is more than the kernel keeps for a socket (4 MiB by default, net.ipv4.tcp_wmem): the rest has to wait
	// in the sidecar.
	largeBytes = 16 * mib
	locksPath  = "/apis/coordination.k8s.io/v1/namespaces/" + sidecar.Namespace + "/leases/"
)

// startFullSidecar runs a sidecar whose plugins hold almost all that they may.
func startFullSidecar(t *testing.T, server apiServer) *limitedSidecar {
	t.Helper()
	hoard := readPlugin(t, "hoard")
	rest := guestEntry("hoard/rest", hoard, 256, map[string]any{"in": "on-request", "mib": 250})
	rest.OnFailure = "Open"
	c := startLimitedFor(t, shardChainWith(t, 1, append(hoardEntries(hoard, 4, 13), rest), hoard), server)
	c.sendLists(40)
	if used := c.readMetric("ctrlmesh_plugin_memory_bytes"); used < 140*mib {
		t.Fatalf("plugins use only %v bytes", used)
	}
	return c
}

// startLargeAPIServer answers with large lists, too, over HTTP/2 as API servers do.
func startLargeAPIServer(t *testing.T, isHTTP2 bool) apiServer {
	t.Helper()
	large := bytes.Repeat([]byte("x"), largeBytes)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == largePath {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(large)
			return
		}
		serveNarrowedLists(w, r)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	if !isHTTP2 {
		server.Start()
		return apiServer{Server: server}
	}
	authority, err := cluster.NewAuthority("memory-test")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.IssueServing("api-server", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.EnableHTTP2 = true
	server.StartTLS()
	return apiServer{Server: server, authority: authority.PEM}
}

// watchPeak samples the group's memory until the returned function is called, which asserts that it stayed below the
// limit.
func (c *limitedSidecar) watchPeak() func() {
	var peak atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticks := time.NewTicker(20 * time.Millisecond)
		defer ticks.Stop()
		for {
			if used, err := c.group.Anonymous(); err == nil && used > peak.Load() {
				peak.Store(used)
			}
			select {
			case <-stop:
				return
			case <-ticks.C:
			}
		}
	}()
	return func() {
		c.t.Helper()
		close(stop)
		<-stopped
		c.t.Logf("the peak was %d MiB", peak.Load()/mib)
		if peak.Load() == 0 || peak.Load() >= sidecarLimit {
			c.t.Errorf("the peak was %d of %d bytes", peak.Load(), sidecarLimit)
		}
	}
}

// connect opens a connection that buffers little, so that what the test sends and does not read is in the sidecar.
func (c *limitedSidecar) connect() net.Conn {
	c.t.Helper()
	connection, err := net.Dial("tcp", c.API)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { connection.Close() })
	if err := connection.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		c.t.Fatal(err)
	}
	return connection
}

// waitMetricAbove waits until a metric is above a value.
func (c *limitedSidecar) waitMetricAbove(name string, least float64) {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for c.readMetric(name) <= least {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s stays at %v\n%s", name, c.readMetric(name), c.Process.LogTail(8192))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestSidecarSurvivesUnfinishedWrites(t *testing.T) {
	c := startFullSidecar(t, startAPIServer(t))
	assertPeak := c.watchPeak()
	body := bytes.Repeat([]byte("x"), 3_000_000)
	var writes sync.WaitGroup
	for range 140 {
		connection := c.connect()
		writes.Go(func() {
			_ = connection.SetWriteDeadline(time.Now().Add(10 * time.Second))
			_, _ = fmt.Fprintf(connection, "PUT %s%s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", locksPath, lockName, len(body))
			// A refused client may not be allowed to finish writing.
			_, _ = connection.Write(body[1:])
		})
	}
	c.sendLists(200)
	writes.Wait()
	if reserved := c.readMetric("ctrlmesh_request_memory_bytes"); reserved < c.readMetric("ctrlmesh_request_memory_limit_bytes")/2 {
		t.Errorf("requests reserve only %v bytes", reserved)
	}
	c.sendLists(40)
	assertPeak()
}

func TestSidecarSurvivesClientsThatDoNotRead(t *testing.T) {
	for _, test := range []struct {
		name        string
		ask         func(*testing.T, net.Conn)
		serverHTTP2 bool
	}{
		{"HTTP1", askOverHTTP1, true},
		{"HTTP2", askOverHTTP2, true},
		{"HTTP1ForHTTP1Server", askOverHTTP1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := startFullSidecar(t, startLargeAPIServer(t, test.serverHTTP2))
			assertPeak := c.watchPeak()
			for range 100 {
				test.ask(t, c.connect())
			}
			most := c.readMetric("ctrlmesh_response_memory_limit_bytes")
			c.waitMetricAbove("ctrlmesh_response_memory_bytes", most/2)
			c.waitLarge()
			for range 10 {
				c.sendLists(8)
				if err := c.readLarge(); err != nil {
					t.Fatalf("%v\n%s", err, c.Process.LogTail(8192))
				}
				if unsent := c.readMetric("ctrlmesh_response_memory_bytes"); unsent > most {
					t.Errorf("unsent responses have %v bytes of at most %v", unsent, most)
				}
			}
			assertPeak()
		})
	}
}

// readLarge reads a large list as a client that reads does.
func (c *limitedSidecar) readLarge() error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	response, err := client.Get("http://" + c.API + largePath)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if read, err := io.Copy(io.Discard, response.Body); read != largeBytes || err != nil {
		return fmt.Errorf("%d bytes were read: %w", read, err)
	}
	return nil
}

// waitLarge reads a large list, and again if that fails: while many clients that do not read send requests, responses of
// others may be reset.
func (c *limitedSidecar) waitLarge() {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := c.readLarge()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%v\n%s", err, c.Process.LogTail(8192))
		}
	}
}

// askOverHTTP1 asks for a large list and reads nothing of it.
func askOverHTTP1(t *testing.T, connection net.Conn) {
	t.Helper()
	if _, err := fmt.Fprintf(connection, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", largePath); err != nil {
		t.Fatal(err)
	}
}

// askOverHTTP2 asks for many large lists with wide windows and reads nothing of them.
func askOverHTTP2(t *testing.T, connection net.Conn) {
	t.Helper()
	var sent bytes.Buffer
	sent.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&sent, nil)
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
	check(framer.WriteWindowUpdate(0, 1<<30))
	for stream := range uint32(16) {
		check(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*stream + 1, BlockFragment: headOfGet(largePath), EndHeaders: true, EndStream: true}))
	}
	_, err := connection.Write(sent.Bytes())
	check(err)
}

func headOfGet(path string) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	// Each block is decoded with the table that the blocks before it left.
	encoder.SetMaxDynamicTableSize(0)
	for _, field := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "x"}, {Name: ":path", Value: path}} {
		_ = encoder.WriteField(field)
	}
	return block.Bytes()
}
