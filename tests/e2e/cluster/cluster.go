// Package cluster runs a control plane for tests: etcd and kube-apiserver on loopback, with their own keys.
//
// There is no controller-manager, scheduler or kubelet; tests create by hand what these would create (see the node
// package). The programs come from the binaries package.
package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/process"
)

const (
	// readyDeadline covers a busy machine; an idle one needs 3 s.
	readyDeadline = 90 * time.Second
	pollInterval  = 25 * time.Millisecond
	// drainGrace is the time that kube-apiserver gets to finish ordinary requests.
	drainGrace = 2 * time.Second
	// startAttempts: another process can take a free port between choosing and binding it.
	startAttempts = 3
)

// Options of a cluster; the zero value is valid.
type Options struct {
	// APIServerFlags are appended to kube-apiserver's command line, for example `--goaway-chance=0.02`.
	APIServerFlags []string
	// Machine, if set, is where the programs run. Then the cluster can have nodes and pods.
	Machine *Machine
}

// Machine describes namespaces other than this process's own, in which a cluster runs: see the realnode package.
type Machine struct {
	Spawner *process.Spawner
	// Dial connects to an address as seen from there.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Address of the API server, `127.0.0.1:port`, for this process and for programs there.
	Address string
	// IP is the address at which nodes and pods reach the API server. It may not be a loopback address.
	IP string
}

const (
	// ServiceCIDR is the address range of Services.
	ServiceCIDR = "10.96.0.0/16"
	// apiService is the first address: the `kubernetes` Service.
	apiService = "10.96.0.1"
	// KubeletClient is the user with which the API server calls kubelets.
	KubeletClient = "kube-apiserver-kubelet-client"
)

// Cluster is a running control plane.
type Cluster struct {
	// Dir holds data, keys and logs.
	Dir string
	// Address of the API server, `127.0.0.1:port`. It survives a restart.
	Address string
	// CA signs the API server's certificate and those of its clients.
	CA *Authority

	options   Options
	etcd      *process.Process
	etcdURL   string
	apiserver *process.Process
	admin     KeyPair
}

// Start starts a control plane and returns when it is ready. The directory must exist; the caller removes it.
func Start(ctx context.Context, dir string, options Options) (*Cluster, error) {
	c := &Cluster{Dir: dir, options: options}
	if err := c.writeFiles(); err != nil {
		return nil, fmt.Errorf("write keys and policies: %w", err)
	}
	var failures []error
	for range startAttempts {
		if err := c.start(ctx); err != nil {
			c.Stop()
			failures = append(failures, err)
			continue
		}
		return c, nil
	}
	return nil, errors.Join(failures...)
}

func (c *Cluster) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if m := c.options.Machine; m != nil {
		c.Address = m.Address
		return c.StartAPIServer(ctx)
	}
	address, err := process.FreeAddress()
	if err != nil {
		return err
	}
	c.Address = address
	return c.StartAPIServer(ctx)
}

// spawnerAndClient returns where the programs start, and a client that reaches them there.
func (c *Cluster) spawnerAndClient() (*process.Spawner, *http.Client) {
	if m := c.options.Machine; m != nil {
		return m.Spawner, &http.Client{Transport: &http.Transport{DialContext: m.Dial, DisableKeepAlives: true}}
	}
	return nil, http.DefaultClient
}

// Stop ends both programs. It may be called twice.
func (c *Cluster) Stop() {
	// The data is thrown away, so nothing has to be shut down in order.
	for _, p := range []*process.Process{c.apiserver, c.etcd} {
		if p != nil {
			p.Kill()
		}
	}
}

// Logs returns the end of both programs' logs, for a failed test.
func (c *Cluster) Logs(bytes int) string {
	text := ""
	for _, p := range []*process.Process{c.etcd, c.apiserver} {
		if p != nil {
			text += fmt.Sprintf("--- %s (%s)\n%s\n", p.Name, p.LogPath, p.LogTail(bytes))
		}
	}
	return text
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	path, err := binaries.Path("etcd")
	if err != nil {
		return err
	}
	client, err := process.FreeAddress()
	if err != nil {
		return err
	}
	peer, err := process.FreeAddress()
	if err != nil {
		return err
	}
	c.etcdURL = "http://" + client
	data := filepath.Join(c.Dir, "etcd")
	if err := os.RemoveAll(data); err != nil { // left by a failed attempt
		return err
	}
	place, prober := c.spawnerAndClient()
	c.etcd, err = process.Start(process.Spec{
		Name: "etcd", Path: path, LogDir: c.Dir, Spawner: place,
		Args: []string{
			"--name=e2e", "--data-dir=" + data, "--log-level=warn", "--unsafe-no-fsync",
			"--listen-client-urls=" + c.etcdURL, "--advertise-client-urls=" + c.etcdURL,
			"--listen-peer-urls=http://" + peer, "--initial-advertise-peer-urls=http://" + peer,
			"--initial-cluster=e2e=http://" + peer,
		},
	})
	if err != nil {
		return err
	}
	return waitReady(ctx, c.etcd, prober, c.etcdURL+"/health")
}

