package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"ctrlmesh.kusionstack.io/e2e/cluster"
	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/manager"
	"ctrlmesh.kusionstack.io/e2e/netns"
	"ctrlmesh.kusionstack.io/e2e/sidecar"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

// This file runs an unmodified in-cluster client, with the Service's address and ca.crt, in a network whose traffic is
// redirected to a real sidecar in front of a real API server.

const (
	tlsNamespace = "tls"
	adminAddress = "127.0.0.1:5441"
)

// redirectedPod is a substitute for a pod whose traffic is redirected.
type redirectedPod struct {
	*netns.Network
	mesh    *mesh
	volume  *kubelet.Volume
	sidecar *bytes.Buffer
}

func TestRedirectedClientSeesOnlyShard(t *testing.T) {
	t.Parallel()
	network := netns.NewForTest(t, netns.Service+"/32")
	m := newMesh(t)
	createLabelledNamespace(t, m.controlPlane, tlsNamespace, nil)
	// Kubernetes' controller manager creates this ConfigMap in every namespace.
	putClusterCA(t, m)
	waitLeader(t, m.startManager(t, "manager-0"))
	makeRedirectedPod(t, m)
	pod := &redirectedPod{Network: network, mesh: m}
	bundle := pod.waitProjected(t)
	pod.serveAPI(t)
	pod.startSidecar(t, sidecar.Namespace, shardRule("s0", "a"))
	for _, shard := range []string{"a", "b"} {
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "of-" + shard, Labels: map[string]string{"shard": shard}}}
		_, err := m.client.CoreV1().ConfigMaps(tlsNamespace).Create(t.Context(), object, meta.CreateOptions{})
		check(t, err)
	}
	for _, host := range []string{netns.Service, "kubernetes.default.svc"} {
		t.Run("shard_is_visible_by_"+host, func(t *testing.T) { pod.assertSeesShard(t, host, bundle) })
	}
	t.Run("other_authority_is_not_trusted", func(t *testing.T) {
		_, err := pod.listConfigMaps(t, netns.Service, m.cluster.CA.PEM)
		if err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("with the cluster's authority alone: %v", err)
		}
	})
	t.Run("certificates_are_rotated", func(t *testing.T) { pod.testRotation(t, bundle) })
}

// TestServingCertificateIsRenewedByManager tests the manager's part; it also runs where no network can be created.
func TestServingCertificateIsRenewedByManager(t *testing.T) {
	t.Parallel()
	pod := &redirectedPod{mesh: newMesh(t)}
	createLabelledNamespace(t, pod.mesh.controlPlane, tlsNamespace, nil)
	putClusterCA(t, pod.mesh)
	waitLeader(t, pod.mesh.startManager(t, "manager-0"))
	makeRedirectedPod(t, pod.mesh)
	bundle := pod.waitProjected(t)
	maps, secrets := pod.mesh.client.CoreV1().ConfigMaps(tlsNamespace), pod.mesh.client.CoreV1().Secrets(tlsNamespace)
	edited := must(maps.Get(t.Context(), "ctrlmesh-ca", meta.GetOptions{}))(t)
	edited.Data["ca.crt"] = string(pod.mesh.cluster.CA.PEM)
	_, err := maps.Update(t.Context(), edited, meta.UpdateOptions{})
	check(t, err)
	before := must(secrets.Get(t.Context(), "ctrlmesh-serving-cert", meta.GetOptions{}))(t).Data["tls.crt"]
	pod.renewCertificate(t)
	eventually(t, "the certificate has changed, the bundle has not", func() error {
		again, err := pod.projectVolumes(t)
		if err == nil && !bytes.Equal(again, bundle) {
			err = fmt.Errorf("the bundle is %s", again)
		}
		now := must(secrets.Get(t.Context(), "ctrlmesh-serving-cert", meta.GetOptions{}))(t).Data["tls.crt"]
		if err == nil && bytes.Equal(now, before) {
			err = fmt.Errorf("the certificate is still %s", now)
		}
		return err
	})
}

