// Package e2e tests the sidecar and the manager against a real kube-apiserver, with real clients.
//
// This file contains what all tests share: one control plane, the programs under test, and the directory of logs.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/rawhttp"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// shared is used by most tests.
var shared sharedEnvironment

type sharedEnvironment struct {
	controlPlane
	dir            string
	cacheDir       string
	operatorBinary string
	// kubeRS is the operator written with kube-rs.
	kubeRS  string
	kubectl string
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

// runTests is TestMain with defers, so that cleanup runs even if a test panics; child processes die with this process.
func runTests(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "ctrlmesh-e2e-")
	if err != nil {
		log.Print(err)
		return 1
	}
	shared.dir = dir
	if err := shared.start(ctx); err != nil {
		log.Printf("can't run the tests: %v\nlogs are in %s", err, dir)
		return 1
	}
	code := m.Run()
	if unused := unusedPermissions(); code == 0 && isWholeRun() && len(unused) > 0 {
		log.Printf("deploy/rbac grants the manager permissions that it never used:\n%s", strings.Join(unused, "\n"))
		code = 1
	}
	if code != 0 {
		log.Printf("logs of the failed run are in %s\n%s", dir, shared.cluster.Logs(512))
	}
	shared.cluster.Stop()
	if code == 0 {
		if err := os.RemoveAll(dir); err != nil {
			log.Print(err)
			return 1
		}
	}
	return code
}

// isWholeRun returns whether all tests ran; only then are unused permissions an error.
func isWholeRun() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if flag.Lookup(name).Value.String() != "" {
			return false
		}
	}
	return true
}

func (e *sharedEnvironment) start(ctx context.Context) error {
	var err error
	if _, err = sidecar.Binary(); err != nil {
		return err
	}
	if _, err = manager.Binary(); err != nil {
		return err
	}
	e.kubeRS, err = binaries.CargoBinary("kube-rs-operator", "ctrlmesh-kube-rs-operator", "CTRLMESH_KUBE_RS_OPERATOR_BIN")
	if err != nil {
		return err
	}
	if e.kubectl, err = binaries.Path("kubectl"); err != nil {
		return err
	}
	e.cacheDir = filepath.Join(e.dir, "compiled")
	e.operatorBinary = filepath.Join(e.dir, "operator")
	for _, dir := range []string{e.cacheDir, filepath.Join(e.dir, "cluster")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", e.operatorBinary, "./operator")
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the operator: %w\n%s", err, output)
	}
	// CBOR is alpha and off by default; it is enabled here for clients that ask for it.
	e.controlPlane, err = startControlPlane(ctx, filepath.Join(e.dir, "cluster"), "--feature-gates=CBORServingAndStorage=true")
	return err
}

// controlPlane is a cluster with the clients that tests use.
type controlPlane struct {
	cluster *cluster.Cluster
	client  *kubernetes.Clientset
	// direct sends requests as the same user as a sidecar's own, so that responses can be compared including headers.
	direct rawhttp.Target
	// kubeconfig belongs to a service account with all permissions, like that of a sidecar in a pod.
	kubeconfig string
}

// sidecarUser is the user of controlPlane.kubeconfig.
const sidecarUser = "system:serviceaccount:default:sidecar"

// startOwnControlPlane starts a cluster for one test and stops it when the test ends; if the test fails, its logs are
// printed.
func startOwnControlPlane(t *testing.T, flags ...string) controlPlane {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	plane, err := startControlPlane(ctx, newDir(t), flags...)
	t.Cleanup(func() {
		if plane.cluster == nil {
			return
		}
		if t.Failed() {
			t.Log(plane.cluster.Logs(2048))
		}
		plane.cluster.Stop()
	})
	check(t, err)
	return plane
}

// startControlPlane starts a cluster with the CRD of Widgets.
func startControlPlane(ctx context.Context, dir string, flags ...string) (controlPlane, error) {
	var c controlPlane
	var err error
	if c.cluster, err = cluster.Start(ctx, dir, cluster.Options{APIServerFlags: flags}); err != nil {
		return c, err
	}
	if c.client, err = kubernetes.NewForConfig(c.cluster.AdminConfig()); err != nil {
		return c, err
	}
	if err := createDefinition(ctx, c.cluster.AdminConfig(), widgetResource.Group, widgetResource.Resource, "Widget"); err != nil {
		return c, err
	}
	binding := &rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: "e2e-sidecar"},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbac.Subject{{Kind: rbac.ServiceAccountKind, Namespace: "default", Name: "sidecar"}},
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(ctx, binding, meta.CreateOptions{}); err != nil {
		return c, err
	}
	token, err := c.cluster.ServiceAccountToken(ctx, "default", "sidecar")
	if err != nil {
		return c, err
	}
	c.direct = rawhttp.Target{Address: c.cluster.Address, TLS: c.cluster.TLSConfig(), Authorization: "Bearer " + token}
	c.kubeconfig, err = c.cluster.TokenKubeconfig(ctx, "default", "sidecar")
	return c, err
}
