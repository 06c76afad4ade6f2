package e2e

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/sidecar"
)

// This file gives a sidecar chains that it must refuse. The last good chain stays in force, and /status says what is
// wrong.

// badChain turns the files of a good chain into a bad one.
type badChain struct {
	name string
	// corrupt changes the files of a good chain whose plugin file is named `code`.
	corrupt func(t *testing.T, files map[string][]byte, code string)
	// wantMessage is a part of the message in /status.
	wantMessage string
}

var badChains = []badChain{
	{"unknown_field", replaceInDocument("entries:", "surprise: true\nentries:"), "surprise"},
	{"unknown_field_of_an_entry", replaceInDocument("onFailure:", "onFailur: Open\n  onFailure:"), "onFailur"},
	{"unknown_failure_policy", replaceInDocument("onFailure: Closed", "onFailure: Maybe"), "Maybe"},
	{"hash_of_other_settings", replaceInDocument("onFailure:", "settingsHash: 00\n  onFailure:"), "settingsHash"},
	{"other_version", replaceInDocument("kusionstack.io/v1", "kusionstack.io/v9"), "v9"},
	{"no_yaml", func(_ *testing.T, files map[string][]byte, _ string) { files["chain.yaml"] = []byte("{[}") }, "is not valid"},
	{"empty_document", func(_ *testing.T, files map[string][]byte, _ string) { files["chain.yaml"] = nil }, "is empty"},
	{"truncated_document", func(_ *testing.T, files map[string][]byte, _ string) {
		files["chain.yaml"] = files["chain.yaml"][:len(files["chain.yaml"])/2]
	}, "is missing"},
	{"older_generation", func(_ *testing.T, files map[string][]byte, _ string) {
		files["chain.yaml"] = regexp.MustCompile(`(?m)^generation: \d+$`).ReplaceAll(files["chain.yaml"], []byte("generation: 1"))
	}, "generation"},
	{"unknown_plugin", func(_ *testing.T, files map[string][]byte, code string) { delete(files, code) }, "sha256"},
	{"wrong_digest", func(_ *testing.T, files map[string][]byte, code string) {
		files[code] = append(bytes.Clone(files[code]), 0)
	}, "sha256"},
	{"empty_plugin", replacePlugin(func(*testing.T, []byte) []byte { return nil }), "is empty"},
	{"truncated_plugin", replacePlugin(func(_ *testing.T, code []byte) []byte { return code[:len(code)/2] }), "could not be compiled"},
	{"core_module", replacePlugin(func(*testing.T, []byte) []byte { return []byte("\x00asm\x01\x00\x00\x00") }), "component"},
	{"huge_plugin", replacePlugin(func(_ *testing.T, code []byte) []byte { return append(bytes.Clone(code), make([]byte, 50<<20)...) }), "larger than"},
	{"other_world", replacePlugin(func(t *testing.T, _ []byte) []byte { return readPlugin(t, "wrong_world").Bytes }), "is not a ctrlmesh plugin"},
	{"refused_settings", replaceInDocument("operator: In", "operator: Inn"), "Inn"},
}

// replaceInDocument fails the test if `old` does not occur: the document would stay a good one.
func replaceInDocument(old, new string) func(*testing.T, map[string][]byte, string) {
	return func(t *testing.T, files map[string][]byte, _ string) {
		t.Helper()
		if !bytes.Contains(files["chain.yaml"], []byte(old)) {
			t.Fatalf("no %q in\n%s", old, files["chain.yaml"])
		}
		files["chain.yaml"] = bytes.Replace(files["chain.yaml"], []byte(old), []byte(new), 1)
	}
}

