package binaries

import (
	"fmt"
	"os"
	"path/filepath"
)

// CargoBinary returns the path of a program of this repository: the value of the environment variable, or the debug
// build. `pkg` is the name of the crate.
func CargoBinary(program, pkg, variable string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		target := os.Getenv("CARGO_TARGET_DIR")
		if target == "" {
			target = filepath.Join("..", "..", "target")
		}
		path = filepath.Join(target, "debug", program)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no %s to test: run `cargo build -p %s`, or name the binary in %s (%w)", program, pkg, variable, err)
	}
	return path, nil
}