func putClusterCA(t *testing.T, m *mesh) {
	object := &core.ConfigMap{
		ObjectMeta: meta.ObjectMeta{Name: "kube-root-ca.crt", Namespace: manager.Namespace},
		Data:       map[string]string{"ca.crt": string(m.cluster.CA.PEM)},
	}
	_, err := m.client.CoreV1().ConfigMaps(manager.Namespace).Create(t.Context(), object, meta.CreateOptions{})
	check(t, err)
}

func makeRedirectedPod(t *testing.T, m *mesh) {
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: "operator-0", Labels: map[string]string{
			enableProxy: "true", "ctrlmesh.kusionstack.io/enable-iptables": "true",
		}},
		Spec: core.PodSpec{Containers: []core.Container{{Name: "manager", Image: "operator:1"}}},
	}
	_, err := m.client.CoreV1().Pods(tlsNamespace).Create(t.Context(), pod, meta.CreateOptions{})
	check(t, err)
}

// projectVolumes writes the Secret as kubelet does, and returns the bundle in the ConfigMap.
func (pod *redirectedPod) projectVolumes(t *testing.T) ([]byte, error) {
	maps, secrets := pod.mesh.client.CoreV1().ConfigMaps(tlsNamespace), pod.mesh.client.CoreV1().Secrets(tlsNamespace)
	bundle, err := maps.Get(t.Context(), "ctrlmesh-ca", meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	secret, err := secrets.Get(t.Context(), "ctrlmesh-serving-cert", meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	if pod.volume == nil {
		pod.volume = must(kubelet.NewVolume(filepath.Join(netns.SharedDir(t), "tls")))(t)
	}
	_, err = pod.volume.Sync(secret.Data)
	return []byte(bundle.Data["ca.crt"]), err
}

// waitProjected waits until both exist.
func (pod *redirectedPod) waitProjected(t *testing.T) []byte {
	t.Helper()
	var bundle []byte
	eventually(t, "the namespace has bundle and certificate", func() (err error) {
		bundle, err = pod.projectVolumes(t)
		return err
	})
	return bundle
}

// renewCertificate makes the manager sign a new certificate.
func (pod *redirectedPod) renewCertificate(t *testing.T) {
	t.Helper()
	secrets := pod.mesh.client.CoreV1().Secrets(manager.Namespace)
	secret := must(secrets.Get(t.Context(), "ctrlmesh-mesh-ca-"+tlsNamespace, meta.GetOptions{}))(t)
	secret.Data["tls.crt"] = nil
	_, err := secrets.Update(t.Context(), secret, meta.UpdateOptions{})
	check(t, err)
}

// serveAPI makes the API server reachable at the Service's address.
func (pod *redirectedPod) serveAPI(t *testing.T) {
	listener := must(pod.Listen(net.JoinHostPort(netns.Service, "443")))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", pod.mesh.cluster.Address)
			if err != nil {
				near.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
				}()
			}
		}
	}()
}

