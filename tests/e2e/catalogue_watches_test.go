package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Group F of the catalogue: watches. Re-sharding (F79, F80) is in reshard_test.go.

var watchCases = []catalogueCase{
	{"F63_bookmarks_pass", func(t *testing.T, env *testEnv) { testBookmarks(t, env, env.configMapsPath("")) }},
	{"F64_initial_events_end_comes_once_and_last", func(t *testing.T, env *testEnv) {
		testBookmarks(t, env, "/apis/e2e.ctrlmesh.dev/v1/namespaces/"+env.namespace+"/widgets")
	}},
	{"F65_error_event_passes_and_ends_the_stream", testErrorEvent},
	{"F67_deletions_inside_and_outside", func(t *testing.T, env *testEnv) {
		w := newWatcher(t, env, "")
		createConfigMap(t, w.namespace, "foreign", map[string]string{"shard": "b"}, nil)
		createConfigMap(t, w.namespace, "mine", map[string]string{"shard": "a"}, nil)
		w.expect("ADDED", "mine")
		w.remove("foreign")
		w.remove("mine")
		w.expect("DELETED", "mine")
	}},
	{"F68_leaving_the_selector_is_a_deletion", testLeavingTheSelector},
	{"F72_recreated_under_one_name_in_another_shard", func(t *testing.T, env *testEnv) {
		w := newWatcher(t, env, "")
		createConfigMap(t, w.namespace, "mine", map[string]string{"shard": "a"}, nil)
		w.expect("ADDED", "mine")
		w.remove("mine")
		w.expect("DELETED", "mine")
		createConfigMap(t, w.namespace, "mine", map[string]string{"shard": "b"}, nil)
		createConfigMap(t, w.namespace, "mine-after", map[string]string{"shard": "a"}, nil)
		w.expect("ADDED", "mine-after")
	}},
	{"F73_events_keep_their_bytes", testEventBytes},
	{"F74_small_event_on_an_idle_stream_is_flushed", func(t *testing.T, env *testEnv) {
		w := newWatcher(t, env, "")
		for i := range 5 {
			begin := time.Now()
			createConfigMap(t, w.namespace, fmt.Sprintf("mine-%d", i), map[string]string{"shard": "a"}, nil)
			w.expect("ADDED", fmt.Sprintf("mine-%d", i))
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("event %d took %s", i, took)
			}
		}
	}},
	{"F75_upstream_watch_ends_with_its_client", testUpstreamWatchEnds},
	{"F76_slow_client_is_not_buffered_without_bound", testSlowClient},
	{"F77_timeout_is_a_clean_end", func(t *testing.T, env *testEnv) {
		// rawhttp fails on a truncated body.
		env.readWatch(t, env.configMapsPath("watch=1&timeoutSeconds=1"))
	}},
	{"F78_refusals_at_the_start_pass_whole", func(t *testing.T, env *testEnv) {
		for _, query := range []string{"watch=1&resourceVersion=x", "watch=1&sendInitialEvents=true", "watch=1&fieldSelector=a%3Db", "watch=1&limit=x"} {
			env.assertSameAsDirect(t, getRequest(env.configMapsPath(query)))
		}
		token := must(shared.cluster.ServiceAccountToken(t.Context(), env.namespace, "nobody"))(t)
		env.assertSameAsDirect(t, rawhttp.Request{Path: env.configMapsPath("watch=1"), Headers: []string{"Authorization: Bearer " + token}})
	}},
	{"F79_reshard_ends_watches_with_expired", testReshardEndsWatches},
	{"F80_reshard_of_a_watch_list_client", testReshardWatchListClient},
	{"F81_refused_initial_events_pass", func(t *testing.T, env *testEnv) {
		response := env.assertSameAsDirect(t, getRequest(env.configMapsPath("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1")))
		if response.Status != http.StatusUnprocessableEntity {
			t.Errorf("status %d", response.Status)
		}
	}},
	{"F82_table_watch_has_columns_in_its_first_event", func(t *testing.T, env *testEnv) {
		text := env.readWatch(t, env.configMapsPath("watch=1&timeoutSeconds=1"), "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
		first, _, _ := strings.Cut(text, "\n")
		if !strings.Contains(first, `"columnDefinitions":[{`) || !strings.Contains(first, "mine") {
			t.Errorf("first event: %s", first)
		}
	}},
	{"F83_table_bookmark_passes", func(t *testing.T, env *testEnv) {
		text := env.readWatch(t, env.configMapsPath("watch=1&timeoutSeconds=1&"+initialEvents), "Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
		if !strings.Contains(text, `"type":"BOOKMARK"`) || !strings.Contains(text, "initial-events-end") {
			t.Errorf("no bookmark in %s", text)
		}
	}},
	{"F84_partial_metadata_is_narrowed", func(t *testing.T, env *testEnv) {
		const list, one = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
		env.assertMatchesDirect(t, rawhttp.Request{Path: env.configMapsPath(""), Headers: []string{"Accept: " + list}}, env.configMapsPath("labelSelector=shard%3Da"))
		assertNarrowed(t, env.get(t, env.configMapsPath(""), "Accept: "+list))
		env.readWatch(t, env.configMapsPath("watch=1&timeoutSeconds=1"), "Accept: "+one)
	}},
}

const initialEvents = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"

// watchEvent is an event of a JSON watch.
type watchEvent struct {
	Type   string
	Object struct {
		Kind     string
		Code     int
		Reason   string
		Metadata meta.ObjectMeta
	}
	raw []byte
}

func readEvent(stream *rawhttp.Stream) (watchEvent, error) {
	line, err := stream.Line()
	if err != nil {
		return watchEvent{}, err
	}
	e := watchEvent{raw: line}
	return e, json.Unmarshal(line, &e)
}

// watcher watches a new, empty namespace through the sidecar.
type watcher struct {
	*rawhttp.Stream
	t         *testing.T
	namespace string
}

func newWatcher(t *testing.T, env *testEnv, query string) *watcher {
	t.Helper()
	namespace := newNamespace(t)
	path := "/api/v1/namespaces/" + namespace + "/configmaps?watch=1&" + initialEvents + query
	w := &watcher{must(env.proxied.Open(t.Context(), getRequest(path)))(t), t, namespace}
	t.Cleanup(w.Close)
	w.expect("BOOKMARK", "")
	return w
}

// expect asserts that this is the next event apart from bookmarks: an event that should not be visible would come in
// between.
func (w *watcher) expect(kind, name string) watchEvent {
	w.t.Helper()
	for {
		e, err := readEvent(w.Stream)
		if err != nil {
			w.t.Fatalf("waiting for %s %s: %v", kind, name, err)
		}
		if e.Type == "BOOKMARK" && kind != "BOOKMARK" {
			continue
		}
		if e.Type != kind || e.Object.Metadata.Name != name {
			w.t.Fatalf("got %s, want %s %s", e.raw, kind, name)
		}
		return e
	}
}

func (w *watcher) remove(name string) {
	w.t.Helper()
	check(w.t, shared.client.CoreV1().ConfigMaps(w.namespace).Delete(w.t.Context(), name, meta.DeleteOptions{}))
}

func testBookmarks(t *testing.T, env *testEnv, path string) {
	stream := must(env.proxied.Open(t.Context(), getRequest(path+"?watch=1&"+initialEvents)))(t)
	defer stream.Close()
	for _, want := range []string{"mine-x", "mine-y"} {
		if e := must(readEvent(stream))(t); e.Type != "ADDED" || e.Object.Metadata.Name != want {
			t.Fatalf("got %s, want %s added", e.raw, want)
		}
	}
	end := must(readEvent(stream))(t)
	if end.Type != "BOOKMARK" || end.Object.Metadata.Annotations["k8s.io/initial-events-end"] != "true" {
		t.Errorf("got %s", end.raw)
	}
}

// testErrorEvent: for a resource version older than the kind, the API server answers 200 with one ERROR event, whose
// Status must reach the client.
func testErrorEvent(t *testing.T, env *testEnv) {
	response := env.get(t, env.widgetsPath("watch=1&resourceVersion=1"))
	check(t, checkStatus(response, http.StatusOK))
	if !bytes.Contains(response.Body, []byte(`"type":"ERROR"`)) || !bytes.Contains(response.Body, []byte(`"code":410`)) {
		t.Errorf("got %s", response.Body)
	}
}

func testLeavingTheSelector(t *testing.T, env *testEnv) {
	w := newWatcher(t, env, "")
	before := createConfigMap(t, w.namespace, "mine", map[string]string{"shard": "a"}, nil)
	w.expect("ADDED", "mine")
	patch := []byte(`{"metadata":{"labels":{"shard":"b"}}}`)
	after := must(shared.client.CoreV1().ConfigMaps(w.namespace).Patch(t.Context(), "mine", types.MergePatchType, patch, meta.PatchOptions{}))(t)
	gone := w.expect("DELETED", "mine").Object.Metadata
	if gone.Labels["shard"] != "a" || gone.ResourceVersion != after.ResourceVersion || gone.UID != before.UID {
		t.Errorf("DELETED has labels %v at version %s, want the old labels at %s", gone.Labels, gone.ResourceVersion, after.ResourceVersion)
	}
}

// testEventBytes compares the sidecar's stream with a direct one that has S in its selector, event by event; one event
// is large enough to arrive in many pieces.
func testEventBytes(t *testing.T, env *testEnv) {
	w := newWatcher(t, env, "")
	direct := must(env.direct.Open(t.Context(), getRequest("/api/v1/namespaces/"+w.namespace+"/configmaps?watch=1&labelSelector=shard%3Da")))(t)
	defer direct.Close()
	for i := range 20 {
		size := 10
		if i%10 == 5 {
			size = 700 << 10
		}
		data := map[string]string{"d": strings.Repeat("€\n", size/4)}
		createConfigMap(t, w.namespace, fmt.Sprintf("foreign-%d", i), nil, data)
		createConfigMap(t, w.namespace, fmt.Sprintf("mine-%d", i), map[string]string{"shard": "a"}, data)
	}
	for i := range 20 {
		want := must(direct.Line())(t)
		if got := w.expect("ADDED", fmt.Sprintf("mine-%d", i)); !bytes.Equal(got.raw, want) {
			t.Fatalf("event %d: %.200s, want %.200s", i, got.raw, want)
		}
	}
}

// testUpstreamWatchEnds reads the audit log, which contains a watch once it has ended.
func testUpstreamWatchEnds(t *testing.T, env *testEnv) {
	id := uniqueName("gone-" + env.namespace)
	stream := must(env.proxied.Open(t.Context(), rawhttp.Request{Path: env.configMapsPath("watch=1"), Headers: []string{"Audit-ID: " + id}}))(t)
	must(readEvent(stream))(t)
	if _, err := shared.cluster.AuditEvent(id); err == nil {
		t.Fatal("the watch ended before its client disconnected")
	}
	stream.Close()
	eventually(t, "the API server sees the end of the watch", func() error {
		_, err := shared.cluster.AuditEvent(id)
		return err
	})
}

// testSlowClient writes far more than socket buffers hold while the client does not read. The sidecar must not buffer
// it all, other requests must be served, and the part of the stream that arrives must be intact.
func testSlowClient(t *testing.T, env *testEnv) {
	w := newWatcher(t, env, "")
	before := residentMiB(t, env.sidecar.Process.Pid())
	object := createConfigMap(t, w.namespace, "mine", map[string]string{"shard": "a"}, map[string]string{"d": strings.Repeat("x", 900<<10)})
	for i := range 60 {
		object.Data["n"] = fmt.Sprint(i)
		object = must(shared.client.CoreV1().ConfigMaps(w.namespace).Update(t.Context(), object, meta.UpdateOptions{}))(t)
	}
	assertNarrowed(t, env.get(t, env.configMapsPath("")))
	if grown := residentMiB(t, env.sidecar.Process.Pid()) - before; grown > 24 {
		t.Errorf("the sidecar's memory grew by %d MiB for 54 MiB of unread events", grown)
	}
	w.expect("ADDED", "mine")
	for range 10 {
		w.expect("MODIFIED", "mine")
	}
}
