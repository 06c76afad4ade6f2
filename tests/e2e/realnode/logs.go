package realnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// podLogs is where the runtime writes the logs of containers.
var podLogs = filepath.Join("root", "var", "log", "pods")

// keepLogsOnly replaces the directory of an ended node by one with its logs: those of its programs, and `pods` with
// those of containers.
func keepLogsOnly(dir string) (string, error) {
	// Mounts belong to the machine: its devices, its control groups.
	if mounts, err := mountsWith(dir + "/"); err != nil || len(mounts) > 0 {
		return "", errors.Join(err, fmt.Errorf("the node's directory is not removed, because it contains mounts: %q", mounts))
	}
	logs := dir + "-logs"
	if err := os.Mkdir(logs, 0o755); err != nil {
		return "", err
	}
	for _, pattern := range []string{"*.log", filepath.Join("cluster", "*.log")} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		for _, file := range files {
			if err := os.Rename(file, filepath.Join(logs, filepath.Base(file))); err != nil {
				return "", err
			}
		}
	}
	if err := os.Rename(filepath.Join(dir, podLogs), filepath.Join(logs, "pods")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return logs, os.RemoveAll(dir)
}
