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

// The catalogue: known ways around a shard's selector S (`shard=a`), each case by its number. A case passes only if no
// foreign object appears and the status is the one that the catalogue names. README.md lists the numbers that concern
// modes which do not exist yet.

type catalogueCase struct {
	name string
	run  func(*testing.T, *view)
}

// view is one API server seen in two ways: through a sidecar that owns shard `a`, and directly.
type view struct {
	sidecar *sidecar.Sidecar
	through rawhttp.Target
	direct  rawhttp.Target
	// namespace is seeded (see seed_test.go), and so is the other one.
	namespace, other string
}

func TestCatalogue(t *testing.T) {
	v := newView(t)
	for _, group := range [][]catalogueCase{
		catalogueA, catalogueB, catalogueC, catalogueD, catalogueE, catalogueF, catalogueG, catalogueH,
	} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { c.run(t, v) })
		}
	}
}

// TestCatalogueOverHTTP2 asks the questions about queries, paths and encodings once more in HTTP/2, whose requests may
// hold bytes that HTTP/1.1 can't.
func TestCatalogueOverHTTP2(t *testing.T) {
	v := newView(t)
	v.through.HTTP2 = true
	for _, group := range [][]catalogueCase{catalogueA, catalogueB, catalogueC, catalogueG} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { c.run(t, v) })
		}
	}
	t.Run("bytes_that_only_HTTP2_can_carry", func(t *testing.T) {
		for _, target := range []string{
			v.configMaps("labelSelector=app in (x)"), v.configMaps("labelSelector=app=x\t"), v.configMaps("a=\r\nb&labelSelector=app%3Dx"),
			v.configMaps("") + " ", " " + v.configMaps(""), v.configMaps("") + " HTTP/1.1\r\nX: y", "", "*", "configmaps", "http://x" + v.configMaps(""),
			"x" + v.configMaps(""), v.configMaps("labelSelector=app%3Dx\x00"), "//localhost" + v.configMaps(""),
		} {
			response, err := v.through.Do(t.Context(), get(target))
			if err != nil {
				continue // the stream was reset: nothing came of it
			}
			isolated(t, response)
		}
	})
}

func newView(t *testing.T) *view {
	t.Helper()
	s := startShard(t, shardRule("s0", "a"))
	v := &view{sidecar: s, through: through(s), direct: shared.direct, namespace: newNamespace(t), other: newNamespace(t)}
	seed(t, v.namespace)
	seed(t, v.other)
	return v
}

// configMaps is the path of the seeded namespace's collection with a query.
func (v *view) configMaps(query string) string {
	path := "/api/v1/namespaces/" + v.namespace + "/configmaps"
	if query != "" {
		path += "?" + query
	}
	return path
}

// get sends a GET through the sidecar. A stream that is reset, which is how HTTP/2 refuses what is no request, counts as
// an empty 400.
func (v *view) get(t *testing.T, path string, headers ...string) *rawhttp.Response {
	t.Helper()
	response, err := v.through.Do(t.Context(), rawhttp.Request{Path: path, Headers: headers})
	if v.through.HTTP2 && errors.Is(err, rawhttp.ErrClosed) {
		return &rawhttp.Response{Status: http.StatusBadRequest, Header: http.Header{}}
	}
	check(t, err)
	return response
}

// isolated fails if the answer shows anything of another shard.
func isolated(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	text := must(response.Text())(t)
	if at := bytes.Index(text, []byte("foreign")); at >= 0 {
		t.Fatalf("an object of another shard got through (status %d): ...%.300s", response.Status, text[max(0, at-100):])
	}
}

// narrowed demands 200, something of the own shard and nothing of another one.
func narrowed(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	if response.Status != http.StatusOK {
		t.Fatalf("status %d: %s", response.Status, response.Body)
	}
	isolated(t, response)
	if text := must(response.Text())(t); !bytes.Contains(text, []byte("mine")) {
		t.Fatalf("nothing of the own shard in the answer: %.600s", text)
	}
}

