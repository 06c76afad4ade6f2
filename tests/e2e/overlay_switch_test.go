package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// This file checks that docs/install.md says how to delete what one overlay has and the next has not, because `kubectl
// apply` leaves it.

func TestDocumentedOverlaySwitchDeletesLeftovers(t *testing.T) {
	t.Parallel()
	want := map[string][]string{}
	base := deletableObjects(t, deployDir)
	for _, path := range kustomizations(t) {
		// Written as in a command in the repository's root.
		name := strings.TrimPrefix(path, filepath.Dir(deployDir)+"/")
		of := deletableObjects(t, path)
		want["# from deploy/ to "+name] = difference(base, of)
		want["# from "+name+" to deploy/"] = difference(of, base)
	}
	maps.DeleteFunc(want, func(_ string, objects []string) bool { return len(objects) == 0 })
	if len(want) == 0 {
		t.Fatal("no overlay has objects that another has not")
	}
	got := documentedDeletions(t)
	for _, change := range slices.Sorted(maps.Keys(want)) {
		if !slices.Equal(got[change], want[change]) {
			t.Errorf("%s: docs/install.md deletes\n%q, it must delete\n%q", change, got[change], want[change])
		}
		delete(got, change)
	}
	for change, objects := range got {
		t.Errorf("%s: docs/install.md deletes %q, but nothing is left there", change, objects)
	}
}

// deletableObjects returns the objects of an overlay as arguments of `kubectl delete`.
func deletableObjects(t *testing.T, path string) []string {
	t.Helper()
	names := []string{}
	for _, object := range parseManifests(t, kustomize(t, path)) {
		name := strings.ToLower(object.GetKind()) + "/" + object.GetName()
		if namespace := object.GetNamespace(); namespace != "" {
			name = "-n " + namespace + " " + name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func difference(all, others []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(name string) bool { return slices.Contains(others, name) })
}

// documentedDeletions returns the arguments of the documented `kubectl delete` commands, by the comment above them.
func documentedDeletions(t *testing.T) map[string][]string {
	t.Helper()
	text := string(must(os.ReadFile("../../docs/install.md"))(t))
	found, change := map[string][]string{}, ""
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if strings.HasPrefix(line, "# from deploy/") {
			change = strings.TrimSpace(line)
		} else if change == "" || len(words) == 0 || words[0] != "kubectl" {
			change = ""
		} else {
			command, objects, isDelete := strings.Cut(strings.Join(words, " "), " delete ")
			if !isDelete {
				t.Fatalf("docs/install.md has a command other than kubectl delete: %q", line)
			}
			in := strings.TrimPrefix(strings.TrimPrefix(command, "kubectl"), " ")
			for _, object := range strings.Fields(objects) {
				found[change] = append(found[change], strings.TrimSpace(in+" "+object))
			}
		}
	}
	for _, objects := range found {
		slices.Sort(objects)
	}
	return found
}
