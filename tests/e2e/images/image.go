// Package images writes OCI archives of programs on this machine, without a daemon: those that `make images` publishes,
// and those that the real node of the tests runs. It does not build the programs.
package images

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image is a container image of one layer, built in memory. The same files always give the same bytes.
type Image struct {
	// Name includes a tag; not `latest`, because kubelet always pulls that.
	Name       string
	Entrypoint []string
	// User is a number, because the image has no passwd file; empty means root.
	User string
	// Files maps paths in the image to source files. Of a source file's mode only the executable bit is kept.
	Files map[string]string
	// Architecture uses Go's names; empty means this machine's.
	Architecture string
	Labels       map[string]string
	// Compressed is for registries. Locally, compressing costs more time than it saves.
	Compressed bool
}

// See opencontainers/image-spec, descriptor.md and image-index.md.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

const (
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	gzipType     = layerType + "+gzip"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
	// nameAnnotation is where containerd looks for an image's full name.
	nameAnnotation = "io.containerd.image.name"
)

// Write writes an archive in the OCI image layout (opencontainers/image-spec, image-layout.md). It has the annotations
// of BuildKit's archives: containerd reads the full name, other programs the tag.
func (i Image) Write(archive string) error {
	layer, err := i.layerTar()
	if err != nil {
		return err
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, content []byte) descriptor {
		digest := digestOf(content)
		blobs["blobs/"+strings.Replace(digest, ":", "/", 1)] = content
		return descriptor{MediaType: mediaType, Digest: digest, Size: len(content)}
	}
	config, err := json.Marshal(i.imageConfig(digestOf(layer)))
	if err != nil {
		return err
	}
	mediaType := layerType
	if i.Compressed {
		mediaType = gzipType
		if layer, err = compress(layer); err != nil {
			return err
		}
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": add(configType, config),
		"layers": []descriptor{add(mediaType, layer)},
	})
	if err != nil {
		return err
	}
	described := add(manifestType, manifest)
	described.Platform = &platform{Architecture: i.architecture(), OS: "linux"}
	described.Annotations = map[string]string{nameAnnotation: i.Name, "org.opencontainers.image.ref.name": i.tag()}
	index := map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{described}}
	if blobs["index.json"], err = json.Marshal(index); err != nil {
		return err
	}
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return writeArchive(archive, blobs)
}

// imageConfig sets no creation time, so that builds are reproducible.
func (i Image) imageConfig(layer string) map[string]any {
	config := map[string]any{"Entrypoint": i.Entrypoint, "User": i.User, "Env": []string{"PATH=/usr/bin:/bin"}}
	if len(i.Labels) > 0 {
		config["Labels"] = i.Labels
	}
	return map[string]any{
		"architecture": i.architecture(), "os": "linux", "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer}},
	}
}

func (i Image) architecture() string { return cmp.Or(i.Architecture, runtime.GOARCH) }

func (i Image) tag() string { return i.Name[strings.LastIndex(i.Name, ":")+1:] }

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func compress(content []byte) ([]byte, error) {
	var buffer bytes.Buffer
	w, err := gzip.NewWriterLevel(&buffer, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	err = w.Close()
	return buffer.Bytes(), err
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

// layerTar returns a tar of the files, the directories above them, and /tmp, which programs expect.
func (i Image) layerTar() ([]byte, error) {
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
