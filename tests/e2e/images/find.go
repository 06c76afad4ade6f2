package images

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Find returns the archive of a program for this machine in a directory that a Release has filled, and the name of the
// image in it.
func Find(archives, program string) (archive, name string, err error) {
	pattern := filepath.Join(archives, fmt.Sprintf("%s-*-linux-%s.tar", program, runtime.GOARCH))
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", "", err
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("found %d archives %s, want one; `make images` writes one of each version", len(found), pattern)
	}
	name, err = imageNameIn(found[0])
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", found[0], err)
	}
	return found[0], name, nil
}

// imageNameIn returns the name that containerd gives to the image in an archive.
func imageNameIn(archive string) (string, error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer file.Close()
	for entries := tar.NewReader(file); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return "", errors.New("the file is not an OCI layout: it has no index.json")
		}
		if err != nil {
			return "", err
		}
		if header.Name != "index.json" {
			continue
		}
		var index struct{ Manifests []descriptor }
		if err := json.NewDecoder(entries).Decode(&index); err != nil {
			return "", err
		}
		if len(index.Manifests) != 1 || index.Manifests[0].Annotations[nameAnnotation] == "" {
			return "", errors.New("the archive does not have exactly one image with a name")
		}
		return index.Manifests[0].Annotations[nameAnnotation], nil
	}
}
