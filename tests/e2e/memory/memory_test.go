// Package memory runs the sidecar within a memory limit that the kernel enforces, like that of a container, with
// plugins that want more.
package memory

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/metrics"
	"ctrlmesh.kusionstack.io/e2e/realnode"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

const (
	mib = 1 << 20
	// sidecarLimit is the limit that injection sets.
	sidecarLimit = 256 * mib
	lockName     = "operator-lock"
	listPath     = "/api/v1/namespaces/default/configmaps"
)

// limitedSidecar is a sidecar within the limit.
type limitedSidecar struct {
	*sidecar.Sidecar
	t     *testing.T
	group *realnode.MemoryGroup
}

// startLimited runs a sidecar with two workers, which detects its limit itself, and asserts that the kernel killed none
// of its processes.
func startLimited(t *testing.T, chain sidecar.Chain) *limitedSidecar {
	t.Helper()
	return startLimitedFor(t, chain, startAPIServer(t))
}

func startLimitedFor(t *testing.T, chain sidecar.Chain, server apiServer) *limitedSidecar {
	t.Helper()
	group := realnode.LimitMemory(t, sidecarLimit)
	s, err := sidecar.Start(t.Context(), sidecar.Options{
		Name: "sidecar", Dir: t.TempDir(), Kubeconfig: writeKubeconfig(t, server), Chain: &chain, ControlGroup: group.Dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &limitedSidecar{s, t, group}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("%v\n%s", err, s.Process.LogTail(8192))
		}
		if kills, err := group.Kills(); kills != 0 || err != nil {
			t.Errorf("%d processes were killed (%v)\n%s", kills, err, s.Process.LogTail(8192))
		}
	})
	if read := c.readMetric("ctrlmesh_memory_limit_bytes"); read != sidecarLimit {
		t.Fatalf("the sidecar detected a limit of %v, want %d", read, sidecarLimit)
	}
	return c
}

// apiServer is an API server in this process.
type apiServer struct {
	*httptest.Server
	// authority issued its certificate, in PEM; nil if it serves plain HTTP.
	authority []byte
}

// startAPIServer answers only lists that are narrowed to the shard.
func startAPIServer(t *testing.T) apiServer {
	server := httptest.NewServer(http.HandlerFunc(serveNarrowedLists))
	t.Cleanup(server.Close)
	return apiServer{Server: server}
}

func serveNarrowedLists(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == listPath && r.URL.Query().Get("labelSelector") == "shard=a" {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
		return
	}
	http.Error(w, "not narrowed: "+r.URL.String(), http.StatusTeapot)
}

