package e2e

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file disturbs a separate API server: it sends GOAWAY at random, is restarted, and is killed.

func TestSidecarSurvivesDisturbedAPIServer(t *testing.T) {
	// The largest chance that the flag accepts.
	plane := startOwnControlPlane(t, "--goaway-chance=0.02")
	t.Run("goaway_fails_no_request", func(t *testing.T) { testGoaway(t, plane) })
	t.Run("restart_under_load", func(t *testing.T) { testRestartUnderLoad(t, plane) })
}

func trustingTLSConfig(authority *cluster.Authority) *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.PEM)
	return &tls.Config{RootCAs: pool}
}

func testGoaway(t *testing.T, plane controlPlane) {
	if connections := directConnections(t, plane, 500); connections < 2 {
		t.Fatalf("500 direct requests used %d connection: the API server sends no GOAWAY", connections)
	}
	chain := shardChain(t, 1, shardRule("s0", "a"))
	s := startSidecar(t, sidecar.Options{Chain: &chain, Kubeconfig: plane.kubeconfig})
	const workers, each = 8, 250
	var failures sync.Map
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for i := range each {
				if err := disturbedRequest(client, "http://"+s.API, worker, i); err != nil {
					failures.Store(fmt.Sprintf("request %d/%d", worker, i), err)
				}
			}
		})
	}
	group.Wait()
	failures.Range(func(which, err any) bool {
		t.Errorf("%v: %v", which, err)
		return true
	})
}

// disturbedRequest alternates between reads and writes: a write must not be sent twice either, which a 409 would show.
func disturbedRequest(client *http.Client, base string, worker, i int) error {
	path := base + "/api/v1/namespaces/default/configmaps"
	if i%2 == 0 {
		return getOK(client, path)
	}
	body := fmt.Sprintf(`{"metadata":{"name":"goaway-%d-%d","labels":{"shard":"a"}}}`, worker, i)
	response, err := client.Post(path, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", response.Status, text)
	}
	return nil
}

// directConnections counts the connections that requests need without a sidecar: each GOAWAY costs one.
func directConnections(t *testing.T, plane controlPlane, requests int) int {
	t.Helper()
	client := must(plane.cluster.HTTPClient())(t)
	defer client.CloseIdleConnections()
	connections := 0
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			connections++
		}
	}}
	for range requests {
		request := must(http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), http.MethodGet, plane.cluster.URL()+"/version", nil))(t)
		response := must(client.Do(request))(t)
		must(io.Copy(io.Discard, response.Body))(t)
		check(t, response.Body.Close())
	}
	return connections
}

// testRestartUnderLoad stops the API server gracefully and then kills it, both while operators work.
func testRestartUnderLoad(t *testing.T, plane controlPlane) {
	set := newObjectSet(t, plane, "ConfigMap", 2, 10, "a", "b")
	owners := map[string]*operatorProcess{}
	sidecars := []*sidecar.Sidecar{}
	for _, shard := range []string{"a", "b"} {
		chain := shardChain(t, 1, shardRule(shard, shard))
		s := startSidecar(t, sidecar.Options{Chain: &chain, Kubeconfig: plane.kubeconfig})
		sidecars = append(sidecars, s)
		owners[shard] = startOperator(t, "owner-"+shard, sidecarKubeconfig(t, s), "--app="+set.app)
	}
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, owners)
	stopLoad := set.startLoad(t, false)
	for _, end := range []func() error{plane.cluster.StopAPIServer, func() error { plane.cluster.KillAPIServer(); return nil }} {
		check(t, end())
		for _, s := range sidecars {
			assertUnavailable(t, s)
		}
		check(t, plane.cluster.StartAPIServer(t.Context()))
		eventually(t, "both sidecars respond again", func() error {
			for _, s := range sidecars {
				if err := getOK(http.DefaultClient, "http://"+s.API+"/api/v1/namespaces/default"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	t.Logf("%d steps were requested", stopLoad())
	set.requestStepOfEach(t)
	set.assertHandledByOwners(t, owners)
	for _, op := range owners {
		if n := op.countRecords(t, "twice"); n != 0 || !op.process.Alive() {
			t.Errorf("operator %s: %d steps handled twice, alive: %v", op.id, n, op.process.Alive())
		}
	}
}

// assertUnavailable: without an API server the sidecar sends a Status upon which client-go retries, and stays alive.
func assertUnavailable(t *testing.T, s *sidecar.Sidecar) {
	t.Helper()
	response := must(sidecarTarget(s).Do(t.Context(), getRequest("/api/v1/namespaces/default/configmaps")))(t)
	if response.Status != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" || !bytes.Contains(response.Body, []byte(`"kind":"Status"`)) {
		t.Errorf("without an API server: status %d, headers %v: %s", response.Status, response.Header, response.Body)
	}
	if code, body, err := s.GetAdmin(t.Context(), "/livez"); err != nil || code != http.StatusOK {
		t.Errorf("/livez: %d %s %v", code, body, err)
	}
}
