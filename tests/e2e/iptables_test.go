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

// This file has a controller's client as it is in a cluster, knowing the Service's address and the ca.crt that it is given and
// nothing of us, in a network whose traffic is redirected to a real sidecar, before a real API server.

const (
	tlsNamespace = "tls"
	adminAddress = "127.0.0.1:5441"
)

// tlsPod is what stands for a pod whose traffic is redirected.
type tlsPod struct {
	*netns.Network
	mesh    *mesh
	volume  *kubelet.Volume
	sidecar *bytes.Buffer
}

func TestRedirectedClient(t *testing.T) {
	t.Parallel()
	network := netns.ForTest(t, netns.Service+"/32")
	m := newMesh(t)
	makeNamespace(t, m.controlPlane, tlsNamespace, nil)
	// Kubernetes' controller manager makes it in every namespace.
	putClusterCA(t, m)
	leader(t, m.start(t, "manager-0"))
	makeRedirectedPod(t, m)
	p := &tlsPod{Network: network, mesh: m}
	bundle := p.projected(t)
	p.serveAPI(t)
	p.start(t, sidecar.Namespace, shardRule("s0", "a"))
	for _, shard := range []string{"a", "b"} {
		object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: "of-" + shard, Labels: map[string]string{"shard": shard}}}
		_, err := m.client.CoreV1().ConfigMaps(tlsNamespace).Create(t.Context(), object, meta.CreateOptions{})
		check(t, err)
	}
	for _, host := range []string{netns.Service, "kubernetes.default.svc"} {
		t.Run("by "+host, func(t *testing.T) { p.seesItsShard(t, host, bundle) })
	}
	t.Run("another authority is not enough", func(t *testing.T) {
		_, err := p.list(t, netns.Service, m.cluster.CA.PEM)
		if err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("with the cluster's authority alone: %v", err)
		}
	})
	t.Run("certificates change under way", func(t *testing.T) { p.rotates(t, bundle) })
}

// TestServingCertificates is the manager's part, where no network can be made, too.
func TestServingCertificates(t *testing.T) {
	t.Parallel()
	p := &tlsPod{mesh: newMesh(t)}
	makeNamespace(t, p.mesh.controlPlane, tlsNamespace, nil)
	putClusterCA(t, p.mesh)
	leader(t, p.mesh.start(t, "manager-0"))
	makeRedirectedPod(t, p.mesh)
	bundle := p.projected(t)
	maps, secrets := p.mesh.client.CoreV1().ConfigMaps(tlsNamespace), p.mesh.client.CoreV1().Secrets(tlsNamespace)
	edited := must(maps.Get(t.Context(), "ctrlmesh-ca", meta.GetOptions{}))(t)
	edited.Data["ca.crt"] = string(p.mesh.cluster.CA.PEM)
	_, err := maps.Update(t.Context(), edited, meta.UpdateOptions{})
	check(t, err)
	before := must(secrets.Get(t.Context(), "ctrlmesh-serving-cert", meta.GetOptions{}))(t).Data["tls.crt"]
	p.sign(t)
	eventually(t, "the bundle is as it was, the certificate another one", func() error {
		again, err := p.project(t)
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

// project does what kubelet does with the Secret, and returns what the ConfigMap says.
func (p *tlsPod) project(t *testing.T) ([]byte, error) {
	maps, secrets := p.mesh.client.CoreV1().ConfigMaps(tlsNamespace), p.mesh.client.CoreV1().Secrets(tlsNamespace)
	bundle, err := maps.Get(t.Context(), "ctrlmesh-ca", meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	secret, err := secrets.Get(t.Context(), "ctrlmesh-serving-cert", meta.GetOptions{})
	if err != nil {
		return nil, err
	}
	if p.volume == nil {
		p.volume = must(kubelet.NewVolume(filepath.Join(netns.OpenDir(t), "tls")))(t)
	}
	_, err = p.volume.Sync(secret.Data)
	return []byte(bundle.Data["ca.crt"]), err
}

// projected waits for both.
func (p *tlsPod) projected(t *testing.T) []byte {
	t.Helper()
	var bundle []byte
	eventually(t, "the namespace has bundle and certificate", func() (err error) {
		bundle, err = p.project(t)
		return err
	})
	return bundle
}

// sign has the manager sign another certificate.
func (p *tlsPod) sign(t *testing.T) {
	t.Helper()
	secrets := p.mesh.client.CoreV1().Secrets(manager.Namespace)
	secret := must(secrets.Get(t.Context(), "ctrlmesh-mesh-ca-"+tlsNamespace, meta.GetOptions{}))(t)
	secret.Data["tls.crt"] = nil
	_, err := secrets.Update(t.Context(), secret, meta.UpdateOptions{})
	check(t, err)
}

// serveAPI has the API server answer at the Service's address.
func (p *tlsPod) serveAPI(t *testing.T) {
	listener := must(p.Listen(net.JoinHostPort(netns.Service, "443")))(t)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", p.mesh.cluster.Address)
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

// start runs the init container, then the sidecar, as the user that it is in a pod.
func (p *tlsPod) start(t *testing.T, namespace string, rule sidecar.ShardRule) {
	program := netns.OpenProgram(t, must(sidecar.Binary())(t))
	output, err := p.RunInit(program, netns.OnlyNetAdmin(), netns.ServedAt(netns.Service))
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	token := must(p.mesh.cluster.ServiceAccountToken(t.Context(), "default", "sidecar"))(t)
	dir := netns.OpenDir(t)
	server := &api.Cluster{Server: "https://" + netns.Service, CertificateAuthorityData: p.mesh.cluster.CA.PEM}
	kubeconfig := must(cluster.WriteKubeconfig(dir, "sidecar", server, &api.AuthInfo{Token: token}))(t)
	check(t, os.Chown(kubeconfig, netns.SidecarUser, netns.SidecarUser))
	chain := must(kubelet.NewVolume(filepath.Join(dir, "chain")))(t)
	document := shardChain(t, 1, rule)
	document.Namespace = namespace
	check(t, chain.Write(must(document.Files(nil))(t)))
	p.sidecar = &bytes.Buffer{}
	command := exec.Command(program, "--api-address=127.0.0.1:5443,[::1]:5443", "--admin-address="+adminAddress,
		"--kubeconfig="+kubeconfig, "--chain-dir="+chain.Dir, "--tls-dir="+p.volume.Dir)
	command.Env = []string{"POD_NAME=operator-0", "POD_NAMESPACE=" + namespace}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: netns.SidecarUser, Gid: netns.SidecarUser}}
	command.Stdout, command.Stderr = io.Discard, p.sidecar
	check(t, p.Start(command))
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil || t.Failed() {
			t.Errorf("the sidecar: %v\n%s", err, p.sidecar)
		}
	})
	admin := &http.Client{Transport: &http.Transport{DialContext: p.as(netns.ControllerUser, adminAddress), DisableKeepAlives: true}}
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

// as connects a user of the pod to one address, whatever name leads there.
func (p *tlsPod) as(user int, address string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx, user, address) }
}

