package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestArchiveIsReadAndRun reads an archive as a registry or a node does, and runs its program in a root directory
// without other files.
func TestArchiveIsReadAndRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "authorities")
	check(t, os.WriteFile(file, []byte("nobody"), 0o600))
	image := Image{
		Name: "registry.example/team/hello:1.2", Entrypoint: []string{"/hello"}, User: "1359:1360",
		Files:  map[string]string{"/hello": buildHello(t), "/etc/ssl/authorities": file},
		Labels: map[string]string{"title": "hello"}, Compressed: true,
	}
	archive := filepath.Join(t.TempDir(), "image.tar")
	check(t, image.Write(archive))
	read := must(openArchive(archive))(t)

	annotations := map[string]string{
		"io.containerd.image.name": "registry.example/team/hello:1.2", "org.opencontainers.image.ref.name": "1.2",
	}
	for name, value := range annotations {
		if got := read.index.Annotations[name]; got != value {
			t.Errorf("%s is %q, not %q", name, got, value)
		}
	}
	if got, want := *read.index.Platform, (platform{Architecture: runtime.GOARCH, OS: "linux"}); got != want {
		t.Errorf("the index says %+v, not %+v", got, want)
	}
	config := read.config
	if config.Architecture != runtime.GOARCH || config.OS != "linux" {
		t.Errorf("the image is for %s/%s", config.OS, config.Architecture)
	}
	if !slices.Equal(config.Config.Entrypoint, []string{"/hello"}) || config.Config.User != "1359:1360" ||
		config.Config.Labels["title"] != "hello" {
		t.Errorf("the image runs %+v", config.Config)
	}
	want := []string{
		"etc/ drwxr-xr-x", "etc/ssl/ drwxr-xr-x", "tmp/ dtrwxrwxrwx", "etc/ssl/authorities -rw-r--r--", "hello -rwxr-xr-x",
	}
	var got []string
	for _, entry := range read.entries {
		got = append(got, entry.Name+" "+entry.FileInfo().Mode().String())
		if entry.Uid != 0 || entry.Gid != 0 || !entry.ModTime.Equal(time.Unix(0, 0)) {
			t.Errorf("%s belongs to user %d and group %d, modified at %s", entry.Name, entry.Uid, entry.Gid, entry.ModTime)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the image contains %q, not %q", got, want)
	}
	if said, want := runImage(t, read), "user 1359 group 1360\netc\nhello\ntmp\n"; said != want {
		t.Errorf("the program prints %q, not %q", said, want)
	}
}

// TestArchiveIsReproducible writes the same files twice: people who rebuild a release can compare it.
func TestArchiveIsReproducible(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	image := Image{Name: "hello:1", Files: map[string]string{"/b": file, "/a": file, "/c/d": file}, Compressed: true}
	var archives [][]byte
	for at := range 2 {
		check(t, os.WriteFile(file, []byte("content"), 0o644))
		moment := time.Unix(int64(at)*1e6, 0)
		check(t, os.Chtimes(file, moment, moment))
		archive := filepath.Join(t.TempDir(), "image.tar")
		check(t, image.Write(archive))
		archives = append(archives, must(os.ReadFile(archive))(t))
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the archives differ")
	}
}

// openedArchive is an archive whose content was found by digests alone.
type openedArchive struct {
	index   descriptor
	config  configFile
	entries []*tar.Header
	files   map[string][]byte
}

type configFile struct {
	Architecture, OS string
	Config           struct {
		Entrypoint []string
		User       string
		Labels     map[string]string
	}
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	}
}

func openArchive(archive string) (openedArchive, error) {
	var found openedArchive
	content, err := os.ReadFile(archive)
	if err != nil {
		return found, err
	}
	_, blobs, err := untar(content)
	if err != nil {
		return found, err
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(blobs["index.json"], &index); err != nil {
		return found, err
	}
	if len(index.Manifests) != 1 || string(blobs["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		return found, errors.New("the file is not an OCI layout of one image")
	}
	found.index = index.Manifests[0]
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	if err := readBlob(blobs, found.index, manifestType, &manifest); err != nil {
		return found, err
	}
	if err := readBlob(blobs, manifest.Config, configType, &found.config); err != nil {
		return found, err
	}
	if len(manifest.Layers) != 1 {
		return found, errors.New("the image does not have exactly one layer")
	}
	var layer []byte
	if err := readBlob(blobs, manifest.Layers[0], gzipType, &layer); err != nil {
		return found, err
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return found, err
	}
	if layer, err = io.ReadAll(unpacked); err != nil {
		return found, err
	}
	if !slices.Equal(found.config.RootFS.DiffIDs, []string{digestOf(layer)}) {
		return found, errors.New("the layer's digest differs from the one in the configuration")
	}
	found.entries, found.files, err = untar(layer)
	return found, err
}

// readBlob returns a blob and checks its descriptor.
func readBlob(blobs map[string][]byte, want descriptor, mediaType string, into any) error {
	content, ok := blobs["blobs/"+strings.Replace(want.Digest, ":", "/", 1)]
	if !ok || digestOf(content) != want.Digest || len(content) != want.Size || want.MediaType != mediaType {
		return errors.New("no such blob: " + want.MediaType + " " + want.Digest)
	}
	if raw, ok := into.(*[]byte); ok {
		*raw = content
		return nil
	}
	return json.Unmarshal(content, into)
}

func untar(content []byte) ([]*tar.Header, map[string][]byte, error) {
	var entries []*tar.Header
	files := map[string][]byte{}
	reader := tar.NewReader(bytes.NewReader(content))
	for {
		entry, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return entries, files, nil
		}
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, entry)
		if entry.Typeflag == tar.TypeReg {
			if files[entry.Name], err = io.ReadAll(reader); err != nil {
				return nil, nil, err
			}
		}
	}
}

// runImage runs the image in a few lines, as a runtime does: its files become the root directory of a process of the
// image's user. Without root, these two users exist only in a user namespace; where that is forbidden, the test fails
// and says so.
func runImage(t *testing.T, image openedArchive) string {
	t.Helper()
	root := t.TempDir()
	check(t, os.Chmod(root, 0o755))
	for _, entry := range image.entries {
		path := filepath.Join(root, entry.Name)
		if entry.Typeflag == tar.TypeDir {
			check(t, os.Mkdir(path, 0o755))
			continue
		}
		check(t, os.WriteFile(path, image.files[entry.Name], entry.FileInfo().Mode()))
	}
	command := exec.Command(image.config.Config.Entrypoint[0])
	command.Env = []string{}
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	if os.Geteuid() == 0 {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: 1359, Gid: 1360}
	} else {
		command.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 1359, HostID: os.Getuid(), Size: 1}}
		command.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 1360, HostID: os.Getgid(), Size: 1}}
	}
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("the program failed: %v: %s", err, output)
	}
	return string(output)
}

// buildHello builds the program in testdata, with extra arguments for `go build`.
func buildHello(t *testing.T, args ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "hello")
	args = append(append([]string{"build", "-o", program}, args...), "./testdata/hello")
	command := exec.Command("go", args...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return program
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return value
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
