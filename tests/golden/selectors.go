package main

import (
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

type selector struct {
	In    string `json:"in"`
	Error bool   `json:"error,omitempty"`
	// Out is the canonical form.
	Out string `json:"out,omitempty"`
	// Matches has a digit for each sample object: 1 if the selector matches it.
	Matches string `json:"matches,omitempty"`
	// And is the canonical form after shard was added to a label selector.
	And string `json:"and,omitempty"`
	// Exact is the value that a field selector requires of metadata.name.
	Exact *string `json:"exact,omitempty"`
}

// samples are repeated in the Rust test.
var samples = []map[string]string{
	{},
	{"a": "1", "b": "x"},
	{"a": "5", "x.io/b": "", "in": "notin"},
	{"a": "", "b": "y", "metadata.name": "x", "metadata.namespace": "n1"},
}

// shard is repeated in the Rust test.
const shard = "a!=2,x.io/shard in (b,a)"

func labelSelectors() []selector {
	added, err := labels.ParseToRequirements(shard)
	must(err)
	var out []selector
	for _, text := range labelInputs() {
		parsed, err := labels.Parse(text)
		if err != nil {
			out = append(out, selector{In: text, Error: true})
			continue
		}
		line := selector{In: text, Out: parsed.String(), And: parsed.Add(added...).String()}
		for _, sample := range samples {
			line.Matches += matchDigit(parsed.Matches(labels.Set(sample)))
		}
		out = append(out, line)
	}
	return out
}

func fieldSelectors() []selector {
	var out []selector
	for _, text := range fieldInputs() {
		parsed, err := fields.ParseSelector(text)
		if err != nil {
			out = append(out, selector{In: text, Error: true})
			continue
		}
		line := selector{In: text, Out: parsed.String()}
		for _, sample := range samples {
			line.Matches += matchDigit(parsed.Matches(fields.Set(sample)))
		}
		if name, ok := parsed.RequiresExactMatch("metadata.name"); ok {
			line.Exact = &name
		}
		out = append(out, line)
	}
	return out
}

func matchDigit(is bool) string {
	if is {
		return "1"
	}
	return "0"
}

func labelInputs() []string {
	a63, dns253 := strings.Repeat("a", 63), strings.Repeat("a.", 126)+"a"
	in := newInputs(5,
		"", " ", "a", "!a", "a=", "a==", "a!=", "a=1", "a==1", "a!=1", "a===", ",", "a,", ",a", "a,,b", "a=0,", "a in (1)", "a notin (1)",
		"a in ()", "a in (,)", "a in (,,)", "a in (,1)", "a in (1,)", "a in (1,,2)", "a in (2,1,2)", "a in(1)", "a  in\t(\n1\r)", "a in ((1))",
		"a in 1", "a in", "a in (", "a in (1", "a in (1 2)", "a in (1))", "a in (!1)", "a in (=)", "a>1", "a<1", "a>", "a>x", "a>1.5", "a>-1", "a>+1",
		"a>0x1", "a> 5", "a >5", "a<9223372036854775807", "a<9223372036854775808", "a>=1", "a=>1", "a<>1", "!a=1", "!!a", "! a", "!", "=1", "(a)", "a b",
		"a=b=c", "a=!b", "a=(b)", "a=b c", "in", "notin", "in in (in)", "notin notin (notin)", "in=in", "!in", "in,notin", "a=in", "a in (in,notin)",
		"in notin", "x.io/b", "x.io/b=1", "X.io/b", "x_y/b", "x..y/b", "-x/b", "x-/b", "/b", "x/", "x/y/z", a63, a63+"a", "a="+a63, "a="+a63+"a",
		dns253+"/b", dns253+"a/b", strings.Repeat("a", 64)+"/b", "-a", "a-", "_a", "a_", ".a", "a.", "a-_.b", "a=-b", "a=b-", "a=b-_.c", "A=B", "a=b/c",
		"a=b;c", "a&b", "a=\u00e4", "\u00e4", "a\u00a0=1", "a=\"1\"", "a='1'", "a=1\x00", "a\x00=1", "a=\x001", "\x00a", "a=1\x00\x00,b=2", "a=1,\x00b", "a\x00b",
		"a=1\x00,b=2", "a in (1\x00,2)", "a in (\x00)", "a=1 \x00,b", "a!\x00=1", "a=\x00=1", "a\v=1", "a\f", "a=1,a=2", "a,!a", "z,a,m", "b in (y,x),a=1",
		"b!=x,a>2,!c,in", "a=1,b=x,x.io/b,in=notin", "a%3D1", "a=%31", "a==!1", "a!==1", "a=!=1", "!a,", "!a,!b", "!a b", "!in (a)", "a in (a),", "a in (a)b",
	)
	in.combine(
		[]string{"a", "!a", "x.io/b", "in", " a "},
		[]string{"", "=", "==", "!=", " in ", " notin ", ">", "<", "="},
		[]string{"", "1", "x", "(1)", "(x,1,)", "()", "in"},
		[]string{"", ",b", ",!b"},
	)
	in.assemble(600, 10, []string{
		"a", "b", "1", "in", "notin", " in (", " notin (", "(", ")", ",", ",", "!", "=", "==", "!=", ">", "<", " ", "\t", "x.io/", "-", "\x00", "a=1", "b in (x,y)",
	})
	in.mutate(500, []string{",", "=", "!", "(", ")", " ", "in", "a", "1", ">", "-", "\x00", "\n"})
	return in.all
}

func fieldInputs() []string {
	in := newInputs(6,
		"", ",", ",,", "a", "a=", "=a", "=", "==", "!=", "a=b", "a==b", "a!=b", "a===b", "a=b=c", "a!b", "a!b=c", "a=!b", "a!==b", "a!=!b", "a==!b", " a = b ",
		"a=b,c=d", "c=d,a=b", "a=b,", ",a=b", "a=b,,c=d", "a=b,c", `a=b\,c`, `a=b\=c`, `a=b\\`, `a=b\`, `a=b\x`, `a=b\\\,c`, `a=\,`, `a=\=`, `a\=b`, `a\,b=c`, `a\`,
		`\,=a`, `\\,a=b`, `\`, `a=b\\,c=d`, `a=b\\\,c=d`, "metadata.name=x", "metadata.name==x", "metadata.name!=x", "metadata.name=", "metadata.name=x,metadata.name=y",
		"metadata.name!=y,metadata.name=x", "metadata.name=y,metadata.name!=x", "metadata.namespace=n1,metadata.name=x", "metadata.name=x\\", "Metadata.name=x",
		"metadata.name =x", "metadata.name= x", "spec.nodeName=", "a>b", "a in (b)", "a=\u00e4", "\u00e4=\u00e4\\,", "a=\x00", "a=b\x00c", "=,a=b", "=,=", "!=,a", "a=1,b=x",
		"a=(b)", "a=b c", "b!=x,a=1", "a!=1,a=1", "\u00e4\\,\u00e4=1",
	)
	in.combine(
		[]string{"a", "", "metadata.name", `a\`, "!"},
		[]string{"=", "==", "!=", ""},
		[]string{"", "1", "x", `\,`, `\\`, `\=`, "!", "="},
		[]string{"", ",b=x", `,\`},
	)
	in.assemble(500, 10, []string{"a", "b", "1", "x", "=", "==", "!=", "!", ",", `\`, `\\`, `\,`, `\=`, " ", "metadata.name", "metadata.name=x", "\u00e4"})
	in.mutate(200, []string{",", "=", "!", `\`, "a", " ", "=="})
	return in.all
}
