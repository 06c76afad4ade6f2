package images

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestFindProgramArchive finds the archive of a release by the program's name alone.
func TestFindProgramArchive(t *testing.T) {
	release := Release{Programs: t.TempDir(), Archives: t.TempDir(), Registry: "registry.example/mesh", Version: "1.2"}
	static := must(os.ReadFile(buildHello(t)))(t)
	for _, image := range releasedImages {
		check(t, os.WriteFile(filepath.Join(release.Programs, image.program), static, 0o755))
	}
	for at, made := range must(release.Make())(t) {
		archive, name, err := Find(release.Archives, releasedImages[at].program)
		if err != nil || archive != made.Path || name != made.Name {
			t.Errorf("found %s in %s, %v, want %s in %s", name, archive, err, made.Name, made.Path)
		}
	}
}

// TestFindProgramArchiveFailsUnlessThereIsOne: several archives of a program are an error, and so is none.
func TestFindProgramArchiveFailsUnlessThereIsOne(t *testing.T) {
	file := func(version string) string { return "hello-" + version + "-linux-" + runtime.GOARCH + ".tar" }
	empty := filepath.Join(t.TempDir(), "empty.tar")
	check(t, writeArchive(empty, nil))
	nameless := filepath.Join(t.TempDir(), "nameless.tar")
	check(t, writeArchive(nameless, map[string][]byte{"index.json": []byte(`{"manifests": [{}]}`)}))
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"no archive":         {nil, "found 0 archives"},
		"other architecture": {map[string]string{"hello-1-linux-riscv64.tar": empty}, "found 0 archives"},
		"two versions":       {map[string]string{file("1"): empty, file("2"): empty}, "found 2 archives"},
		"not a layout":       {map[string]string{file("1"): empty}, "it has no index.json"},
		"no name":            {map[string]string{file("1"): nameless}, "one image with a name"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, source := range test.files {
				check(t, os.Link(source, filepath.Join(dir, name)))
			}
			if _, _, err := Find(dir, "hello"); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
