// Package sidecar runs the real `ctrlmesh-proxy` binary as in a pod: kubeconfig, chain volume, labels file, ports.
//
// It plays the manager (chain.go). Volumes come from the kubelet package.
package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/process"
)

const (
	// startDeadline covers compiling every plugin of the first chain on a busy machine, without optimisation.
	startDeadline = 120 * time.Second
	// applyDeadline is for a new chain: compile, instantiate, configure, swap.
	applyDeadline = 120 * time.Second
	pollInterval  = 10 * time.Millisecond
)

// Options of a sidecar. Dir must exist and be used by this sidecar only.
type Options struct {
	Name string
	Dir  string
	// Namespace of the pod; the constant Namespace if empty.
	Namespace  string
	Kubeconfig string
	// CacheDir keeps compiled plugins; sidecars of a node share it.
	CacheDir string
	// Chain is in the volume before the process starts; nil means an empty volume.
	Chain *Chain
	// Labels of the pod.
	Labels map[string]string
	// Signer signs each chain; its public key is given to the sidecar.
	Signer *Signer
	// PublicKey must have signed the chain, if somebody else signs.
	PublicKey string
	// Pod provides volumes that kubelet fills, and the address to listen on. Without it the package fills its own
	// volumes, and chooses free ports of 127.0.0.1.
	Pod *kubelet.Pod
	// TLSDir has tls.crt and tls.key, for controllers that need TLS.
	TLSDir string
	Flags  []string
	// ControlGroup is the directory of the sidecar's control group; empty means that of the test.
	ControlGroup string
	// WithoutChainDir omits the chain directory: the chain can never change.
	WithoutChainDir bool
	// StoppedByTest means that the test itself stops the sidecar.
	StoppedByTest bool
}

// Sidecar is a running `ctrlmesh-proxy`.
type Sidecar struct {
	// API is the address for controllers, Admin the one of /status; both `127.0.0.1:port`.
	API, Admin string
	// Volume is the chain's directory.
	Volume  *kubelet.Volume
	Process *process.Process

	options Options
	labels  *kubelet.Volume
	// printed is closed when the program has closed its standard output.
	printed chan struct{}
}

// Binary returns the path of the program: $CTRLMESH_PROXY_BIN, or the debug build.
func Binary() (string, error) {
	return binaries.CargoBinary("ctrlmesh-proxy", "ctrlmesh-proxy", "CTRLMESH_PROXY_BIN")
}

// Start runs a sidecar and returns once it reports that it is ready.
func Start(ctx context.Context, options Options) (*Sidecar, error) {
	if options.Namespace == "" {
		options.Namespace = Namespace
	}
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	s := &Sidecar{options: options, printed: make(chan struct{})}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.Process, err = process.Start(process.Spec{
		Name: options.Name, Path: binary, Args: s.arguments(), LogDir: options.Dir, Stdout: write, ControlGroup: options.ControlGroup,
		Env: []string{"POD_NAME=" + options.Name, "POD_NAMESPACE=" + s.options.Namespace},
	})
	if err := errors.Join(err, write.Close()); err != nil {
		return nil, errors.Join(err, read.Close())
	}
	ready := make(chan error, 1)
	go s.readOutput(read, ready)
	select {
	case err := <-ready:
		if err != nil {
			s.Process.Kill()
			return nil, fmt.Errorf("%s did not get ready: %w\n%s", options.Name, err, s.Process.LogTail(8192))
		}
		return s, s.waitReady(ctx)
	case <-ctx.Done():
		s.Process.Kill()
		return nil, ctx.Err()
	case <-time.After(startDeadline):
		s.Process.Kill()
		return nil, fmt.Errorf("%s did not get ready within %s\n%s", options.Name, startDeadline, s.Process.LogTail(8192))
	}
}

