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

// Archive is an archive. Sizes are in bytes: of the archive, and of the files that a node has of it.
type Archive struct {
	Name, Platform, Path string
	Compressed, Unpacked int64
}

type releasedImage struct {
	program, user string
	// limit in bytes; 0 is none.
	limit int64
}

// What a pod's specification says about users must be true without it, too: images/Dockerfile has the same, a test compares.
var releasedImages = []releasedImage{
	{program: "ctrlmesh-proxy", user: "1359:1359", limit: sidecarLimit},
	{program: "ctrlmesh-manager", user: "65532:65532"},
}

// Make writes an archive for each image.
func (r Release) Make() ([]Archive, error) {
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
	var all []Archive
	for _, image := range releasedImages {
		made, err := r.makeArchive(image, authorities)
		if err != nil {
			return nil, err
		}
		all = append(all, made)
	}
	return all, nil
}

func (r Release) makeArchive(released releasedImage, authorities string) (Archive, error) {
	program := filepath.Join(r.Programs, released.program)
	architecture, err := staticArchitecture(program)
	if err != nil {
		return Archive{}, err
	}
	inside := "/" + released.program
	image := Image{
		Name: fmt.Sprintf("%s/%s:%s", r.Registry, released.program, r.Version), Entrypoint: []string{inside}, User: released.user,
		Files:        map[string]string{inside: program, authoritiesPath: authorities},
		Architecture: architecture, Compressed: true,
		Labels: map[string]string{
			"org.opencontainers.image.title":    released.program,
			"org.opencontainers.image.version":  r.Version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	made := Archive{
		Name: image.Name, Platform: "linux/" + architecture,
		Path: filepath.Join(r.Archives, fmt.Sprintf("%s-%s-linux-%s.tar", released.program, r.Version, architecture)),
	}
	if err := image.Write(made.Path); err != nil {
		return made, err
	}
	if err := made.measure(image); err != nil {
		return made, err
	}
	if largest := max(made.Compressed, made.Unpacked); released.limit > 0 && largest > released.limit {
		err := fmt.Errorf("%s is too large: %d bytes, and may have %d", made.Path, largest, released.limit)
		return made, errors.Join(err, os.Remove(made.Path))
	}
	return made, nil
}

func (m *Archive) measure(image Image) error {
	size := func(file string) (int64, error) {
		info, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	}
	var err error
	if m.Compressed, err = size(m.Path); err != nil {
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
