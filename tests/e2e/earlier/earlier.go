// Package earlier provides ctrlmesh as of an earlier commit, from which tests upgrade: its two programs and its
// manifests.
//
// It is built once, into a directory of the cache. The lifecycle package runs it in a cluster.
package earlier

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

// Commit is the commit to upgrade from. Replace it when people upgrade from a later one (docs/adr/0042).
const Commit = "ca36910b2cd730d73a699ab55e1fa90637805cfa"

// programs lists the programs to build.
var programs = []string{"ctrlmesh-proxy", "ctrlmesh-manager"}

// Installation holds the results of the build.
type Installation struct {
	// Proxy and Manager are the programs.
	Proxy, Manager string
	// Deploy is the repository's directory of that name, the Helm chart included.
	Deploy string
}

// Find returns the cached build, or an error that says how to build it.
func Find() (Installation, error) {
	dir, err := cacheDir()
	if err != nil {
		return Installation{}, err
	}
	found := Installation{Proxy: filepath.Join(dir, "ctrlmesh-proxy"), Manager: filepath.Join(dir, "ctrlmesh-manager"), Deploy: filepath.Join(dir, "deploy")}
	for _, path := range []string{found.Proxy, found.Manager, found.Deploy} {
		if _, err := os.Stat(path); err != nil {
			return Installation{}, fmt.Errorf("ctrlmesh of commit %s is not built yet: run `make earlier` (%w)", Commit[:12], err)
		}
	}
	return found, nil
}

// Build builds the commit unless it is cached, and logs to `log`. `target` is cargo's target directory of this
// checkout: most dependencies are the same and are used again.
func Build(target string, log io.Writer) error {
	if found, err := Find(); err == nil {
		fmt.Fprintf(log, "ctrlmesh of commit %s: already built, %s\n", Commit[:12], filepath.Dir(found.Proxy))
		return nil
	}
	begin := time.Now()
	dir, err := cacheDir()
	if err != nil {
		return err
	}
	work := filepath.Join(dir, "work")
	source, own := filepath.Join(work, "source"), filepath.Join(work, "target")
	if err := errors.Join(os.RemoveAll(work), os.MkdirAll(source, 0o755)); err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := checkout(source, log); err != nil {
		return err
	}
	if err := linkArtefacts(filepath.Join(target, "debug"), filepath.Join(own, "debug")); err != nil {
		return fmt.Errorf("reuse dependencies that cargo has built: %w", err)
	}
	if err := build(source, own, log); err != nil {
		return fmt.Errorf("build ctrlmesh of commit %s: %w", Commit[:12], err)
	}
	if err := storeBuild(source, own, dir); err != nil {
		return err
	}
	fmt.Fprintf(log, "ctrlmesh of commit %s: built in %s, %s\n", Commit[:12], time.Since(begin).Round(time.Second), dir)
	return nil
}

// cacheDir is `earlier/<commit>` in the cache.
func cacheDir() (string, error) {
	root, err := binaries.CacheRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "earlier", Commit[:12]), nil
}

// checkout writes the commit's files. A clone without history fetches the commit from its origin.
func checkout(dir string, log io.Writer) error {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return errors.New("the binary has no source positions: do not use -trimpath for the tests")
	}
	// Below the root `git archive` archives only that subdirectory.
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	git := func(arguments ...string) *exec.Cmd {
		return exec.Command("git", append([]string{"-C", root}, arguments...)...)
	}
	if git("cat-file", "-e", Commit+"^{commit}").Run() != nil {
		fmt.Fprintf(log, "commit %s is not in this clone: fetching it\n", Commit[:12])
		if output, err := git("fetch", "--quiet", "--depth=1", "origin", Commit).CombinedOutput(); err != nil {
			return fmt.Errorf("tests upgrade from commit %s, which this clone does not have: run `git fetch --unshallow`, or clone with history (git fetch: %w: %s)", Commit[:12], err, output)
		}
	}
	return unpack(git("archive", "--format=tar", Commit), dir)
}

func unpack(archive *exec.Cmd, dir string) error {
	var errs bytes.Buffer
	archive.Stderr = &errs
	output, err := archive.StdoutPipe()
	if err != nil {
		return err
	}
	if err := archive.Start(); err != nil {
		return err
	}
	err = untar(output, dir)
	if failed := archive.Wait(); failed != nil {
		err = errors.Join(err, fmt.Errorf("git archive: %w: %s", failed, errs.String()))
	}
	return err
}

// untar sets the modification time to now: cargo takes sources that are older than their artefacts for built.
func untar(stream io.Reader, dir string) error {
	for reader := tar.NewReader(stream); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, stream)
			return err
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		switch header.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			err = writeFile(path, reader, header.FileInfo().Mode().Perm())
		case tar.TypeSymlink:
			err = os.Symlink(header.Linkname, path)
		}
		if err != nil {
			return err
		}
	}
}

func writeFile(path string, content io.Reader, mode os.FileMode) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// build enables the features of the whole workspace and of tests, as `make build` does: otherwise dependencies would be
// built again.
func build(source, target string, log io.Writer) error {
	arguments := []string{"build", "--locked", "--workspace", "--example", "hello"}
	for _, program := range programs {
		arguments = append(arguments, "--bin", program)
	}
	cargo := exec.Command("cargo", arguments...)
	cargo.Dir = source
	cargo.Env = append(os.Environ(), "CARGO_TARGET_DIR="+target, "CARGO_INCREMENTAL=0")
	cargo.Stdout, cargo.Stderr = log, log
	return cargo.Run()
}

// storeBuild keeps programs and manifests. The last program is written last, so if it exists, all files do.
func storeBuild(source, target, dir string) error {
	deploy := filepath.Join(dir, "deploy")
	if err := errors.Join(os.RemoveAll(deploy), os.Rename(filepath.Join(source, "deploy"), deploy)); err != nil {
		return err
	}
	for _, program := range programs {
		if err := os.Rename(filepath.Join(target, "debug", program), filepath.Join(dir, program)); err != nil {
			return err
		}
	}
	return nil
}

// linkArtefacts links cargo's artefacts except those of this repository's crates: cargo names these by their path in
// the workspace, so the earlier commit's have the same names.
func linkArtefacts(from, to string) error {
	for _, part := range []string{".fingerprint", "build", "deps"} {
		err := filepath.WalkDir(filepath.Join(from, part), func(path string, entry os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if isOwnCrate(entry.Name()) {
				if entry.IsDir() {
					return filepath.SkipDir
				}
				return nil
			}
			relative, err := filepath.Rel(from, path)
			if err != nil {
				return err
			}
			return hardLink(path, filepath.Join(to, relative), entry)
		})
		if errors.Is(err, os.ErrNotExist) {
			continue // nothing is built yet
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isOwnCrate(name string) bool {
	name = strings.TrimPrefix(strings.ReplaceAll(name, "_", "-"), "lib")
	for _, own := range []string{"ctrlmesh", "kube-rs-operator", "write-"} {
		if strings.HasPrefix(name, own) {
			return true
		}
	}
	return false
}

// hardLink needs no space, and keeps the modification times that cargo compares.
func hardLink(path, to string, entry os.DirEntry) error {
	if entry.IsDir() {
		return os.MkdirAll(to, 0o755)
	}
	if !entry.Type().IsRegular() {
		return nil
	}
	return os.Link(path, to)
}
