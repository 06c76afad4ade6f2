package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	audit "k8s.io/apiserver/pkg/apis/audit/v1"
)

// The catalogue lists known ways around a shard's selector S (`shard=a`), each case by its number. A case passes only
// if no foreign object appears and the status code is the one that the catalogue names.
// docs/reference/filtering-cases.md lists the other tests of groups C, E, F, G and I.

type catalogueCase struct {
	name string
	run  func(*testing.T, *testEnv)
}

// testEnv gives access to one API server in two ways: through a sidecar of shard `a`, and directly.
type testEnv struct {
	sidecar *sidecar.Sidecar
	proxied rawhttp.Target
	direct  rawhttp.Target
	// namespace and otherNamespace are seeded (see seed_test.go).
	namespace, otherNamespace string
}

func TestKnownBypassesAreClosed(t *testing.T) {
	env := newTestEnv(t)
	for _, group := range [][]catalogueCase{
		queryCases, pathCases, verbCases, selectorCases, listCases, watchCases, encodingCases, upgradeCases,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { c.run(t, env) })
		}
	}
}

// TestKnownBypassesAreClosedOverHTTP2 repeats the cases about queries, paths and encodings over HTTP/2, whose
// requests may contain bytes that HTTP/1.1 can't carry.
func TestKnownBypassesAreClosedOverHTTP2(t *testing.T) {
	env := newTestEnv(t)
	env.proxied.HTTP2 = true
	for _, group := range [][]catalogueCase{queryCases, pathCases, verbCases, encodingCases} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { c.run(t, env) })
		}
	}
	t.Run("bytes_that_only_HTTP2_can_carry_are_refused", func(t *testing.T) {
		for _, target := range []string{
			env.configMapsPath("labelSelector=app in (x)"), env.configMapsPath("labelSelector=app=x\t"), env.configMapsPath("a=\r\nb&labelSelector=app%3Dx"),
			env.configMapsPath("") + " ", " " + env.configMapsPath(""), env.configMapsPath("") + " HTTP/1.1\r\nX: y", "", "*", "configmaps", "http://x" + env.configMapsPath(""),
			"x" + env.configMapsPath(""), env.configMapsPath("labelSelector=app%3Dx\x00"), "//localhost" + env.configMapsPath(""),
		} {
			response, err := env.proxied.Do(t.Context(), getRequest(target))
			if err != nil {
				continue // the stream was reset: the request was refused
			}
			assertNoForeign(t, response)
		}
	})
}

func newTestEnv(t *testing.T) *testEnv {
	t.Helper()
	s := startShardSidecar(t, shardRule("s0", "a"))
	env := &testEnv{sidecar: s, proxied: sidecarTarget(s), direct: shared.direct, namespace: newNamespace(t), otherNamespace: newNamespace(t)}
	seedNamespace(t, env.namespace)
	seedNamespace(t, env.otherNamespace)
	return env
}

// configMapsPath returns the path of the seeded namespace's ConfigMaps, with a query.
func (env *testEnv) configMapsPath(query string) string {
	path := "/api/v1/namespaces/" + env.namespace + "/configmaps"
	if query != "" {
		path += "?" + query
	}
	return path
}

// get sends a GET through the sidecar. A reset stream, which is how HTTP/2 refuses a malformed request, counts as an
// empty 400.
func (env *testEnv) get(t *testing.T, path string, headers ...string) *rawhttp.Response {
	t.Helper()
	response, err := env.proxied.Do(t.Context(), rawhttp.Request{Path: path, Headers: headers})
	if env.proxied.HTTP2 && errors.Is(err, rawhttp.ErrClosed) {
		return &rawhttp.Response{Status: http.StatusBadRequest, Header: http.Header{}}
	}
	check(t, err)
	return response
}

// assertNoForeign fails if the response contains anything of another shard.
func assertNoForeign(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	text := must(response.Text())(t)
	if at := bytes.Index(text, []byte("foreign")); at >= 0 {
		t.Fatalf("the response contains an object of another shard (status %d): ...%.300s", response.Status, text[max(0, at-100):])
	}
}

// assertNarrowed asserts 200, with objects of this shard and none of another.
func assertNarrowed(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	if response.Status != http.StatusOK {
		t.Fatalf("status %d: %s", response.Status, response.Body)
	}
	assertNoForeign(t, response)
	if text := must(response.Text())(t); !bytes.Contains(text, []byte("mine")) {
		t.Fatalf("the response contains no object of this shard: %.600s", text)
	}
}

