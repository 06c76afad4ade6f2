package main

import (
	"net/url"
	"strings"
)

type query struct {
	In string `json:"in"`
	// Dropped is true if a pair was skipped.
	Dropped bool                `json:"dropped,omitempty"`
	Values  map[string][]string `json:"values"`
}

func queries() []query {
	var out []query
	for _, text := range queryInputs() {
		values, err := url.ParseQuery(text)
		out = append(out, query{In: text, Dropped: err != nil, Values: values})
	}
	return out
}

// queryInputs begins with group A of the catalogue.
func queryInputs() []string {
	in := newInputs(4,
		"", "labelSelector=a=0&labelSelector=a=1", "labelSelector=&labelSelector=a=0", "labelSelector=a=0;x=1",
		"labelSelector=a%3D0%zz", "label%53elector=a%3D0", "LabelSelector=a%3D0", "labelSelector=a%253D0", "labelSelector=a+in+(0)",
		"labelSelector=a%20in%20(0)", "labelSelector=a===", "labelSelector=,", "labelSelector=a=0,", "&&labelSelector=a",
		"labelSelector", "labelSelector&labelSelector=a", "labelSelector=a&", "=a", "=", "&", "&&&", "==", "a==b", "a=b=c", "a=%", "a=%4",
		"a=%4g", "%=a", "%zz=a", "a%3Db", "a%3Db=c", "a%26b=c%26d", "a;b", ";", ";;", "a=1;b=2&c=3", "c=3&a=1;b=2", "a=%3B", "%3B=a",
		"+=+", "a+b=c+d", "a%2Bb=c%2Bd", "a=%00", "a=%ff", "%ff=a", "a=%C3%A4", "a=\u00e4", "a=b#c", "a=b?c", "a=b/c", "a=b:c@d", "a[]=b",
		"labelSelector=a%3D0&fieldSelector=metadata.name%3Dx&limit=500&resourceVersion=0", "labelSelector=%21a", "labelSelector=a%00b",
		"labelSelector=a%0Ab", "labelSelector=a&labelSelector", "labelSelector=a&label%53elector=b", "labelSelector=%2561",
		"labelSelector=a&limit=5;", "limit=5;&labelSelector=a", "labelSelector=%a&labelSelector=b", "labelSelector=b&labelSelector=%a",
		"lab%65lSelect%6Fr=x%2Cy", "labelSelector=a%2520in%2520(b)", "labelSelector=a%09in%09(b)", "labelselector=a", "labelSelector =a",
		"+labelSelector=a", "labelSelector+=a", "labelSelector%20=a", "%20labelSelector=a", "labelSelector%00=a", "labelSelector[]=a",
	)
	in.assemble(500, 12, []string{
		"a", "b", "=", "&", ";", "%", "%3D", "%26", "%61", "+", "labelSelector", "labelSelector=", "label%53elector=", "%zz", "%ff", "\u00e4", "1",
	})
	in.mutate(300, []string{"&", "=", ";", "%", "%25", "%2", "+", "a", "labelSelector=x", "%C3%A4"})
	in.add(strings.Repeat("a=1&", 1000)+"b=2", strings.Repeat("&", 9999), strings.Repeat("&", 9998)+"a")
	return in.all
}
