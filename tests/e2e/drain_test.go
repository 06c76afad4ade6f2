package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// TestDrainFinishesRequestsAndWatches stops a sidecar that is in use: requests in flight are finished, watches end
// cleanly, new connections are refused.
func TestDrainFinishesRequestsAndWatches(t *testing.T) {
	shard, empty := shardChain(t, 1, shardRule("s0", "a")), sidecar.NewChain(1)
	for name, options := range map[string]sidecar.Options{
		"with_a_shard_rule": {Chain: &shard}, "with_an_empty_chain": {Chain: &empty}, "without_a_chain_directory": {WithoutChainDir: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options.StoppedByTest = true
			testDrain(t, startSidecar(t, options))
		})
	}
}

func testDrain(t *testing.T, s *sidecar.Sidecar) {
	namespace := newNamespace(t)
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	stream := must(sidecarTarget(s).Open(t.Context(), getRequest(path+"?watch=1&"+initialEvents)))(t)
	defer stream.Close()
	w := &watcher{stream, t, namespace}
	w.expect("BOOKMARK", "")

	// The second half of this request is sent after the signal.
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"mine"}}`
	upload := must(sidecarTarget(s).Dial(t.Context()))(t)
	defer upload.Close()
	must(fmt.Fprintf(upload, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body[:10]))(t)
	eventually(t, "the watch and the upload have arrived", func() error {
		open, err := s.Metric(t.Context(), "ctrlmesh_requests_in_flight")
		if err == nil && open < 2 {
			return fmt.Errorf("%v requests are in flight", open)
		}
		return err
	})

	check(t, syscall.Kill(s.Process.Pid(), syscall.SIGTERM))
	eventually(t, "new connections are refused", func() error {
		connection, err := net.Dial("tcp", s.API)
		if err == nil {
			return errors.Join(errors.New("the sidecar still listens"), connection.Close())
		}
		return nil
	})
	must(io.WriteString(upload, body[10:]))(t)
	check(t, checkStatus(must(rawhttp.Read(bufio.NewReader(upload), http.MethodPost))(t), http.StatusCreated))
	for {
		e, err := readEvent(stream)
		if errors.Is(err, io.EOF) {
			break // the last chunk arrived: a truncated body would be an unexpected EOF
		}
		check(t, err)
		if e.Type == "ERROR" {
			t.Errorf("the watch ended with %s", e.raw)
		}
	}
	check(t, s.Stop())
	if err := s.Process.Err(); err != nil {
		t.Errorf("the sidecar exited with %v", err)
	}
}
