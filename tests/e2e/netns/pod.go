package netns

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"ctrlmesh.kusionstack.io/e2e/binaries"
)

const (
	// SidecarUser's traffic is not redirected, ControllerUser's is.
	SidecarUser, ControllerUser = 1359, 1000
	// Service is the address of the API server's Service.
	Service = "10.96.0.1"
)

// NewForTest creates a network that exists until the test ends. It needs the privileges of a node.
func NewForTest(t *testing.T, addresses ...string) *Network {
	t.Helper()
	binaries.NeedNode(t)
	network, err := New(addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	return network
}

// SharedDir returns a directory of the test that every user may read.
func SharedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// CopyProgram copies a program to where every user can run it, because its own directory may be accessible to root
// only. A separate process copies it: a file that is open for writing can't be executed, and children of other tests
// inherit this process's files.
func CopyProgram(t *testing.T, path string) string {
	t.Helper()
	copied := filepath.Join(SharedDir(t), filepath.Base(path))
	if output, err := exec.Command("cp", path, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return copied
}

// RunInit runs `ctrlmesh-proxy init` as the init container does, and returns its output.
func (n *Network) RunInit(program string, attributes *syscall.SysProcAttr, env []string, args ...string) (string, error) {
	var output bytes.Buffer
	command := exec.Command(program, append([]string{"init"}, args...)...)
	command.Env, command.SysProcAttr, command.Stdout, command.Stderr = env, attributes, &output, &output
	if err := n.Start(command); err != nil {
		return "", err
	}
	err := command.Wait()
	return output.String(), err
}

// NetAdminOnly gives a process the privileges of the init container.
func NetAdminOnly() *syscall.SysProcAttr {
	const netAdmin = 12
	return &syscall.SysProcAttr{
		AmbientCaps: []uintptr{netAdmin},
		Credential:  &syscall.Credential{Uid: ControllerUser, Gid: ControllerUser},
	}
}

// ServiceEnv returns kubelet's variables for the API server's address.
func ServiceEnv(addresses string) []string {
	return []string{"KUBERNETES_SERVICE_HOST=" + addresses, "KUBERNETES_SERVICE_PORT=443"}
}
