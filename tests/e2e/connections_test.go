package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file tests how the sidecar handles connections of Go's clients and servers.

// TestIdleConnectionsStayOpen sends POSTs over connections that were idle for ten seconds, the time limit of a request
// head. Go keeps idle connections for 90 s, so the sidecar must not close them earlier: a POST that meets a closing
// connection is lost.
func TestIdleConnectionsStayOpen(t *testing.T) {
	t.Parallel()
	const clients, pause, spread = 100, 10 * time.Second, 2 * time.Millisecond
	s, namespace := startSidecar(t, sidecar.Options{WithoutChainDir: true}), newNamespace(t)
	url := fmt.Sprintf("http://%s/api/v1/namespaces/%s/configmaps", s.API, namespace)
	var group sync.WaitGroup
	for number := range clients {
		group.Go(func() {
			client := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
			defer client.CloseIdleConnections()
			if _, err := postConfigMap(t.Context(), client, url, fmt.Sprintf("first-%d", number)); err != nil {
				t.Error(err)
				return
			}
			// Around the moment at which the limit of a request head would end the connection.
			time.Sleep(pause + time.Duration(number-clients/2)*spread)
			reused, err := postConfigMap(t.Context(), client, url, fmt.Sprintf("second-%d", number))
			if err != nil || !reused {
				t.Errorf("client %d: connection kept: %v, error: %v", number, reused, err)
			}
		})
	}
	group.Wait()
}

// postConfigMap creates a ConfigMap and returns whether the request used an existing connection.
func postConfigMap(ctx context.Context, client *http.Client, url, name string) (bool, error) {
	reused := false
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { reused = info.Reused }}
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q}}`, name)
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodPost, url, strings.NewReader(object))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return reused, fmt.Errorf("%s was lost: %w", name, err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return reused, err
	}
	if response.StatusCode != http.StatusCreated {
		return reused, fmt.Errorf("%s: status %d", name, response.StatusCode)
	}
	return reused, nil
}

// TestResponsesWithLateEndCountAsComplete reads responses whose end a Go server sends in a separate frame, over
// HTTP/1.1, where a client does not wait for that frame.
func TestResponsesWithLateEndCountAsComplete(t *testing.T) {
	s := startSidecar(t, sidecar.Options{WithoutChainDir: true})
	for range 66 {
		for _, path := range []string{"/openapi/v3", "/openapi/v3/apis/apps/v1"} {
			check(t, checkStatus(must(sidecarTarget(s).Do(t.Context(), getRequest(path)))(t), http.StatusOK))
		}
	}
	eventually(t, "no request is in flight", func() error {
		under, err := s.Metric(t.Context(), "ctrlmesh_requests_in_flight")
		if err == nil && under != 0 {
			err = fmt.Errorf("%v requests are in flight", under)
		}
		return err
	})
	if gone := must(s.Metric(t.Context(), "ctrlmesh_request_failures_total", `reason="client_gone"`))(t); gone != 0 {
		t.Errorf("%v responses count as not read to their end", gone)
	}
}