// StartAPIServer starts kube-apiserver, or restarts it on the same port, and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	path, err := binaries.Path("kube-apiserver")
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return err
	}
	place, _ := c.spawnerAndClient()
	c.apiserver, err = process.Start(process.Spec{
		Name: "kube-apiserver", Path: path, LogDir: c.Dir, Spawner: place,
		Args: append(c.apiServerFlags(port), c.options.APIServerFlags...),
	})
	if err != nil {
		return err
	}
	client, err := c.HTTPClient()
	if err != nil {
		return err
	}
	return waitReady(ctx, c.apiserver, client, c.URL()+"/readyz")
}

// StopAPIServer stops kube-apiserver as a rollout does: it stops listening and sends GOAWAY. After drainGrace it is
// killed, which breaks open watches, because it would wait a minute for them.
func (c *Cluster) StopAPIServer() error {
	if err := c.apiserver.Stop(drainGrace); err != nil && !errors.Is(err, process.ErrStopTimeout) {
		return err
	}
	return nil
}

// KillAPIServer kills kube-apiserver: open connections break.
func (c *Cluster) KillAPIServer() { c.apiserver.Kill() }

func (c *Cluster) apiServerFlags(port string) []string {
	return append([]string{
		"--secure-port=" + port,
		"--etcd-servers=" + c.etcdURL,
		"--cert-dir=" + c.Dir,
		"--tls-cert-file=" + c.path("apiserver.crt"), "--tls-private-key-file=" + c.path("apiserver.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--kubelet-certificate-authority=" + c.path("ca.crt"),
		"--kubelet-client-certificate=" + c.path("kubelet-client.crt"),
		"--kubelet-client-key=" + c.path("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.path("service-account.crt"),
		"--service-account-signing-key-file=" + c.path("service-account.key"),
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--shutdown-delay-duration=0s",
		"--audit-policy-file=" + c.path("audit-policy.yaml"), "--audit-log-path=" + c.path("audit.log"),
		// Tests read the whole log; by default the API server rotates it after 100 MB.
		"--audit-log-maxsize=10000",
	}, c.networkFlags()...)
}

// networkFlags are the flags that depend on whether there are nodes and pods.
func (c *Cluster) networkFlags() []string {
	if m := c.options.Machine; m != nil {
		return []string{
			"--bind-address=0.0.0.0", "--advertise-address=" + m.IP,
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		}
	}
	return []string{
		"--bind-address=127.0.0.1",
		// The endpoints of the `kubernetes` Service may not be a loopback address.
		"--endpoint-reconciler-type=none",
		"--authorization-mode=RBAC",
		// Without a controller-manager nobody creates the `default` service account that a pod would need.
		"--disable-admission-plugins=ServiceAccount",
	}
}

func (c *Cluster) writeFiles() error {
	var err error
	if c.CA, err = NewAuthority("e2e-ca"); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("audit-policy.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("ca.crt"), c.CA.PEM, 0o600); err != nil {
		return err
	}
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", apiService}
	if m := c.options.Machine; m != nil {
		names = append(names, m.IP)
	}
	apiserver, err := c.CA.IssueServing("kube-apiserver", names...)
	if err != nil {
		return err
	}
	kubeletClient, err := c.CA.IssueClient(KubeletClient)
	if err != nil {
		return err
	}
	if c.admin, err = c.CA.IssueClient("admin", "system:masters"); err != nil {
		return err
	}
	serviceAccount, err := serviceAccountKey()
	if err != nil {
		return err
	}
	for name, pair := range map[string]KeyPair{
		"apiserver": apiserver, "kubelet-client": kubeletClient, "admin": c.admin, "service-account": serviceAccount,
	} {
		if err := os.WriteFile(c.path(name+".crt"), pair.Cert, 0o600); err != nil {
			return err
		}
		if err := os.WriteFile(c.path(name+".key"), pair.Key, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

// TLSConfig is for a client that trusts the API server and has no client certificate.
func (c *Cluster) TLSConfig() *tls.Config {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.CA.PEM)
	return &tls.Config{RootCAs: pool, ServerName: "localhost"}
}

// HTTPClient is an administrator's client without client-go.
func (c *Cluster) HTTPClient() (*http.Client, error) {
	certificate, err := tls.X509KeyPair(c.admin.Cert, c.admin.Key)
	if err != nil {
		return nil, err
	}
	config := c.TLSConfig()
	config.Certificates = []tls.Certificate{certificate}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, DisableCompression: true,
	}}, nil
}

// URL of the API server.
func (c *Cluster) URL() string { return "https://" + c.Address }

// waitReady polls until the URL answers 200, and gives up early if the program has ended.
func waitReady(ctx context.Context, p *process.Process, client *http.Client, url string) error {
	last := errors.New("no request was sent")
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if last = checkOK(ctx, client, url); last == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("%s exited before it was ready (%v):\n%s", p.Name, p.Err(), p.LogTail(4096))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last: %w):\n%s", p.Name, ctx.Err(), last, p.LogTail(4096))
		case <-tick.C:
		}
	}
}

func checkOK(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", response.Status, body)
	}
	return nil
}