// replacePlugin replaces the plugin's bytes and writes their correct digest into the document.
func replacePlugin(other func(*testing.T, []byte) []byte) func(*testing.T, map[string][]byte, string) {
	return func(t *testing.T, files map[string][]byte, code string) {
		t.Helper()
		before := sidecar.Plugin{Bytes: files[code]}
		after := sidecar.Plugin{Bytes: other(t, files[code])}
		delete(files, code)
		files[sidecar.PluginFile(after)] = after.Bytes
		files["chain.yaml"] = bytes.ReplaceAll(files["chain.yaml"], []byte(before.Digest()), []byte(after.Digest()))
	}
}

// assertChainRefused publishes a chain that the sidecar must refuse: the last good chain stays in force; status, metric
// and log say why.
func assertChainRefused(t *testing.T, env *testEnv, files map[string][]byte, wantMessage string) {
	t.Helper()
	s := env.sidecar
	counted := func() float64 { return must(s.Metric(t.Context(), "ctrlmesh_chain_refused_total"))(t) }
	inForce, before := must(s.Status(t.Context()))(t).Chain.Generation, counted()
	logLength := len(must(os.ReadFile(s.Process.LogPath))(t))
	check(t, s.Volume.Write(files))
	var refusal sidecar.Refused
	check(t, s.WaitStatus(t.Context(), "refusal in /status that says "+wantMessage, func(status sidecar.Status) bool {
		if status.Refused == nil {
			return false
		}
		refusal = *status.Refused
		return status.Chain.Generation == inForce && strings.Contains(refusal.Message, wantMessage)
	}))
	if now := counted(); now <= before {
		t.Errorf("the refusal counter is still %v", now)
	}
	if must(s.Metric(t.Context(), "ctrlmesh_chain_refused_total", `reason="`+refusal.Reason+`"`))(t) == 0 {
		t.Errorf("the refusal counter has no series for reason %q", refusal.Reason)
	}
	eventually(t, "a warning that says "+refusal.Message, func() error {
		log, err := os.ReadFile(s.Process.LogPath)
		if err != nil {
			return err
		}
		if fresh := string(log[logLength:]); !strings.Contains(fresh, "WARN") || !strings.Contains(fresh, refusal.Message) {
			return errors.New("the log does not name the mistake: " + fresh)
		}
		return nil
	})
	assertNarrowed(t, env.get(t, env.configMapsPath("")))
}

func TestInvalidChainLeavesLastOneInForce(t *testing.T) {
	signer := must(sidecar.NewSigner())(t)
	generation := int64(10)
	first := shardChain(t, generation, shardRule("s0", "a"))
	s := startSidecar(t, sidecar.Options{Chain: &first, Signer: signer})
	env := &testEnv{sidecar: s, proxied: sidecarTarget(s), direct: shared.direct, namespace: newNamespace(t)}
	seedNamespace(t, env.namespace)
	next := func(t *testing.T, values ...string) sidecar.Chain {
		t.Helper()
		generation++
		return shardChain(t, generation, shardRule("s0", values...))
	}
	assertRefusedChain := func(t *testing.T, files map[string][]byte, wantMessage string) {
		t.Helper()
		assertChainRefused(t, env, files, wantMessage)
		check(t, s.Apply(t.Context(), next(t, "a")))
		if status := must(s.Status(t.Context()))(t); status.Refused != nil {
			t.Errorf("a good chain is in force, but /status still reports the refusal %q", status.Refused.Message)
		}
	}
	for _, bad := range badChains {
		t.Run(bad.name, func(t *testing.T) {
			good := next(t, "a", "b")
			files := must(good.Files(nil))(t)
			bad.corrupt(t, files, sidecar.PluginFile(good.Plugins[0]))
			files["chain.yaml.sig"] = signer.Sign(files["chain.yaml"])
			assertRefusedChain(t, files, bad.wantMessage)
		})
	}
	t.Run("wrongly_signed_chain_is_refused", func(t *testing.T) {
		assertRefusedChain(t, must(next(t, "a", "b").Files(must(sidecar.NewSigner())(t)))(t), "sign")
	})
	t.Run("unsigned_chain_is_refused", func(t *testing.T) { assertRefusedChain(t, must(next(t, "a", "b").Files(nil))(t), "sign") })
	// A chain with another view is still accepted after all these refusals.
	check(t, s.Apply(t.Context(), next(t, "a", "b")))
	response := env.get(t, env.configMapsPath(""))
	if response.Status != http.StatusOK || !bytes.Contains(response.Body, []byte("foreign-x")) {
		t.Errorf("under the new chain: status %d: %s", response.Status, response.Body)
	}
}