// waitReady polls /readyz: the addresses are printed before the first chain is in force.
func (s *Sidecar) waitReady(ctx context.Context) error {
	err := s.poll(ctx, startDeadline, "200 of /readyz", func(ctx context.Context) error {
		code, body, err := s.GetAdmin(ctx, "/readyz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	})
	if err != nil {
		s.Process.Kill()
	}
	return err
}

func (s *Sidecar) prepare() error {
	if pod := s.options.Pod; pod != nil {
		s.Volume, s.labels = pod.Chain, pod.PodInfo
		return nil
	}
	var err error
	if s.Volume, err = kubelet.NewVolume(filepath.Join(s.options.Dir, "chain")); err != nil {
		return err
	}
	if s.labels, err = kubelet.NewVolume(filepath.Join(s.options.Dir, "podinfo")); err != nil {
		return err
	}
	if err := s.SetLabels(s.options.Labels); err != nil {
		return err
	}
	if s.options.Chain != nil {
		return s.Publish(*s.options.Chain)
	}
	return nil
}

func (s *Sidecar) arguments() []string {
	api, admin := "127.0.0.1:0", "127.0.0.1:0"
	if pod := s.options.Pod; pod != nil {
		api, admin = net.JoinHostPort(pod.IP, kubelet.APIPort), net.JoinHostPort(pod.IP, kubelet.AdminPort)
	}
	args := []string{"--api-address=" + api, "--admin-address=" + admin, "--kubeconfig=" + s.options.Kubeconfig}
	if s.options.CacheDir != "" {
		args = append(args, "--cache-dir="+s.options.CacheDir)
	}
	if pod := s.options.Pod; pod != nil {
		args = append(args, "--state-dir="+filepath.Join(pod.Dir, "state"))
	}
	if !s.options.WithoutChainDir {
		args = append(args, "--chain-dir="+s.Volume.Dir, "--labels-file="+filepath.Join(s.labels.Dir, "labels"))
	}
	if s.options.Signer != nil {
		args = append(args, "--public-key="+s.options.Signer.PublicKey())
	}
	if s.options.PublicKey != "" {
		args = append(args, "--public-key="+s.options.PublicKey)
	}
	if s.options.TLSDir != "" {
		args = append(args, "--tls-dir="+s.options.TLSDir)
	}
	return append(args, s.options.Flags...)
}

// readOutput waits for the line with the addresses and then reads on, so that the pipe never fills.
func (s *Sidecar) readOutput(read *os.File, ready chan<- error) {
	defer close(s.printed)
	defer read.Close()
	lines := bufio.NewScanner(read)
	isListening := false
	for lines.Scan() {
		var line struct {
			Listening struct{ API, Admin string }
		}
		if isListening || json.Unmarshal(lines.Bytes(), &line) != nil || line.Listening.API == "" {
			continue
		}
		s.API, s.Admin = line.Listening.API, line.Listening.Admin
		isListening = true
		ready <- nil
	}
	if !isListening {
		ready <- errors.New("the sidecar closed standard output without printing its addresses")
	}
}

// Publish writes a chain into the volume, signed if the sidecar has a signer, without waiting.
func (s *Sidecar) Publish(chain Chain) error {
	chain.Namespace = s.options.Namespace
	files, err := chain.Files(s.options.Signer)
	if err != nil {
		return err
	}
	return s.Volume.Write(files)
}

// Apply publishes a chain and waits until it is in force.
func (s *Sidecar) Apply(ctx context.Context, chain Chain) error {
	if err := s.Publish(chain); err != nil {
		return err
	}
	return s.WaitStatus(ctx, fmt.Sprintf("generation %d in force", chain.Generation), func(status Status) bool {
		return status.Chain.Generation == chain.Generation
	})
}

// SetLabels rewrites the downward-API file of the pod's labels.
func (s *Sidecar) SetLabels(labels map[string]string) error {
	return s.labels.Write(kubelet.Labels(labels))
}

// Done is closed when the sidecar has exited.
func (s *Sidecar) Done() <-chan struct{} { return s.Process.Done() }

// Stop terminates the sidecar gracefully; a timeout is an error.
func (s *Sidecar) Stop() error {
	err := s.Process.Stop(process.StopGrace)
	<-s.printed
	return err
}

// WaitStatus polls /status until the condition holds.
func (s *Sidecar) WaitStatus(ctx context.Context, what string, holds func(Status) bool) error {
	return s.poll(ctx, applyDeadline, what, func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err == nil && !holds(status) {
			err = fmt.Errorf("status %s", status.Raw)
		}
		return err
	})
}

// poll retries until there is no error, and gives up at the deadline or when the sidecar has exited.
func (s *Sidecar) poll(ctx context.Context, deadline time.Duration, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-s.Process.Done():
			return fmt.Errorf("%s exited while waiting for %s\n%s", s.options.Name, what, s.Process.LogTail(8192))
		case <-ctx.Done():
			return fmt.Errorf("%s: no %s: %w\n%s", s.options.Name, what, last, s.Process.LogTail(8192))
		case <-tick.C:
		}
	}
}