// refusedOrNarrowed is for requests that upstream reads in an odd way: a 400 is as good as the shard's objects.
func refusedOrNarrowed(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	if response.Status == http.StatusBadRequest {
		isolated(t, response)
		return
	}
	narrowed(t, response)
}

// like demands the very bytes that the API server answers when asked directly for `path`, and no foreign object.
func (v *view) like(t *testing.T, asked rawhttp.Request, path string) {
	t.Helper()
	direct := asked
	direct.Path = path
	isolated(t, v.same(t, asked, direct))
}

// asUpstream demands the answer of a direct call, whatever it is.
func (v *view) asUpstream(t *testing.T, asked rawhttp.Request) *rawhttp.Response {
	t.Helper()
	return v.same(t, asked, asked)
}

// same sends one request directly and one through the sidecar. Answers that differ count only if a second direct one is
// like the first (other writes move resource versions), and that each time: a Table tells how old things are, in seconds.
func (v *view) same(t *testing.T, asked, direct rawhttp.Request) *rawhttp.Response {
	t.Helper()
	restless, differed := "", 0
	for range 20 {
		answer := make(chan func(*testing.T) *rawhttp.Response, 1)
		go func() { answer <- must(v.direct.Do(t.Context(), direct)) }()
		got, err := v.through.Do(t.Context(), asked)
		before := (<-answer)(t)
		check(t, err)
		d := difference(before, got)
		if d == "" {
			return got
		}
		if restless = difference(before, must(v.direct.Do(t.Context(), direct))(t)); restless != "" {
			continue
		}
		if differed++; differed == 5 {
			t.Fatalf("%s %s %q differs from a direct %s: %s", asked.Method, asked.Path, asked.Headers, direct.Path, d)
		}
	}
	t.Fatalf("a direct %s %q never gives the same answer twice: %s", direct.Path, direct.Headers, restless)
	return nil
}

// differing headers belong to a connection or to one single request.
var differing = []string{"Audit-Id", "Date", "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Trailer"}

// difference between two answers in words; empty if there is none that matters.
func difference(want, got *rawhttp.Response) string {
	if want.Status != got.Status {
		return fmt.Sprintf("status %d, want %d: %.600s", got.Status, want.Status, got.Body)
	}
	if !bytes.Equal(bodyToCompare(want), bodyToCompare(got)) {
		return fmt.Sprintf("body:\n%.1500q\nwant:\n%.1500q", got.Body, want.Body)
	}
	expected, actual := want.Header.Clone(), got.Header.Clone()
	for _, name := range differing {
		expected.Del(name)
		actual.Del(name)
	}
	if !maps.EqualFunc(expected, actual, func(a, b []string) bool { return slices.Equal(a, b) }) {
		return fmt.Sprintf("headers %v, want %v", actual, expected)
	}
	return ""
}

// bodyToCompare is the body, but for CBOR: there the API server writes the fields of a custom resource in random order, so
// that only the bytes as a set can be compared.
func bodyToCompare(response *rawhttp.Response) []byte {
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "application/cbor") {
		return response.Body
	}
	sorted := slices.Clone(response.Body)
	slices.Sort(sorted)
	return sorted
}

// arrived sends a request through the sidecar and returns what the API server noted of it.
func (v *view) arrived(t *testing.T, request rawhttp.Request) (*rawhttp.Response, *audit.Event) {
	t.Helper()
	id := unique("audit-" + v.namespace)
	request.Headers = append(slices.Clone(request.Headers), "Audit-ID: "+id)
	response := must(v.through.Do(t.Context(), request))(t)
	var event *audit.Event
	eventually(t, "audit event of "+request.Path, func() (err error) {
		event, err = shared.cluster.Audited(id)
		return err
	})
	return response, event
}

// watched reads a watch that ends by itself after `timeoutSeconds=1`, which the caller puts into the path.
func (v *view) watched(t *testing.T, path string, headers ...string) string {
	t.Helper()
	response := v.get(t, path, headers...)
	narrowed(t, response)
	text := string(must(response.Text())(t))
	if !strings.Contains(text, "ADDED") {
		t.Fatalf("%s is not a watch: %.600s", path, text)
	}
	return text
}