// TestCrashingPluginFailsOpenOrClosed: a plugin that traps has only the effect that its entry's onFailure says, and its
// message reaches no client.
func TestCrashingPluginFailsOpenOrClosed(t *testing.T) {
	shard, crash := readPlugin(t, "shard-selector"), readPlugin(t, "trap")
	first := shardChain(t, 1, shardRule("s0", "a"))
	s := startSidecar(t, sidecar.Options{Chain: &first})
	env := &testEnv{sidecar: s, proxied: sidecarTarget(s), direct: shared.direct, namespace: newNamespace(t)}
	seedNamespace(t, env.namespace)
	generation := int64(1)
	with := func(policy string) {
		t.Helper()
		generation++
		broken := sidecar.NewEntry("trap/broken", crash, map[string]any{"in": "on-request"})
		broken.OnFailure, broken.Order = policy, 50
		check(t, s.Apply(t.Context(), sidecar.NewChain(generation, broken, first.Entries[0]).WithPlugins(shard, crash)))
	}
	with("Open")
	for range 20 {
		assertNarrowed(t, env.get(t, env.configMapsPath("")))
	}
	with("Closed")
	for range 20 {
		response := env.get(t, env.configMapsPath(""))
		if response.Status != http.StatusInternalServerError || !bytes.Contains(response.Body, []byte(crash.Digest())) || !bytes.Contains(response.Body, []byte("trap/broken")) {
			t.Fatalf("status %d: %s", response.Status, response.Body)
		}
	}
	generation++
	check(t, s.Apply(t.Context(), shardChain(t, generation, shardRule("s0", "a"))))
	for range 20 {
		assertNarrowed(t, env.get(t, env.configMapsPath("")))
	}
}

// TestEntriesFollowLabels: the pod's current labels choose the entries, without a restart and without a new document.
func TestEntriesFollowLabels(t *testing.T) {
	code := readPlugin(t, "shard-selector")
	entry := func(name, value string) sidecar.Entry {
		e := sidecar.NewEntry("shard-selector/"+name, code, shardRule(name, value))
		e.PodSelector = map[string]any{"matchLabels": map[string]string{"shard-of-pod": name}}
		return e
	}
	chain := sidecar.NewChain(1, entry("s0", "a"), entry("s1", "b")).WithPlugins(code)
	s := startSidecar(t, sidecar.Options{Chain: &chain, Labels: map[string]string{"shard-of-pod": "s0", "x": "a \"quoted\" value"}})
	namespace := newNamespace(t)
	seedNamespace(t, namespace)
	list := getRequest("/api/v1/namespaces/" + namespace + "/configmaps")
	assertNarrowed(t, must(sidecarTarget(s).Do(t.Context(), list))(t))
	stream := must(sidecarTarget(s).Open(t.Context(), getRequest(list.Path+"?watch=1")))(t)
	defer stream.Close()
	check(t, s.SetLabels(map[string]string{"shard-of-pod": "s1"}))
	eventually(t, "the other shard's view", func() error {
		response, err := sidecarTarget(s).Do(t.Context(), list)
		if err != nil {
			return err
		}
		if bytes.Contains(response.Body, []byte("mine")) || !bytes.Contains(response.Body, []byte("foreign-x")) {
			return checkStatus(response, 0)
		}
		return nil
	})
	w := &watcher{stream, t, namespace}
	w.expect("ADDED", "mine-x")
	w.expect("ADDED", "mine-y")
	w.expect("ERROR", "")
}
