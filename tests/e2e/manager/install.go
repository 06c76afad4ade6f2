package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/cluster"
)

// These names are those of deploy/rbac.
const (
	// Namespace of the manager.
	Namespace = "ctrlmesh"
	// ServiceAccount of the manager, in Namespace.
	ServiceAccount = "ctrlmesh-manager"
	// User is the API server's name for that account.
	User = "system:serviceaccount:" + Namespace + ":" + ServiceAccount
)

// deployDir is the repository's directory of manifests, relative to the tests.
var deployDir = filepath.Join("..", "..", "deploy")

// Install applies the repository's manifests, as a person would, and returns a kubeconfig of the manager's account. The
// directory must exist; kubectl's files are written there.
func Install(ctx context.Context, c *cluster.Cluster, dir string) (string, error) {
	admin, err := c.UserKubeconfig("installer", "system:masters")
	if err != nil {
		return "", err
	}
	if err := kubectl(ctx, admin, dir, "create", "namespace", Namespace); err != nil {
		return "", err
	}
	for _, files := range []string{"crd", "rbac"} {
		if err := kubectl(ctx, admin, dir, "apply", "--server-side", "--filename="+filepath.Join(deployDir, files)); err != nil {
			return "", err
		}
	}
	wait := []string{"wait", "--for=condition=Established", "--timeout=60s", "--filename=" + filepath.Join(deployDir, "crd")}
	if err := kubectl(ctx, admin, dir, wait...); err != nil {
		return "", err
	}
	return c.TokenKubeconfig(ctx, Namespace, ServiceAccount)
}

func kubectl(ctx context.Context, kubeconfig, dir string, arguments ...string) error {
	path, err := binaries.Path("kubectl")
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, path, append([]string{"--kubeconfig=" + kubeconfig, "--cache-dir=" + dir}, arguments...)...)
	command.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return fmt.Errorf("kubectl %v: %w\n%s", arguments, err, output)
	}
	return err
}
