package images

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const (
	// sidecarLimit in bytes, of an archive and of the files in it: every node pulls it, and every pod of an operator waits for it.
	sidecarLimit = 30_000_000
	// authoritiesPath is where TLS libraries look first.
	authoritiesPath = "/etc/ssl/certs/ca-certificates.crt"
)

// Release is what people install: images of one program each, and what it needs to speak TLS.
type Release struct {
	// Programs is a directory with the programs, static ones.
	Programs string
	// Archives is a directory for what is made.
	Archives string
	// Registry is what the images' names begin with.
	Registry string
	Version  string
}

// Made is an archive. Sizes are in bytes: of the archive, and of the files that a node has of it.
type Made struct {
	Name, Platform, Archive string
	Compressed, Unpacked    int64
}

type released struct {
	program, user string
	// limit in bytes; 0 is none.
	limit int64
}

// What a pod's specification says about users must be true without it, too: images/Dockerfile has the same, a test compares.
var releases = []released{
	{program: "ctrlmesh-proxy", user: "1359:1359", limit: sidecarLimit},
	{program: "ctrlmesh-manager", user: "65532:65532"},
}

// Make writes an archive for each image.
func (r Release) Make() ([]Made, error) {
	if err := os.MkdirAll(r.Archives, 0o755); err != nil {
		return nil, err
	}
	text, err := Authorities()
	if err != nil {
		return nil, err
	}
	authorities := filepath.Join(r.Archives, "ca-certificates.crt")
	if err := os.WriteFile(authorities, text, 0o644); err != nil {
		return nil, err
	}
	var all []Made
	for _, image := range releases {
		made, err := r.make(image, authorities)
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}

func (r Release) make(of released, authorities string) (Made, error) {
	program := filepath.Join(r.Programs, of.program)
	architecture, err := staticFor(program)
	if err != nil {
		return Made{}, err
	}
	inside := "/" + of.program
	image := Image{
		Name: fmt.Sprintf("%s/%s:%s", r.Registry, of.program, r.Version), Entrypoint: []string{inside}, User: of.user,
		Files:        map[string]string{inside: program, authoritiesPath: authorities},
		Architecture: architecture, Compressed: true,
		Labels: map[string]string{
			"org.opencontainers.image.title":    of.program,
			"org.opencontainers.image.version":  r.Version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	made := Made{
		Name: image.Name, Platform: "linux/" + architecture,
		Archive: filepath.Join(r.Archives, fmt.Sprintf("%s-%s-linux-%s.tar", of.program, r.Version, architecture)),
	}
	if err := image.Write(made.Archive); err != nil {
		return made, err
	}
	if err := made.measure(image); err != nil {
		return made, err
	}
	if largest := max(made.Compressed, made.Unpacked); of.limit > 0 && largest > of.limit {
		err := fmt.Errorf("%s is too large: %d bytes, and may have %d", made.Archive, largest, of.limit)
		return made, errors.Join(err, os.Remove(made.Archive))
	}
	return made, nil
}

func (m *Made) measure(image Image) error {
	size := func(file string) (int64, error) {
		info, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	var err error
	if m.Compressed, err = size(m.Archive); err != nil {
		return err
	}
	for _, source := range image.Files {
		bytes, err := size(source)
		if err != nil {
			return err
		}
		m.Unpacked += bytes
	}
	return nil
}
