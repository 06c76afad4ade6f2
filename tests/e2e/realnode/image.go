package realnode

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image is a container image of one layer, made of files of this machine without a daemon, in memory.
type Image struct {
	// Name with a tag. Not `latest`, for which kubelet pulls.
	Name       string
	Entrypoint []string
	// User is a number, as there is no passwd file; empty is root.
	User string
	// Files are paths of the image and where their content comes from. A file keeps only whether it can be executed.
	Files map[string]string
}

// WithLibraries adds what a program is linked to at run time, from this machine: an image of a debug build then needs no build of
// its own. A static program has none.
func (i Image) WithLibraries(ctx context.Context) (Image, error) {
	files := maps.Clone(i.Files)
	for _, program := range i.Files {
		libraries, err := libraries(ctx, program)
		if err != nil {
			return i, err
		}
		for _, library := range libraries {
			files[library] = library
		}
	}
	i.Files = files
	return i, nil
}

// libraries asks the program's own dynamic linker, which lists itself too.
func libraries(ctx context.Context, program string) ([]string, error) {
	file, err := elf.Open(program)
	if errors.As(err, new(*elf.FormatError)) {
		return nil, nil // no program
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	section := file.Section(".interp")
	if section == nil {
		return nil, nil
	}
	name, err := section.Data()
	if err != nil {
		return nil, err
	}
	linker := strings.TrimRight(string(name), "\x00")
	output, err := exec.CommandContext(ctx, linker, "--list", program).Output()
	if err != nil {
		return nil, fmt.Errorf("list the libraries of %s: %w", program, err)
	}
	found := []string{linker}
	for _, field := range strings.Fields(string(output)) {
		if path.IsAbs(field) && field != linker {
			found = append(found, field)
		}
	}
	return found, nil
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
)

// Write makes an archive as the OCI image layout says (opencontainers/image-spec, image-layout.md).
func (i Image) Write(archive string) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, content []byte) descriptor {
		digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
		blobs["blobs/"+strings.Replace(digest, ":", "/", 1)] = content
		return descriptor{MediaType: mediaType, Digest: digest, Size: len(content)}
	}
	data := add(layerType, layer)
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{data.Digest}},
		"config": map[string]any{"Entrypoint": i.Entrypoint, "User": i.User, "Env": []string{"PATH=/usr/bin:/bin"}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": add(configType, config), "layers": []descriptor{data},
	})
	if err != nil {
		return err
	}
	described := add(manifestType, manifest)
	described.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	if blobs["index.json"], err = json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{described}}); err != nil {
		return err
	}
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return writeArchive(archive, blobs)
}

func writeArchive(name string, files map[string][]byte) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	w := tar.NewWriter(file)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			return err
		}
		if _, err := w.Write(files[name]); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return file.Close()
}

// layer is a tar of the files and the directories above them, and of /tmp, which programs expect.
func (i Image) layer() ([]byte, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	dirs := map[string]int64{"tmp": 0o1777}
	for name := range i.Files {
		for dir := path.Dir(strings.Trim(name, "/")); dir != "."; dir = path.Dir(dir) {
			dirs[dir] = 0o755
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: dirs[dir]}); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		if err := addFile(w, strings.Trim(name, "/"), i.Files[name]); err != nil {
			return nil, err
		}
	}
	return buffer.Bytes(), w.Close()
}

func addFile(w *tar.Writer, name, source string) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return err
}