// startSidecar runs the init container, then the sidecar, as its user in a pod.
func (pod *redirectedPod) startSidecar(t *testing.T, namespace string, rule sidecar.ShardRule) {
	program := netns.CopyProgram(t, must(sidecar.Binary())(t))
	output, err := pod.RunInit(program, netns.NetAdminOnly(), netns.ServiceEnv(netns.Service))
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	token := must(pod.mesh.cluster.ServiceAccountToken(t.Context(), "default", "sidecar"))(t)
	dir := netns.SharedDir(t)
	server := &api.Cluster{Server: "https://" + netns.Service, CertificateAuthorityData: pod.mesh.cluster.CA.PEM}
	kubeconfig := must(cluster.WriteKubeconfig(dir, "sidecar", server, &api.AuthInfo{Token: token}))(t)
	check(t, os.Chown(kubeconfig, netns.SidecarUser, netns.SidecarUser))
	chain := must(kubelet.NewVolume(filepath.Join(dir, "chain")))(t)
	document := shardChain(t, 1, rule)
	document.Namespace = namespace
	check(t, chain.Write(must(document.Files(nil))(t)))
	pod.sidecar = &bytes.Buffer{}
	command := exec.Command(program, "--api-address=127.0.0.1:5443,[::1]:5443", "--admin-address="+adminAddress,
		"--kubeconfig="+kubeconfig, "--chain-dir="+chain.Dir, "--tls-dir="+pod.volume.Dir)
	command.Env = []string{"POD_NAME=operator-0", "POD_NAMESPACE=" + namespace}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: netns.SidecarUser, Gid: netns.SidecarUser}}
	command.Stdout, command.Stderr = io.Discard, pod.sidecar
	check(t, pod.Start(command))
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil || t.Failed() {
			t.Errorf("the sidecar exited: %v\n%s", err, pod.sidecar)
		}
	})
	admin := &http.Client{Transport: &http.Transport{DialContext: pod.dialAs(netns.ControllerUser, adminAddress), DisableKeepAlives: true}}
	eventually(t, "the sidecar is ready", func() error {
		answer, err := admin.Get("http://" + adminAddress + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", answer.Status, must(io.ReadAll(answer.Body))(t))
		}
		return nil
	})
}

// dialAs returns a dialer that connects as a user of the pod to one address, whatever the requested address is.
func (pod *redirectedPod) dialAs(user int, address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return pod.Dial(ctx, user, address) }
}

// listConfigMaps lists as an in-cluster client does, with the Service's host and a ca.crt.
func (pod *redirectedPod) listConfigMaps(t *testing.T, host string, ca []byte) (string, error) {
	t.Helper()
	config := &rest.Config{
		Host: "https://" + net.JoinHostPort(host, "443"), TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		Timeout: waitTimeout, Dial: pod.dialAs(netns.ControllerUser, net.JoinHostPort(netns.Service, "443")),
	}
	client := must(kubernetes.NewForConfig(config))(t)
	all, err := client.CoreV1().ConfigMaps(tlsNamespace).List(t.Context(), meta.ListOptions{})
	if err != nil {
		return "", err
	}
	names := []string{}
	for _, object := range all.Items {
		names = append(names, object.Name)
	}
	return strings.Join(names, " "), nil
}

func (pod *redirectedPod) assertSeesShard(t *testing.T, host string, bundle []byte) {
	names, err := pod.listConfigMaps(t, host, bundle)
	check(t, err)
	if names != "of-a" {
		t.Errorf("the client sees %q", names)
	}
}

// servedSerial returns the serial number of the certificate that a new connection gets. The client trusts the bundle
// and tries every name of the API server.
func (pod *redirectedPod) servedSerial(t *testing.T, bundle []byte) (string, error) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	serial := ""
	for _, name := range []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost", "127.0.0.1", "::1"} {
		connection, err := pod.Dial(ctx, netns.ControllerUser, net.JoinHostPort(netns.Service, "443"))
		if err != nil {
			return "", err
		}
		client := tls.Client(connection, &tls.Config{RootCAs: roots, ServerName: name})
		err = client.HandshakeContext(ctx)
		connection.Close()
		if err != nil {
			return "", fmt.Errorf("with the name %s: %w", name, err)
		}
		serial = client.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	return serial, nil
}

// testRotation: a new certificate reaches new connections of unmodified clients.
func (pod *redirectedPod) testRotation(t *testing.T, bundle []byte) {
	before := must(pod.servedSerial(t, bundle))(t)
	pod.renewCertificate(t)
	eventually(t, "the new certificate is served", func() error {
		again, err := pod.projectVolumes(t)
		if err != nil {
			return err
		}
		if !bytes.Equal(again, bundle) {
			return fmt.Errorf("the bundle has changed to %s", again)
		}
		now, err := pod.servedSerial(t, bundle)
		check(t, err)
		if now == before {
			return fmt.Errorf("the serial is still %s", now)
		}
		return nil
	})
	pod.assertSeesShard(t, netns.Service, bundle)
}
