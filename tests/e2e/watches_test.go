package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// openWatchCount is more than the 100 streams that the API server allows on one HTTP/2 connection.
const openWatchCount = 150

// TestManyWatchesDoNotDelayRequests opens more watches than fit on one upstream connection and asserts that ordinary
// requests still get responses at once, for each protocol between controller and sidecar.
func TestManyWatchesDoNotDelayRequests(t *testing.T) {
	authority := must(cluster.NewAuthority("sidecar"))(t)
	chain := shardChain(t, 1, shardRule("s0", "a"))
	s := startSidecar(t, sidecar.Options{Chain: &chain, TLSDir: servingDir(t, authority)})
	for name, protocol := range map[string]struct {
		scheme       string
		http1, http2 bool
	}{"http1": {"http", true, false}, "h2c": {"http", false, true}, "tls_h2": {"https", false, true}} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: trustingTLSConfig(authority)}
			transport.Protocols.SetHTTP1(protocol.http1)
			transport.Protocols.SetHTTP2(protocol.http2)
			transport.Protocols.SetUnencryptedHTTP2(protocol.http2)
			defer transport.CloseIdleConnections()
			testManyWatches(t, &http.Client{Transport: transport}, protocol.scheme+"://"+s.API)
		})
	}
}

func testManyWatches(t *testing.T, client *http.Client, base string) {
	namespace := newNamespace(t)
	alone := slowestOfFifty(t, client, base, namespace)
	streams := make([]*bufio.Reader, 0, openWatchCount)
	for range openWatchCount {
		response := must(client.Get(base + "/api/v1/namespaces/" + namespace + "/configmaps?watch=1"))(t)
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Fatalf("watch %d: %s", len(streams), response.Status)
		}
		streams = append(streams, bufio.NewReader(response.Body))
	}
	beside := slowestOfFifty(t, client, base, namespace)
	// A request that waited for a stream to end would wait for minutes.
	if beside > 5*alone+time.Second {
		t.Errorf("the slowest of 50 requests beside %d watches took %s, without watches %s", openWatchCount, beside, alone)
	}
	for i := range 3 {
		createConfigMap(t, namespace, fmt.Sprintf("foreign-%d", i), nil, nil)
		createConfigMap(t, namespace, fmt.Sprintf("mine-%d", i), map[string]string{"shard": "a"}, nil)
		want := fmt.Appendf(nil, `"name":"mine-%d"`, i)
		for n, stream := range streams {
			if line := must(stream.ReadBytes('\n'))(t); !bytes.Contains(line, want) {
				t.Fatalf("watch %d got %s, want %s", n, line, want)
			}
		}
	}
}

// slowestOfFifty sends ordinary requests and returns the time of the slowest.
func slowestOfFifty(t *testing.T, client *http.Client, base, namespace string) time.Duration {
	t.Helper()
	slowest := time.Duration(0)
	for range 50 {
		begin := time.Now()
		check(t, getOK(client, base+"/api/v1/namespaces/"+namespace))
		slowest = max(slowest, time.Since(begin))
	}
	return slowest
}
