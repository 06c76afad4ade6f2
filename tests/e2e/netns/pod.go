package netns

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

const (
	// SidecarUser is whose traffic is left alone; ControllerUser's is not.
	SidecarUser, ControllerUser = 1359, 1000
	// Service is the address of the API server's.
	Service = "10.96.0.1"
)

// NewForTest is a network until the test ends. Where none can be made the test is left out, or fails if it has to run.
func NewForTest(t *testing.T, addresses ...string) *Network {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CTRLMESH_NODE") == "required" {
			t.Fatal("a network of its own needs root")
		}
		t.Skip("left out: a network of its own needs root")
	}
	network, err := New(addresses...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(network.Close)
	return network
}

// SharedDir is a directory of the test that every user may enter.
func SharedDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// CopyProgram copies a program to where every user can run it: its own folder may be root's alone. Another process does that:
// a file that is open for writing somewhere can't be run, and the children of other tests have what is open here.
func CopyProgram(t *testing.T, path string) string {
	t.Helper()
	copied := filepath.Join(SharedDir(t), filepath.Base(path))
	if output, err := exec.Command("cp", path, copied).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return copied
}

// RunInit runs `ctrlmesh-proxy init` as the init container does, and returns what it says.
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

// NetAdminOnly is what the init container may do.
func NetAdminOnly() *syscall.SysProcAttr {
	const netAdmin = 12
	return &syscall.SysProcAttr{
		AmbientCaps: []uintptr{netAdmin},
		Credential:  &syscall.Credential{Uid: ControllerUser, Gid: ControllerUser},
	}
}

// ServiceEnv is what kubelet says of the API server.
func ServiceEnv(addresses string) []string {
	return []string{"KUBERNETES_SERVICE_HOST=" + addresses, "KUBERNETES_SERVICE_PORT=443"}
}
