// Package manager runs the real `ctrlmesh-manager` binary as its Deployment would, with the account and the permissions
// of deploy/rbac.
package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/kubelet"
	"ctrlmesh.kusionstack.io/e2e/metrics"
	"ctrlmesh.kusionstack.io/e2e/process"
)

const (
	// startDeadline covers a busy machine; an idle one needs less than a second.
	startDeadline = 60 * time.Second
	pollInterval  = 20 * time.Millisecond
	// startAttempts: another process can take a free port between choosing and binding it.
	startAttempts = 3
)

// Options of a manager. Flags may be empty.
type Options struct {
	// Name of its pod, which identifies the holder of the lock.
	Name string
	// Dir is an existing directory for the log.
	Dir string
	// Kubeconfig of the manager's account; see [Install].
	Kubeconfig string
	// LeaseSeconds is how long the lock of a dead leader stays valid. Zero means [defaultLeaseSeconds].
	LeaseSeconds int
	Flags        []string
	// Env has additional variables, NAME=value.
	Env []string
}

// LeastLeaseSeconds is the smallest value that the manager accepts (manager/src/args.rs). With it, leaders of tests that run side
// by side on two cores do not always renew their leases in time.
const LeastLeaseSeconds = 3

const defaultLeaseSeconds = 8

// Manager is a running `ctrlmesh-manager`.
type Manager struct {
	Process *process.Process
	Name    string

	health, metrics string
}

// Binary returns the path of the program: $CTRLMESH_MANAGER_BIN, or the debug build.
func Binary() (string, error) {
	return binaries.CargoBinary("ctrlmesh-manager", "ctrlmesh-manager", "CTRLMESH_MANAGER_BIN")
}

// Start runs a manager and returns once it reports that it is ready.
func Start(ctx context.Context, options Options) (*Manager, error) {
	if options.LeaseSeconds == 0 {
		options.LeaseSeconds = defaultLeaseSeconds
	}
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	var failures []error
	for range startAttempts {
		m, err := startOnce(ctx, binary, options)
		if err == nil {
			return m, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// authorityEnv sets certificate authorities only for a manager that pulls from registries: the image of other managers
// may have none.
func authorityEnv(flags []string) []string {
	if slices.ContainsFunc(flags, func(flag string) bool { return strings.Contains(flag, "-registry") }) {
		return nil
	}
	return []string{"SSL_CERT_FILE=/nonexistent", "SSL_CERT_DIR=/nonexistent"}
}

func startOnce(ctx context.Context, binary string, options Options) (*Manager, error) {
	m := &Manager{Name: options.Name}
	var err error
	if m.health, err = process.FreeAddress(); err != nil {
		return nil, err
	}
	if m.metrics, err = process.FreeAddress(); err != nil {
		return nil, err
	}
	args := []string{
		"--pod-name=" + options.Name, "--namespace=" + Namespace,
		"--health-probe-bind-address=" + m.health, "--metrics-bind-address=" + m.metrics,
		"--lease-seconds=" + strconv.Itoa(options.LeaseSeconds), "--sidecar-port=" + kubelet.AdminPort,
	}
	m.Process, err = process.Start(process.Spec{
		Name: options.Name, Path: binary, Args: append(args, options.Flags...), LogDir: options.Dir,
		// The webhook server uses any free port, and the manager stops without delay; flags can override both.
		Env: slices.Concat(authorityEnv(options.Flags), options.Env,
			[]string{"KUBECONFIG=" + options.Kubeconfig, "WEBHOOK_PORT=0", "CTRLMESH_SHUTDOWN_DELAY_SECONDS=0"}),
	})
	if err != nil {
		return nil, err
	}
	if err := m.waitReady(ctx); err != nil {
		m.Process.Kill()
		return nil, err
	}
	return m, nil
}

func (m *Manager) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		_, last := getAdmin(ctx, m.health, "/readyz")
		if last == nil {
			return nil
		}
		select {
		case <-m.Process.Done():
			return fmt.Errorf("%s exited before it was ready (%v):\n%s", m.Name, m.Process.Err(), m.Process.LogTail(4096))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w:\n%s", m.Name, last, m.Process.LogTail(4096))
		case <-tick.C:
		}
	}
}

// Metric returns [metrics.Sum] of the manager's current metrics.
func (m *Manager) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	body, err := getAdmin(ctx, m.metrics, "/metrics")
	if err != nil {
		return 0, err
	}
	return metrics.Sum(body, name, labels...)
}

// IsLeading returns whether this manager's controllers run. A manager that has ended does not lead.
func (m *Manager) IsLeading(ctx context.Context) bool {
	leads, err := m.Metric(ctx, "ctrlmesh_manager_leader")
	return err == nil && leads == 1
}

// Stop terminates the manager gracefully.
func (m *Manager) Stop() error { return m.Process.Stop(process.StopGrace) }

func getAdmin(ctx context.Context, address, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s returns %s: %s", path, response.Status, body)
	}
	return body, nil
}
