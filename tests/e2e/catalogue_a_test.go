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

var catalogueA = []catalogueCase{
	{"A1_duplicate_selector_means_the_first", func(t *testing.T, v *view) {
		v.like(t, get(v.configMaps("labelSelector=app%3Dx&labelSelector=app%3Dy")), v.configMaps("labelSelector=app%3Dx,shard%3Da"))
	}},
	{"A2_empty_first_selector_leaves_S_alone_in_force", func(t *testing.T, v *view) {
		v.like(t, get(v.configMaps("labelSelector=&labelSelector=app%3Dx")), v.configMaps("labelSelector=shard%3Da"))
	}},
	{"A3_raw_semicolon_drops_the_pair_not_S", func(t *testing.T, v *view) {
		refusedOrNarrowed(t, v.get(t, v.configMaps("labelSelector=app%3Dx;x=1")))
		refusedOrNarrowed(t, v.get(t, v.configMaps("limit=500&labelSelector=app%3Dx;x=1")))
	}},
	{"A4_bad_escape_drops_the_pair_not_S", func(t *testing.T, v *view) {
		refusedOrNarrowed(t, v.get(t, v.configMaps("labelSelector=app%3Dx%zz")))
		refusedOrNarrowed(t, v.get(t, v.configMaps("labelSelector=app%3Dx%")))
		refusedOrNarrowed(t, v.get(t, v.configMaps("label%zzSelector=app%3Dx")))
	}},
	{"A5_escaped_key_is_the_selector", func(t *testing.T, v *view) {
		v.like(t, get(v.configMaps("label%53elector=app%3Dx")), v.configMaps("labelSelector=app%3Dx,shard%3Da"))
	}},
	{"A6_key_in_other_case_is_no_selector", func(t *testing.T, v *view) {
		v.like(t, get(v.configMaps("LabelSelector=app%3Dx")), v.configMaps("LabelSelector=app%3Dx&labelSelector=shard%3Da"))
	}},
	{"A7_double_encoding_is_400", func(t *testing.T, v *view) {
		sameRefusal(t, v, "labelSelector=app%253Dx")
	}},
	{"A8_spellings_of_a_set_mean_the_same", func(t *testing.T, v *view) {
		want := v.configMaps("labelSelector=app%3Dx,shard%3Da")
		for _, spelling := range []string{"app+in+(x)", "app%20in%20(x)", "app%20in%20%28x%29", "app+in+(x,x)", "%61pp==x"} {
			v.like(t, get(v.configMaps("labelSelector="+spelling)), want)
		}
		// Raw blanks break the request line: upstream answers 400, and so may we.
		refusedOrNarrowed(t, v.get(t, v.configMaps("labelSelector=app in (x)")))
	}},
	{"A9_invalid_selector_stays_invalid", func(t *testing.T, v *view) {
		for _, invalid := range []string{"app%3D%3D%3D", "%2C", "app%3Dx%2C", "app+in+x", "app+in+(x", "!", "app%3Dx%2C%2Capp%3Dx", "-a%3Db", "a%3D-b-"} {
			sameRefusal(t, v, "labelSelector="+invalid)
		}
	}},
	{"A10_watch_values", watchValues},
	{"A11_first_watch_value_wins", func(t *testing.T, v *view) {
		v.like(t, get(v.configMaps("watch=0&watch=1")), v.configMaps("labelSelector=shard%3Da"))
		v.watched(t, v.configMaps("watch=1&watch=0&timeoutSeconds=1"))
	}},
	{"A12_undecodable_option_keeps_its_class", func(t *testing.T, v *view) {
		sameRefusal(t, v, "limit=x")
		sameRefusal(t, v, "timeoutSeconds=x&fieldSelector=metadata.name%3Dforeign-x")
		isolated(t, v.get(t, v.configMaps("resourceVersionMatch=x&watch=x")))
	}},
	{"A13_odd_and_long_queries", oddQueries},
	{"A14_other_parameters_keep_bytes_and_order", untouchedParameters},
	{"A15_client_shard_selector_does_not_replace_S", func(t *testing.T, v *view) {
		whole := url.QueryEscape("shardRange(object.metadata.uid, '0x0000000000000000', '0x10000000000000000')")
		v.like(t, get(v.configMaps("shardSelector="+whole)), v.configMaps("labelSelector=shard%3Da"))
	}},
}

