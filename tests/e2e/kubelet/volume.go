package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Volume is a directory that changes like a volume mounted by kubelet: the files are in a directory named by a
// timestamp, `..data` points to it and is swapped atomically, and each visible file is a link through `..data`
// (kubernetes `pkg/volume/util/atomic_writer.go`).
type Volume struct {
	Dir     string
	current string
	swaps   int
}

// NewVolume creates the directory without files, like an optional volume whose source does not exist.
func NewVolume(dir string) (*Volume, error) {
	return &Volume{Dir: dir}, os.MkdirAll(dir, 0o755)
}

// Sync replaces the content unless it is unchanged, as kubelet does, and returns whether it did.
func (v *Volume) Sync(files map[string][]byte) (bool, error) {
	if v.current != "" {
		same, err := v.hasContent(files)
		if err != nil || same {
			return false, err
		}
	}
	return true, v.Write(files)
}

func (v *Volume) hasContent(files map[string][]byte) (bool, error) {
	present, err := os.ReadDir(v.current)
	if err != nil || len(present) != len(files) {
		return false, err
	}
	for name, content := range files {
		held, err := os.ReadFile(filepath.Join(v.current, name))
		switch {
		case errors.Is(err, os.ErrNotExist):
			return false, nil
		case err != nil:
			return false, err
		case !bytes.Equal(held, content):
			return false, nil
		}
	}
	return true, nil
}

// Write replaces the whole content. Readers see either the old or the new content, never a mixture.
func (v *Volume) Write(files map[string][]byte) error {
	v.swaps++
	stamp := fmt.Sprintf("..%s.%09d", time.Now().UTC().Format("2006_01_02_15_04_05"), v.swaps)
	next := filepath.Join(v.Dir, stamp)
	if err := os.Mkdir(next, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(next, name), content, 0o644); err != nil {
			return err
		}
	}
	swap := filepath.Join(v.Dir, "..data_tmp")
	if err := os.Symlink(stamp, swap); err != nil {
		return err
	}
	if err := os.Rename(swap, filepath.Join(v.Dir, "..data")); err != nil {
		return err
	}
	if err := v.updateLinks(files); err != nil {
		return err
	}
	previous := v.current
	v.current = next
	if previous == "" {
		return nil
	}
	return os.RemoveAll(previous)
}

// updateLinks creates the visible names of new files and removes those of deleted files, as kubelet's AtomicWriter
// does.
func (v *Volume) updateLinks(files map[string][]byte) error {
	present, err := os.ReadDir(v.Dir)
	if err != nil {
		return err
	}
	linked := map[string]bool{}
	for _, entry := range present {
		name := entry.Name()
		if strings.HasPrefix(name, "..") {
			continue
		}
		linked[name] = true
		if _, desired := files[name]; !desired {
			if err := os.Remove(filepath.Join(v.Dir, name)); err != nil {
				return err
			}
		}
	}
	for name := range files {
		if linked[name] {
			continue
		}
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(v.Dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// Labels returns the files of a downward-API volume with an item `labels` for `metadata.labels`: sorted lines
// `key="value"`.
func Labels(labels map[string]string) map[string][]byte {
	lines := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, labels[key]))
	}
	return map[string][]byte{"labels": []byte(strings.Join(lines, "\n"))}
}
