package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"ctrlmesh.kusionstack.io/e2e/cluster"
)

// waitTimeout bounds every wait for something that normally takes milliseconds.
const waitTimeout = 60 * time.Second

// handOverTimeout bounds the wait for a hand-over during which a leader may die. It takes 30 seconds, because a lease expires
// and pods wait for kubelet's period twice, and more than a minute on busy cores.
const handOverTimeout = 3 * time.Minute

var lastSerial atomic.Int64

// uniqueName returns a name that no other test has.
func uniqueName(prefix string) string { return fmt.Sprintf("%s-%d", prefix, lastSerial.Add(1)) }

// eventually polls until the condition no longer returns an error.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	eventuallyWithin(t, waitTimeout, what, condition)
}

// eventuallyWithin is eventually with another time limit.
func eventuallyWithin(t *testing.T, limit time.Duration, what string, condition func() error) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-tick.C:
		}
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newNamespace creates a namespace for one test.
func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: uniqueName("e2e")}}
	_, err := shared.client.CoreV1().Namespaces().Create(t.Context(), namespace, meta.CreateOptions{})
	check(t, err)
	return namespace.Name
}

// newDir creates a directory in the directory of the run, so that the logs of a failed test stay.
func newDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(shared.dir, uniqueName(strings.ReplaceAll(t.Name(), "/", "_")))
	check(t, os.MkdirAll(dir, 0o755))
	return dir
}

// readPlugin reads a compiled plugin, for example `shard-selector`, from $CTRLMESH_PLUGINS_DIR.
func readPlugin(t *testing.T, name string) sidecar.Plugin {
	t.Helper()
	dir := os.Getenv("CTRLMESH_PLUGINS_DIR")
	if dir == "" {
		t.Fatal("CTRLMESH_PLUGINS_DIR must name the directory with the compiled plugins (shard-selector.wasm, ...)")
	}
	return sidecar.Plugin{Bytes: must(os.ReadFile(filepath.Join(dir, name+".wasm")))(t)}
}

// startSidecar runs a sidecar until the test ends. The sidecar must still run then, and must stop in time.
func startSidecar(t *testing.T, options sidecar.Options) *sidecar.Sidecar {
	t.Helper()
	if options.Name == "" {
		options.Name = uniqueName("sidecar")
	}
	options.Dir = newDir(t)
	options.CacheDir = shared.cacheDir
	if options.Kubeconfig == "" {
		options.Kubeconfig = shared.kubeconfig
	}
	s, err := sidecar.Start(t.Context(), options)
	check(t, err)
	t.Cleanup(func() {
		if !s.Process.Alive() && !options.StoppedByTest {
			t.Errorf("the sidecar exited during the test: %v", s.Process.Err())
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("end of %s:\n%s", s.Process.LogPath, s.Process.LogTail(4096))
		}
	})
	return s
}

// shardChain runs only shard-selector, with one rule.
func shardChain(t *testing.T, generation int64, rule sidecar.ShardRule) sidecar.Chain {
	t.Helper()
	return singlePluginChain(t, generation, readPlugin(t, "shard-selector"), rule)
}

// singlePluginChain runs one plugin as the entry of a shard.
func singlePluginChain(t *testing.T, generation int64, code sidecar.Plugin, settings any) sidecar.Chain {
	t.Helper()
	entry := sidecar.NewEntry("shard-selector/"+sidecar.Namespace, code, settings)
	return sidecar.NewChain(generation, entry).WithPlugins(code)
}

// startShardSidecar runs a sidecar with a shard rule in force.
func startShardSidecar(t *testing.T, rule sidecar.ShardRule) *sidecar.Sidecar {
	t.Helper()
	chain := shardChain(t, 1, rule)
	return startSidecar(t, sidecar.Options{Chain: &chain})
}

// shardRule gives the shard all objects that have one of the values in their label `shard`.
func shardRule(shard string, values ...string) sidecar.ShardRule {
	return sidecar.ShardRule{Shard: shard, Limits: []sidecar.Limit{{
		RelateResources: []sidecar.Resources{
			{APIGroups: []string{"", "e2e.ctrlmesh.dev", "late.ctrlmesh.dev", "events.k8s.io"}, Resources: []string{"*"}},
		},
		Selector: sidecar.Selector{MatchExpressions: []sidecar.Requirement{{Key: "shard", Operator: "In", Values: values}}},
	}}}
}

// sidecarTarget makes a sidecar the target of hand-written requests.
func sidecarTarget(s *sidecar.Sidecar) rawhttp.Target { return rawhttp.Target{Address: s.API} }

// clientConfig is a client-go configuration for a controller behind the sidecar: no credentials, no TLS.
func clientConfig(s *sidecar.Sidecar) *rest.Config {
	return &rest.Config{Host: "http://" + s.API, QPS: -1, Timeout: waitTimeout}
}

// sidecarKubeconfig writes the kubeconfig of a controller behind the sidecar.
func sidecarKubeconfig(t *testing.T, s *sidecar.Sidecar) string {
	t.Helper()
	return must(cluster.WriteKubeconfig(newDir(t), "controller",
		&api.Cluster{Server: "http://" + s.API}, &api.AuthInfo{}))(t)
}

// background is the context for cleanups, because t.Context is cancelled before they run.
func background() context.Context { return context.Background() }
