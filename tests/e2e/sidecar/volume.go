package sidecar

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Volume is a directory that changes the way kubelet changes a mounted volume: the files lie in a directory named by a
// time stamp, `..data` points to it and is swapped atomically, and each visible file is a link through `..data`.
type Volume struct {
	Dir     string
	current string
	swaps   int
}

// NewVolume makes the directory, still without any file (an optional volume whose source does not exist).
func NewVolume(dir string) (*Volume, error) {
	return &Volume{Dir: dir}, os.MkdirAll(dir, 0o755)
}

// Write replaces the whole content. Readers see either everything old or everything new.
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
	if err := v.link(files); err != nil {
		return err
	}
	previous := v.current
	v.current = next
	if previous == "" {
		return nil
	}
	return os.RemoveAll(previous)
}

// link makes the visible names for new files and removes those of files that are gone, as kubelet's AtomicWriter does.
func (v *Volume) link(files map[string][]byte) error {
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
		if _, wanted := files[name]; !wanted {
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

// downwardLabels is the format of a downward-API file for `metadata.labels`: `key="value"` lines, sorted.
func downwardLabels(labels map[string]string) []byte {
	lines := make([]string, 0, len(labels))
	for _, key := range sortedKeys(labels) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, labels[key]))
	}
	return []byte(strings.Join(lines, "\n"))
}
