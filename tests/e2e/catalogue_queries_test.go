package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/rawhttp"
)

// Group A of the catalogue: query strings.

var queryCases = []catalogueCase{
	{"A1_duplicate_selector_means_the_first", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("labelSelector=app%3Dx&labelSelector=app%3Dy")), env.configMapsPath("labelSelector=app%3Dx,shard%3Da"))
	}},
	{"A2_empty_first_selector_leaves_S_alone_in_force", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("labelSelector=&labelSelector=app%3Dx")), env.configMapsPath("labelSelector=shard%3Da"))
	}},
	{"A3_raw_semicolon_drops_the_pair_not_S", func(t *testing.T, env *testEnv) {
		assertRefusedOrNarrowed(t, env.get(t, env.configMapsPath("labelSelector=app%3Dx;x=1")))
		assertRefusedOrNarrowed(t, env.get(t, env.configMapsPath("limit=500&labelSelector=app%3Dx;x=1")))
	}},
	{"A4_bad_escape_drops_the_pair_not_S", func(t *testing.T, env *testEnv) {
		assertRefusedOrNarrowed(t, env.get(t, env.configMapsPath("labelSelector=app%3Dx%zz")))
		assertRefusedOrNarrowed(t, env.get(t, env.configMapsPath("labelSelector=app%3Dx%")))
		assertRefusedOrNarrowed(t, env.get(t, env.configMapsPath("label%zzSelector=app%3Dx")))
	}},
	{"A5_escaped_key_is_the_selector", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("label%53elector=app%3Dx")), env.configMapsPath("labelSelector=app%3Dx,shard%3Da"))
	}},
	{"A6_key_in_other_case_is_no_selector", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("LabelSelector=app%3Dx")), env.configMapsPath("LabelSelector=app%3Dx&labelSelector=shard%3Da"))
	}},
	{"A7_double_encoding_is_400", func(t *testing.T, env *testEnv) {
		assertSameRefusal(t, env, "labelSelector=app%253Dx")
	}},
	{"A8_spellings_of_a_set_mean_the_same", func(t *testing.T, env *testEnv) {
		want := env.configMapsPath("labelSelector=app%3Dx,shard%3Da")
		for _, spelling := range []string{"app+in+(x)", "app%20in%20(x)", "app%20in%20%28x%29", "app+in+(x,x)", "%61pp==x"} {
			env.assertMatchesDirect(t, getRequest(env.configMapsPath("labelSelector="+spelling)), want)
		}
		// Raw blanks break the request line: upstream answers 400, and the sidecar may do the same.
		assertRefusedOrNarrowed(t, env.get(t, env.configMapsPath("labelSelector=app in (x)")))
	}},
	{"A9_invalid_selector_stays_invalid", func(t *testing.T, env *testEnv) {
		for _, invalid := range []string{"app%3D%3D%3D", "%2C", "app%3Dx%2C", "app+in+x", "app+in+(x", "!", "app%3Dx%2C%2Capp%3Dx", "-a%3Db", "a%3D-b-"} {
			assertSameRefusal(t, env, "labelSelector="+invalid)
		}
	}},
	{"A10_watch_values", testWatchValues},
	{"A11_first_watch_value_wins", func(t *testing.T, env *testEnv) {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("watch=0&watch=1")), env.configMapsPath("labelSelector=shard%3Da"))
		env.readWatch(t, env.configMapsPath("watch=1&watch=0&timeoutSeconds=1"))
	}},
	{"A12_undecodable_option_keeps_its_class", func(t *testing.T, env *testEnv) {
		assertSameRefusal(t, env, "limit=x")
		assertSameRefusal(t, env, "timeoutSeconds=x&fieldSelector=metadata.name%3Dforeign-x")
		assertNoForeign(t, env.get(t, env.configMapsPath("resourceVersionMatch=x&watch=x")))
	}},
	{"A13_odd_and_long_queries", testOddQueries},
	{"A14_other_parameters_keep_bytes_and_order", testUntouchedParameters},
	{"A15_client_shard_selector_does_not_replace_S", func(t *testing.T, env *testEnv) {
		whole := url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')")
		env.assertMatchesDirect(t, getRequest(env.configMapsPath("shardSelector="+whole)), env.configMapsPath("labelSelector=shard%3Da"))
	}},
}

