package registry

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// RemoteWithLogin is Remote for a registry that requires a login.
func RemoteWithLogin(host string, dial Dial) *Registry {
	r := Remote(host, dial)
	r.login = true
	return r
}

// HtpasswdFile returns the htpasswd file with User, who may pull and push.
func HtpasswdFile() []byte { return []byte(htpasswdLine) }

// PushImage pushes the only image of an archive (opencontainers/image-spec, image-layout.md) with a tag.
func (r *Registry) PushImage(repository, tag, archive string) error {
	files, err := readArchive(archive)
	if err != nil {
		return err
	}
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		return fmt.Errorf("%s has %d images: %w", archive, len(index.Manifests), err)
	}
	blob := func(digest string) []byte { return files["blobs/"+strings.Replace(digest, ":", "/", 1)] }
	text := blob(index.Manifests[0].Digest)
	var image manifest
	if err := json.Unmarshal(text, &image); err != nil {
		return err
	}
	for _, part := range append([]descriptor{image.Config}, image.Layers...) {
		if _, err := r.pushBlob(repository, part.MediaType, blob(part.Digest)); err != nil {
			return err
		}
	}
	_, err = r.do(http.MethodPut, "/v2/"+repository+"/manifests/"+tag, manifestType, text, http.StatusCreated)
	return err
}

func readArchive(name string) (map[string][]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	files := map[string][]byte{}
	for reader := tar.NewReader(file); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			return nil, err
		}
	}
}