func writeKubeconfig(t *testing.T, server apiServer) string {
	t.Helper()
	authority := ""
	if server.authority != nil {
		authority = ", certificate-authority-data: " + base64.StdEncoding.EncodeToString(server.authority)
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
users: [{name: it, user: {}}]
clusters: [{name: it, cluster: {server: %q%s}}]
`, server.URL, authority)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// readPlugin reads a compiled plugin from $CTRLMESH_PLUGINS_DIR.
func readPlugin(t *testing.T, name string) sidecar.Plugin {
	t.Helper()
	code, err := os.ReadFile(filepath.Join(os.Getenv("CTRLMESH_PLUGINS_DIR"), name+".wasm"))
	if err != nil {
		t.Fatalf("CTRLMESH_PLUGINS_DIR must name the directory with the compiled plugins: %v", err)
	}
	return sidecar.Plugin{Bytes: code}
}

// shardChainWith adds a shard entry to other entries, and the plugins that they need.
func shardChainWith(t *testing.T, generation int64, entries []sidecar.Entry, plugins ...sidecar.Plugin) sidecar.Chain {
	t.Helper()
	selector := readPlugin(t, "shard-selector")
	shard := sidecar.NewEntry("shard-selector/a", selector, sidecar.ShardRule{
		Shard: "a", LeaderElectionName: lockName, Limits: []sidecar.Limit{{
			RelateResources: []sidecar.Resources{{APIGroups: []string{""}, Resources: []string{"configmaps"}}},
			Selector:        sidecar.Selector{MatchLabels: map[string]string{"shard": "a"}},
		}},
	})
	return sidecar.NewChain(generation, append(entries, shard)...).WithPlugins(append(plugins, selector)...)
}

// guestEntry runs a guest that may need long to fill its memory.
func guestEntry(name string, guest sidecar.Plugin, memoryMiB int, settings map[string]any) sidecar.Entry {
	e := sidecar.NewEntry(name, guest, settings)
	e.MemoryMiB, e.TimeoutMs = memoryMiB, 1000
	return e
}

// hoardEntries have instances that each keep `each` MiB from their first request on, and fail if they get less.
func hoardEntries(guest sidecar.Plugin, count, each int) []sidecar.Entry {
	var entries []sidecar.Entry
	for i := range count {
		entries = append(entries, guestEntry(fmt.Sprintf("hoard/%d", i), guest, 16, map[string]any{"in": "on-request", "mib": each, "must": true}))
	}
	return entries
}

// sendLists sends lists over separate connections, several at a time, so that each worker gets some. All must succeed.
func (c *limitedSidecar) sendLists(count int) {
	c.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range count / 4 {
				response, err := client.Get("http://" + c.API + listPath)
				if err != nil {
					c.t.Error(err)
					return
				}
				response.Body.Close()
				if response.StatusCode != http.StatusOK {
					c.t.Errorf("the response is %s", response.Status)
				}
			}
		})
	}
	group.Wait()
	if c.t.Failed() {
		c.t.Fatal(c.Process.LogTail(8192))
	}
}

func (c *limitedSidecar) readMetric(name string, labels ...string) float64 {
	c.t.Helper()
	code, text, err := c.GetAdmin(c.t.Context(), "/metrics")
	if err != nil || code != http.StatusOK {
		c.t.Fatalf("/metrics returns %d: %v", code, err)
	}
	value, err := metrics.Sum(text, name, labels...)
	if err != nil {
		c.t.Fatal(err)
	}
	return value
}

func TestSidecarSurvivesPluginsAtMemoryLimit(t *testing.T) {
	greedy, hoard := readPlugin(t, "greedy"), readPlugin(t, "hoard")
	crashes := guestEntry("greedy/all", greedy, 256, map[string]any{"in": "on-request"})
	crashes.OnFailure = "Open"
	keeps := guestEntry("hoard/all", hoard, 256, map[string]any{"in": "on-request", "mib": 250})
	c := startLimited(t, shardChainWith(t, 1, append(hoardEntries(hoard, 1, 8), crashes, keeps), greedy, hoard))
	c.sendLists(40)
	if faults := c.readMetric("ctrlmesh_plugin_faults_total", `entry="greedy/all"`, `kind="memory"`); faults == 0 {
		t.Error("the greedy plugin got all the memory that it wanted")
	}
	if used, most := c.readMetric("ctrlmesh_plugin_memory_bytes"), c.readMetric("ctrlmesh_plugin_memory_limit_bytes"); used < 80*mib || used > most {
		t.Errorf("plugins use %v bytes of at most %v", used, most)
	}
}

func TestSidecarSurvivesReloadsAtMemoryLimit(t *testing.T) {
	hoard := readPlugin(t, "hoard")
	c := startLimited(t, shardChainWith(t, 1, hoardEntries(hoard, 4, 13), hoard))
	c.sendLists(40)
	for generation := int64(2); generation < 6; generation++ {
		each := 11 + int(generation%2)
		if err := c.Apply(t.Context(), shardChainWith(t, generation, hoardEntries(hoard, 4, each), hoard)); err != nil {
			t.Fatal(err)
		}
		c.sendLists(40)
		if used := c.readMetric("ctrlmesh_plugin_memory_bytes"); used < float64(4*2*each*mib) {
			t.Errorf("plugins use %v bytes", used)
		}
	}
}

func TestPluginThatCompilesTooLargeIsRefused(t *testing.T) {
	c := startLimited(t, shardChainWith(t, 1, nil))
	bomb := readPlugin(t, "compile_bomb")
	chain := shardChainWith(t, 2, []sidecar.Entry{sidecar.NewEntry("bomb/it", bomb, map[string]any{})}, bomb)
	if err := c.Publish(chain); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var refused *sidecar.Refused
	if err := c.WaitStatus(ctx, "refusal", func(status sidecar.Status) bool {
		refused = status.Refused
		return refused != nil
	}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(refused.Message, "bomb/it") || refused.Reason != "compile_memory" {
		t.Errorf("the plugin is refused for %s: %s", refused.Reason, refused.Message)
	}
	c.sendLists(8)
}