// getRequest is a plain GET.
func getRequest(path string) rawhttp.Request { return rawhttp.Request{Path: path} }

// assertSameRefusal asserts a 4xx where upstream sends one. The message may contain the combined selector.
func assertSameRefusal(t *testing.T, env *testEnv, query string) {
	t.Helper()
	want := must(env.direct.Do(t.Context(), getRequest(env.configMapsPath(query))))(t)
	got := env.get(t, env.configMapsPath(query))
	if want.Status < 400 || got.Status != want.Status {
		t.Errorf("%s: status %d (%.300s), upstream %d", query, got.Status, got.Body, want.Status)
	}
	if !strings.Contains(string(got.Body), `"kind":"Status"`) {
		t.Errorf("%s: no Status: %.300s", query, got.Body)
	}
	assertNoForeign(t, got)
}

func testWatchValues(t *testing.T, env *testEnv) {
	for _, value := range []string{"watch", "watch=", "watch=yes", "watch=T", "watch=true", "watch=1", "w%61tch=1"} {
		t.Run(value, func(t *testing.T) {
			t.Parallel() // each lasts for its timeout of one second
			env.readWatch(t, env.configMapsPath(value+"&timeoutSeconds=1"))
		})
	}
	for _, value := range []string{"watch=0", "watch=false", "watch=FALSE", "watch=False"} {
		t.Run(value, func(t *testing.T) {
			env.assertMatchesDirect(t, getRequest(env.configMapsPath(value)), env.configMapsPath("labelSelector=shard%3Da"))
		})
	}
}

func testOddQueries(t *testing.T, env *testEnv) {
	want := env.configMapsPath("labelSelector=app%3Dx,shard%3Da")
	for _, query := range []string{
		"&&labelSelector=app%3Dx", "labelSelector=app%3Dx&&", "a&labelSelector=app%3Dx&b", "=&labelSelector=app%3Dx",
		"labelSelector=app%3Dx&%3D",
	} {
		env.assertMatchesDirect(t, getRequest(env.configMapsPath(query)), want)
	}
	env.assertMatchesDirect(t, getRequest(env.configMapsPath("labelSelector")), env.configMapsPath("labelSelector=shard%3Da"))
	env.assertMatchesDirect(t, getRequest(env.configMapsPath("")+"?"), env.configMapsPath("labelSelector=shard%3Da"))

	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "p%d=%d&", i, i)
	}
	assertTooLongOrNarrowed(t, env.get(t, env.configMapsPath(many.String()+"labelSelector=app%3Dx")))
	assertTooLongOrNarrowed(t, env.get(t, env.configMapsPath("p="+strings.Repeat("x", 64<<10)+"&labelSelector=app%3Dx")))
}

func assertTooLongOrNarrowed(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	switch response.Status {
	case http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge, http.StatusBadRequest:
		assertNoForeign(t, response)
	default:
		assertNarrowed(t, response)
	}
}

// testUntouchedParameters checks the request that arrives upstream: except for the selector it has the client's bytes,
// in the client's order.
func testUntouchedParameters(t *testing.T, env *testEnv) {
	const before, after = "resourceVersion=0&x=%7E%2a+%2B", "fieldManager=a%20b&limit=0500&resourceVersionMatch="
	response, event := env.doAudited(t, getRequest(env.configMapsPath(before+"&labelSelector=app%3Dx&"+after)))
	assertNarrowed(t, response)
	_, query, _ := strings.Cut(event.RequestURI, "?")
	if !strings.HasPrefix(query, before+"&labelSelector=") || !strings.HasSuffix(query, "&"+after) {
		t.Errorf("upstream got %q", query)
	}
	// If the client sent no selector, nothing is replaced: its query comes first or last, complete.
	_, event = env.doAudited(t, getRequest(env.configMapsPath(before+"&"+after)))
	if !strings.Contains(event.RequestURI, before+"&"+after) {
		t.Errorf("upstream got %q", event.RequestURI)
	}
}