// assertRefusedOrNarrowed is for requests that upstream reads in an unusual way: a 400 is as good as the shard's
// objects.
func assertRefusedOrNarrowed(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	if response.Status == http.StatusBadRequest {
		assertNoForeign(t, response)
		return
	}
	assertNarrowed(t, response)
}

// assertMatchesDirect asserts the exact bytes that the API server returns for a direct request to `path`, and no
// foreign object.
func (env *testEnv) assertMatchesDirect(t *testing.T, request rawhttp.Request, path string) {
	t.Helper()
	direct := request
	direct.Path = path
	assertNoForeign(t, env.compareWithDirect(t, request, direct))
}

// assertSameAsDirect asserts the response of a direct request, whatever it is.
func (env *testEnv) assertSameAsDirect(t *testing.T, request rawhttp.Request) *rawhttp.Response {
	t.Helper()
	return env.compareWithDirect(t, request, request)
}

// compareWithDirect sends a request directly and through the sidecar. A difference counts only if a second direct
// response equals the first (other writes move resource versions), and only if it occurs five times: a Table contains
// ages in seconds.
func (env *testEnv) compareWithDirect(t *testing.T, request, direct rawhttp.Request) *rawhttp.Response {
	t.Helper()
	restless, differed := "", 0
	for range 20 {
		answer := make(chan func(*testing.T) *rawhttp.Response, 1)
		go func() { answer <- must(env.direct.Do(t.Context(), direct)) }()
		got, err := env.proxied.Do(t.Context(), request)
		before := (<-answer)(t)
		check(t, err)
		d := responseDifference(before, got)
		if d == "" {
			return got
		}
		if restless = responseDifference(before, must(env.direct.Do(t.Context(), direct))(t)); restless != "" {
			continue
		}
		if differed++; differed == 5 {
			t.Fatalf("%s %s %q differs from a direct %s: %s", request.Method, request.Path, request.Headers, direct.Path, d)
		}
	}
	t.Fatalf("repeated direct requests to %s %q differ from each other: %s", direct.Path, direct.Headers, restless)
	return nil
}

// perRequestHeaders differ between connections or between requests.
var perRequestHeaders = []string{"Audit-Id", "Date", "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Trailer"}

// responseDifference describes the difference between two responses; it is empty if none matters.
func responseDifference(want, got *rawhttp.Response) string {
	if want.Status != got.Status {
		return fmt.Sprintf("status %d, want %d: %.600s", got.Status, want.Status, got.Body)
	}
	if !bytes.Equal(bodyToCompare(want), bodyToCompare(got)) {
		return fmt.Sprintf("body:\n%.1500q\nwant:\n%.1500q", got.Body, want.Body)
	}
	expected, actual := want.Header.Clone(), got.Header.Clone()
	for _, name := range perRequestHeaders {
		expected.Del(name)
		actual.Del(name)
	}
	if !maps.EqualFunc(expected, actual, func(a, b []string) bool { return slices.Equal(a, b) }) {
		return fmt.Sprintf("headers %v, want %v", actual, expected)
	}
	return ""
}

// bodyToCompare returns the body, but sorts the bytes of CBOR: there the API server writes the fields of a custom
// resource in random order.
func bodyToCompare(response *rawhttp.Response) []byte {
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "application/cbor") {
		return response.Body
	}
	sorted := slices.Clone(response.Body)
	slices.Sort(sorted)
	return sorted
}

// doAudited sends a request through the sidecar and returns the API server's audit event for it.
func (env *testEnv) doAudited(t *testing.T, request rawhttp.Request) (*rawhttp.Response, *audit.Event) {
	t.Helper()
	id := uniqueName("audit-" + env.namespace)
	request.Headers = append(slices.Clone(request.Headers), "Audit-ID: "+id)
	response := must(env.proxied.Do(t.Context(), request))(t)
	var event *audit.Event
	eventually(t, "audit event of "+request.Path, func() (err error) {
		event, err = shared.cluster.AuditEvent(id)
		return err
	})
	return response, event
}

// readWatch reads a watch that ends by itself; the caller puts `timeoutSeconds=1` into the path.
func (env *testEnv) readWatch(t *testing.T, path string, headers ...string) string {
	t.Helper()
	response := env.get(t, path, headers...)
	assertNarrowed(t, response)
	text := string(must(response.Text())(t))
	if !strings.Contains(text, "ADDED") {
		t.Fatalf("%s is not a watch: %.600s", path, text)
	}
	return text
}
