package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
)

// This file tests broken and malicious clients. Every request is answered or refused, none gets around the selector S,
// and other clients are served meanwhile.

// ambiguousFraming returns raw requests whose end two parsers could see at different places (request smuggling). A
// second request follows in the ambiguous part.
func ambiguousFraming(path string) []string {
	hidden := "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"
	head := "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	return []string{
		head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + hidden,
		head + "Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + hidden,
		head + "Content-Length: 5, 0\r\n\r\n" + hidden,
		head + "Content-Length: +0\r\n\r\n" + hidden,
		head + "Content-Length: -1\r\n\r\n" + hidden,
		head + "Content-Length: 0x0\r\n\r\n" + hidden,
		head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden,
		head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + hidden,
		head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + hidden,
		head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n" + hidden,
		head + " Content-Length: 0\r\n\r\n" + hidden,
	}
}

// expectRefused asserts that a request is answered with 400 (or a similar 4xx or 501) or that the connection is closed,
// and that the bytes after it are not read as a second request.
func expectRefused(t *testing.T, target rawhttp.Target, raw string) {
	t.Helper()
	connection := must(target.Dial(t.Context()))(t)
	defer connection.Close()
	must(io.WriteString(connection, raw))(t)
	reader := bufio.NewReader(connection)
	response, err := rawhttp.Read(reader, http.MethodPost)
	if errors.Is(err, rawhttp.ErrClosed) {
		return
	}
	check(t, err)
	if response.Status < 400 || bytes.Contains(response.Body, []byte("foreign")) {
		t.Errorf("%.200q: status %d: %.200s", raw, response.Status, response.Body)
	}
	if second, err := rawhttp.Read(reader, http.MethodGet); err == nil {
		t.Errorf("%.200q: a second response, %d: %.200s", raw, second.Status, second.Body)
	}
}

func TestBadClientsSeeOnlyShard(t *testing.T) {
	env := newTestEnv(t)
	t.Run("ambiguous_framing", func(t *testing.T) {
		for _, raw := range ambiguousFraming(env.configMapsPath("")) {
			expectRefused(t, env.proxied, raw)
		}
	})
	t.Run("malformed_requests", func(t *testing.T) {
		for _, raw := range malformedRequests(env.configMapsPath("")) {
			response, err := env.proxied.Send(t.Context(), []byte(raw), http.MethodGet)
			if err != nil {
				continue // closed without a response
			}
			if response.Status < 400 {
				t.Errorf("%.100q: status %d", raw, response.Status)
			}
			assertNoForeign(t, response)
		}
	})
	t.Run("pipelined_requests_are_each_narrowed", func(t *testing.T) { testPipelinedRequests(t, env) })
	t.Run("large_headers_are_narrowed_or_refused", func(t *testing.T) { testLargeHeaders(t, env) })
	t.Run("half_close_cancels_requests", func(t *testing.T) { testHalfClose(t, env) })
	t.Run("slow_clients_delay_no_others", func(t *testing.T) { testSlowClients(t, env) })
	t.Run("body_shorter_than_promised", func(t *testing.T) { testShortBody(t, env) })
	t.Run("expect_100_continue", func(t *testing.T) { testExpectContinue(t, env) })
	t.Run("connect_is_refused", func(t *testing.T) {
		for _, target := range []string{"127.0.0.1:1", shared.cluster.Address, "localhost:443"} {
			response, err := env.proxied.Do(t.Context(), rawhttp.Request{Method: http.MethodConnect, Path: target})
			if err == nil && response.Status < 400 {
				t.Errorf("CONNECT %s: status %d", target, response.Status)
			}
		}
	})
	// The sidecar still serves ordinary requests.
	env.assertMatchesDirect(t, getRequest(env.configMapsPath("")), env.configMapsPath("labelSelector=shard%3Da"))
}

func malformedRequests(path string) []string {
	return []string{
		"GET " + path + "\r\n\r\n",
		"GET " + path + " HTTP/9.9\r\nHost: x\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
		"GET " + path + " HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
		"GE\x01T " + path + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET " + path + "\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
		"\x16\x03\x01\x00\x05hello",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnot a frame, not a frame, not a frame, not a frame",
		"\r\n\r\n\r\nnonsense\r\n\r\n",
	}
}

func testPipelinedRequests(t *testing.T, env *testEnv) {
	connection := must(env.proxied.Dial(t.Context()))(t)
	defer connection.Close()
	one := rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{"Connection: keep-alive"}}
	must(connection.Write(bytes.Repeat(one.Bytes(), 5)))(t)
	reader := bufio.NewReader(connection)
	for range 5 {
		assertNarrowed(t, must(rawhttp.Read(reader, http.MethodGet))(t))
	}
}

