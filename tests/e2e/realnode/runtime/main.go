// Command runtime is runc without seccomp filters: it removes them from a container's configuration and then executes
// runc.
//
// The runc that the binaries package builds has no libseccomp, which is a C library and not a Go module, and refuses
// containers with a filter. Everything else in the configuration stays.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// runc is in the same directory as this program.
const runc = "runc"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run() error {
	if slices.Contains(os.Args, "create") || slices.Contains(os.Args, "run") {
		if err := removeSeccompFilter(filepath.Join(bundleDir(os.Args), "config.json")); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(self), runc)
	return syscall.Exec(path, append([]string{path}, os.Args[1:]...), os.Environ())
}

// bundleDir returns the container's directory: `--bundle DIR`, `--bundle=DIR`, or the working directory.
func bundleDir(args []string) string {
	for i, arg := range args {
		if dir, ok := strings.CutPrefix(arg, "--bundle="); ok {
			return dir
		}
		if arg == "--bundle" && i+1 < len(args) {
			return args[i+1]
		}
	}
	return "."
}

func removeSeccompFilter(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var linux map[string]json.RawMessage
	if err := json.Unmarshal(config["linux"], &linux); err != nil {
		return fmt.Errorf("%s: linux: %w", path, err)
	}
	if _, ok := linux["seccomp"]; !ok {
		return nil
	}
	delete(linux, "seccomp")
	if config["linux"], err = json.Marshal(linux); err != nil {
		return err
	}
	if text, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
