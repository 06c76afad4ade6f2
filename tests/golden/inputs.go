package main

import (
	"math/rand/v2"
	"strings"
	"unicode/utf8"
)

// inputs collects distinct strings in the order in which they were added. JSON files can only contain UTF-8, so strings
// in which a mutation has cut a character are left out.
type inputs struct {
	seen   map[string]bool
	all    []string
	random *rand.Rand
}

func newInputs(seed uint64, first ...string) *inputs {
	in := &inputs{seen: map[string]bool{}, random: rand.New(rand.NewPCG(seed, seed))}
	in.add(first...)
	return in
}

func (in *inputs) add(texts ...string) {
	for _, text := range texts {
		if !in.seen[text] && utf8.ValidString(text) {
			in.seen[text] = true
			in.all = append(in.all, text)
		}
	}
}

// combine adds every combination of one piece from each set.
func (in *inputs) combine(sets ...[]string) {
	texts := []string{""}
	for _, set := range sets {
		var longer []string
		for _, text := range texts {
			for _, piece := range set {
				longer = append(longer, text+piece)
			}
		}
		texts = longer
	}
	in.add(texts...)
}

// assemble adds texts made of random pieces.
func (in *inputs) assemble(count, pieces int, set []string) {
	for range count {
		var text strings.Builder
		for range 1 + in.random.IntN(pieces) {
			text.WriteString(set[in.random.IntN(len(set))])
		}
		in.add(text.String())
	}
}

// mutate adds copies of earlier texts with up to three changes.
func (in *inputs) mutate(count int, set []string) {
	base := len(in.all)
	for range count {
		text := in.all[in.random.IntN(base)]
		for range 1 + in.random.IntN(3) {
			text = in.mutation(text, set)
		}
		in.add(text)
	}
}

func (in *inputs) mutation(text string, set []string) string {
	from := in.random.IntN(len(text) + 1)
	to := from + in.random.IntN(min(4, len(text)-from+1))
	piece := set[in.random.IntN(len(set))]
	switch in.random.IntN(3) {
	case 0: // insert
		return text[:from] + piece + text[from:]
	case 1: // replace
		return text[:from] + piece + text[to:]
	default: // delete
		return text[:from] + text[to:]
	}
}