func testLargeHeaders(t *testing.T, env *testEnv) {
	for _, header := range []string{
		"X-Large: " + strings.Repeat("x", 64<<10), strings.Repeat("X-Many: 1\r\n", 99) + "X-Last: 1", strings.Repeat("X-Many: 1\r\n", 5000) + "X-Last: 1",
		"X-Huge: " + strings.Repeat("x", 4<<20), "Cookie: " + strings.Repeat("a=b; ", 3000),
	} {
		response, err := env.proxied.Do(t.Context(), rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{header}})
		switch {
		case errors.Is(err, rawhttp.ErrClosed):
		case err != nil:
			t.Errorf("%.20s: %v", header, err)
		case response.Status == http.StatusOK:
			assertNarrowed(t, response)
		case response.Status != http.StatusRequestHeaderFieldsTooLarge && response.Status != http.StatusBadRequest:
			t.Errorf("%.20s: status %d", header, response.Status)
		}
	}
}

// testHalfClose: a client that closes its half of the connection counts as gone, as with the API server itself
// (net/http): its requests are cancelled, here and upstream. Otherwise a watch would stay open behind a dead client.
func testHalfClose(t *testing.T, env *testEnv) {
	waitNoneInFlight(t, env)
	connection := must(net.Dial("tcp", env.proxied.Address))(t)
	defer connection.Close()
	check(t, connection.SetDeadline(time.Now().Add(rawhttp.Deadline)))
	must(connection.Write(rawhttp.Request{Path: env.configMapsPath("watch=1")}.Bytes()))(t)
	reader := bufio.NewReader(connection)
	if line := must(reader.ReadString('\n'))(t); !strings.HasPrefix(line, "HTTP/1.1 200 ") {
		t.Fatalf("the response to the watch is %q", line)
	}
	if open := must(env.sidecar.Metric(t.Context(), "ctrlmesh_requests_in_flight"))(t); open != 1 {
		t.Errorf("%v requests are in flight, want 1, the watch", open)
	}
	check(t, connection.(*net.TCPConn).CloseWrite())
	waitNoneInFlight(t, env)
	if _, err := io.Copy(io.Discard, reader); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the sidecar did not close the connection")
	}
}

// waitNoneInFlight waits until no request is in flight.
func waitNoneInFlight(t *testing.T, env *testEnv) {
	t.Helper()
	eventually(t, "no request in flight", func() error {
		open, err := env.sidecar.Metric(t.Context(), "ctrlmesh_requests_in_flight")
		if err == nil && open > 0 {
			err = fmt.Errorf("%v requests are in flight", open)
		}
		return err
	})
}

// testSlowClients opens many connections that never finish a request, and then sends ordinary requests.
func testSlowClients(t *testing.T, env *testEnv) {
	for i := range 100 {
		connection := must(env.proxied.Dial(t.Context()))(t)
		t.Cleanup(func() { connection.Close() })
		start := "GET " + env.configMapsPath("") + " HTTP/1.1\r\nHost:"
		if i%2 == 0 {
			start = "POST " + env.configMapsPath("") + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
		}
		must(io.WriteString(connection, start))(t)
	}
	begin := time.Now()
	for range 20 {
		assertNarrowed(t, env.get(t, env.configMapsPath("")))
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("20 requests took %s", took)
	}
}

// testShortBody sends fewer bytes than Content-Length: nothing may be created from a part of a body.
func testShortBody(t *testing.T, env *testEnv) {
	waitNoneInFlight(t, env)
	gone := func() float64 {
		return must(env.sidecar.Metric(t.Context(), "ctrlmesh_request_failures_total", `reason="client_gone"`))(t)
	}
	before := gone()
	name := uniqueName("mine-short")
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)
	framings := []string{
		fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(object)+10, object), fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", len(object), object),
	}
	for _, framing := range framings {
		connection := must(net.Dial("tcp", env.proxied.Address))(t)
		must(io.WriteString(connection, "POST "+env.configMapsPath("")+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+framing))(t)
		check(t, connection.Close())
	}
	// Both requests have arrived and ended, so an object can no longer appear.
	eventually(t, "both clients counted as gone", func() error {
		if now := gone(); now < before+float64(len(framings)) {
			return fmt.Errorf("%v requests have ended", now-before)
		}
		return nil
	})
	waitNoneInFlight(t, env)
	assertNarrowed(t, env.get(t, env.configMapsPath("")))
	for _, found := range configMapNames(t, env.namespace) {
		if found == name {
			t.Errorf("%s was created from an incomplete request", name)
		}
	}
}

func testExpectContinue(t *testing.T, env *testEnv) {
	name := uniqueName("mine-continue")
	object := []byte(fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"shard":"a"}}}`, name))
	response := must(env.proxied.Do(t.Context(), rawhttp.Request{
		Method: http.MethodPost, Path: "/api/v1/namespaces/" + newNamespace(t) + "/configmaps",
		Headers: []string{"Expect: 100-continue", "Content-Type: application/json"}, Body: object,
	}))(t)
	check(t, checkStatus(response, http.StatusCreated))
}