// get is a request without anything special.
func get(path string) rawhttp.Request { return rawhttp.Request{Path: path} }

// sameRefusal demands a 4xx where upstream answers one, also with S in force; the message may tell of the whole selector.
func sameRefusal(t *testing.T, v *view, query string) {
	t.Helper()
	want := must(v.direct.Do(t.Context(), get(v.configMaps(query))))(t)
	got := v.get(t, v.configMaps(query))
	if want.Status < 400 || got.Status != want.Status {
		t.Errorf("%s: status %d (%.300s), upstream %d", query, got.Status, got.Body, want.Status)
	}
	if !strings.Contains(string(got.Body), `"kind":"Status"`) {
		t.Errorf("%s: no Status: %.300s", query, got.Body)
	}
	isolated(t, got)
}

func watchValues(t *testing.T, v *view) {
	for _, value := range []string{"watch", "watch=", "watch=yes", "watch=T", "watch=true", "watch=1", "w%61tch=1"} {
		t.Run(value, func(t *testing.T) {
			t.Parallel() // each lasts for its timeout of one second
			v.watched(t, v.configMaps(value+"&timeoutSeconds=1"))
		})
	}
	for _, value := range []string{"watch=0", "watch=false", "watch=FALSE", "watch=False"} {
		t.Run(value, func(t *testing.T) {
			v.like(t, get(v.configMaps(value)), v.configMaps("labelSelector=shard%3Da"))
		})
	}
}

func oddQueries(t *testing.T, v *view) {
	want := v.configMaps("labelSelector=app%3Dx,shard%3Da")
	for _, query := range []string{
		"&&labelSelector=app%3Dx", "labelSelector=app%3Dx&&", "a&labelSelector=app%3Dx&b", "=&labelSelector=app%3Dx",
		"labelSelector=app%3Dx&%3D",
	} {
		v.like(t, get(v.configMaps(query)), want)
	}
	v.like(t, get(v.configMaps("labelSelector")), v.configMaps("labelSelector=shard%3Da"))
	v.like(t, get(v.configMaps("")+"?"), v.configMaps("labelSelector=shard%3Da"))

	var many strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&many, "p%d=%d&", i, i)
	}
	tooLongOrNarrowed(t, v.get(t, v.configMaps(many.String()+"labelSelector=app%3Dx")))
	tooLongOrNarrowed(t, v.get(t, v.configMaps("p="+strings.Repeat("x", 64<<10)+"&labelSelector=app%3Dx")))
}

func tooLongOrNarrowed(t *testing.T, response *rawhttp.Response) {
	t.Helper()
	switch response.Status {
	case http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge, http.StatusBadRequest:
		isolated(t, response)
	default:
		narrowed(t, response)
	}
}

// untouchedParameters looks at what arrives upstream: all but the selector has the client's bytes, in its order.
func untouchedParameters(t *testing.T, v *view) {
	const before, after = "resourceVersion=0&x=%7E%2a+%2B", "fieldManager=a%20b&limit=0500&resourceVersionMatch="
	response, event := v.arrived(t, get(v.configMaps(before+"&labelSelector=app%3Dx&"+after)))
	narrowed(t, response)
	_, query, _ := strings.Cut(event.RequestURI, "?")
	if !strings.HasPrefix(query, before+"&labelSelector=") || !strings.HasSuffix(query, "&"+after) {
		t.Errorf("upstream got %q", query)
	}
	// Without a selector of the client's there is nothing to replace: what was sent comes first or last, but whole.
	_, event = v.arrived(t, get(v.configMaps(before+"&"+after)))
	if !strings.Contains(event.RequestURI, before+"&"+after) {
		t.Errorf("upstream got %q", event.RequestURI)
	}
}