// list is what a client in a cluster does: it has the Service's host, and a ca.crt.
func (p *tlsPod) list(t *testing.T, host string, ca []byte) (string, error) {
	t.Helper()
	config := &rest.Config{
		Host: "https://" + net.JoinHostPort(host, "443"), TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		Timeout: patience, Dial: p.as(netns.ControllerUser, net.JoinHostPort(netns.Service, "443")),
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

func (p *tlsPod) seesItsShard(t *testing.T, host string, bundle []byte) {
	names, err := p.list(t, host, bundle)
	check(t, err)
	if names != "of-a" {
		t.Errorf("it sees %q", names)
	}
}

// serial of the certificate that a new connection meets. Who asks trusts the bundle, by every name of the API server.
func (p *tlsPod) serial(t *testing.T, bundle []byte) (string, error) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	serial := ""
	for _, name := range []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost", "127.0.0.1", "::1"} {
		connection, err := p.Dial(ctx, netns.ControllerUser, net.JoinHostPort(netns.Service, "443"))
		if err != nil {
			return "", err
		}
		client := tls.Client(connection, &tls.Config{RootCAs: roots, ServerName: name})
		err = client.HandshakeContext(ctx)
		connection.Close()
		if err != nil {
			return "", fmt.Errorf("by the name %s: %w", name, err)
		}
		serial = client.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	return serial, nil
}

// rotates shows that another certificate reaches new connections of clients that know nothing of it.
func (p *tlsPod) rotates(t *testing.T, bundle []byte) {
	before := must(p.serial(t, bundle))(t)
	p.sign(t)
	eventually(t, "another certificate is served", func() error {
		again, err := p.project(t)
		if err != nil {
			return err
		}
		if !bytes.Equal(again, bundle) {
			return fmt.Errorf("whom to trust has changed to %s", again)
		}
		now, err := p.serial(t, bundle)
		check(t, err)
		if now == before {
			return fmt.Errorf("it is still %s", now)
		}
		return nil
	})
	p.seesItsShard(t, netns.Service, bundle)
}
