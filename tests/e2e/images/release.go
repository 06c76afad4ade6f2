package images

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
)

const (
	sidecarProgram = "ctrlmesh-proxy"
	managerProgram = "ctrlmesh-manager"
	// sidecarLimit bounds the size in bytes of the sidecar's archive and of the files in it: every node pulls it, and
	// every pod of an operator waits for it.
	sidecarLimit = 34_000_000
	// authoritiesPath is where TLS libraries look first.
	authoritiesPath = "/etc/ssl/certs/ca-certificates.crt"
	// precompiledPath is the default of the sidecar's --precompiled-dir.
	precompiledPath = "/usr/lib/ctrlmesh/precompiled"
)

// Release describes the images that people install: one program each, with the authorities that it needs for TLS.
type Release struct {
	// Programs is a directory with static programs.
	Programs string
	// Precompiled is a directory with what `ctrlmesh-proxy precompile` wrote; empty means none.
	Precompiled string
	// Plugins are files that the manager's program must contain. It writes them into chains, and a sidecar finds precompiled
	// plugins by their digest: it compiles all others.
	Plugins []string
	// Archives is the output directory.
	Archives string
	// Registry is the prefix of the images' names.
	Registry string
	Version  string
}

// Archive is a written archive. Compressed is its size in bytes, Unpacked that of its files on a node.
type Archive struct {
	Name, Platform, Path string
	Compressed, Unpacked int64
}

type releasedImage struct {
	program, user string
	// limit in bytes; 0 means no limit.
	limit int64
}

// Images run as the same users as the pods, even if a pod's specification names none. images/Dockerfile has the same
// users; a test compares.
var releasedImages = []releasedImage{
	{program: sidecarProgram, user: "1359:1359", limit: sidecarLimit},
	{program: managerProgram, user: "65532:65532"},
}

// Make writes an archive for each image.
func (r Release) Make() ([]Archive, error) {
	if err := r.checkPlugins(); err != nil {
		return nil, err
	}
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

// checkPlugins fails unless the manager's program contains the plugins.
func (r Release) checkPlugins() error {
	if len(r.Plugins) == 0 {
		return nil
	}
	program := filepath.Join(r.Programs, managerProgram)
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	for _, plugin := range r.Plugins {
		component, err := os.ReadFile(plugin)
		if err != nil {
			return err
		}
		if !bytes.Contains(content, component) {
			return fmt.Errorf("%s does not contain %s: it was built with another plugin of that name", program, plugin)
		}
	}
	return nil
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
	if released.program == sidecarProgram {
		if err := r.addPrecompiled(image.Files); err != nil {
			return Archive{}, err
		}
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

// addPrecompiled adds the artifacts to the files of an image.
func (r Release) addPrecompiled(files map[string]string) error {
	if r.Precompiled == "" {
		return nil
	}
	artifacts, err := os.ReadDir(r.Precompiled)
	if err != nil {
		return err
	}
	for _, artifact := range artifacts {
		files[path.Join(precompiledPath, artifact.Name())] = filepath.Join(r.Precompiled, artifact.Name())
	}
	return nil
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
		unpacked, err := size(source)
		if err != nil {
			return err
		}
		m.Unpacked += unpacked
	}
	return nil
}
