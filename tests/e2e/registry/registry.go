// Package registry runs distribution's OCI registry, and pushes components and signatures as `wkg oci push` and `cosign
// sign --key` do.
package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"ctrlmesh.kusionstack.io/e2e/binaries"
	"ctrlmesh.kusionstack.io/e2e/process"
)

// User and Password may pull and push where a registry requires a login.
const (
	User     = "puller"
	Password = "for-pulling"
)

// htpasswdLine has the same user, as htpasswd writes it.
const htpasswdLine = User + ":$2a$04$EQB2Y4kBsudweqiWPK1hKeAdXhEpaGR6mg9In/5In8tbFlE6ENVgq\n"

// startTimeout is generous: the program starts within a second.
const startTimeout = 30 * time.Second

// Registry is a running registry. Its content is lost when it stops.
type Registry struct {
	// Host is its address as in a reference, such as 127.0.0.1:5000. It speaks plain HTTP.
	Host string

	process *process.Process
	client  http.Client
	login   bool
}

// Spec configures a registry.
type Spec struct {
	// Dir receives the configuration and the log.
	Dir string
	// Login requires a login for every request.
	Login bool
	// Address to listen on; empty means a free loopback port.
	Address string
}

// Start runs a registry and waits until it responds.
func Start(spec Spec) (*Registry, error) {
	path, err := binaries.Path("registry")
	if err != nil {
		return nil, err
	}
	config, err := spec.writeConfiguration()
	if err != nil {
		return nil, err
	}
	child, err := process.Start(process.Spec{Name: "registry", Path: path, Args: []string{"serve", config}, LogDir: spec.Dir})
	if err != nil {
		return nil, err
	}
	r := &Registry{process: child, login: spec.Login, client: http.Client{Timeout: startTimeout}}
	if err := r.waitUntilUp(); err != nil {
		child.Kill()
		return nil, fmt.Errorf("%w\n%s", err, child.LogTail(2000))
	}
	return r, nil
}

func (s Spec) writeConfiguration() (string, error) {
	address := s.Address
	if address == "" {
		address = "127.0.0.1:0"
	}
	login := ""
	if s.Login {
		login = filepath.Join(s.Dir, "users")
		if err := os.WriteFile(login, []byte(htpasswdLine), 0o600); err != nil {
			return "", err
		}
	}
	text, err := Configuration(address, login, "")
	if err != nil {
		return "", err
	}
	file := filepath.Join(s.Dir, "registry.yaml")
	return file, os.WriteFile(file, text, 0o600)
}

// Configuration returns the program's configuration. If `users` names a htpasswd file, a login is required. Without a
// folder everything is kept in memory, where an image takes minutes to push, because the buffer is copied for each
// small part.
func Configuration(address, users, folder string) ([]byte, error) {
	storage := map[string]any{"inmemory": map[string]any{}}
	if folder != "" {
		storage = map[string]any{"filesystem": map[string]any{"rootdirectory": folder}}
	}
	config := map[string]any{
		"version": 0.1,
		"log":     map[string]any{"level": "info", "formatter": "json"},
		"storage": storage,
		"http":    map[string]any{"addr": address, "secret": "only for uploads that go on after a restart"},
	}
	if users != "" {
		config["auth"] = map[string]any{"htpasswd": map[string]any{"realm": "e2e", "path": users}}
	}
	return json.Marshal(config) // JSON is valid YAML
}

// Dial opens a connection.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Remote is a registry that another process runs.
func Remote(host string, dial Dial) *Registry {
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	return &Registry{Host: host, client: http.Client{Timeout: startTimeout, Transport: transport}}
}

var listening = regexp.MustCompile(`"msg":"listening on ([0-9.]+:[0-9]+)"`)

func (r *Registry) waitUntilUp() error {
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) && r.process.Alive() {
		text, err := os.ReadFile(r.process.LogPath)
		if err != nil {
			return err
		}
		// A second run appends to the log, so the last address counts.
		if found := listening.FindAllSubmatch(text, -1); len(found) > 0 {
			r.Host = string(found[len(found)-1][1])
			if _, err := r.do(http.MethodGet, "/v2/", "", nil, http.StatusOK); err == nil {
				return nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return errors.New("the registry did not start")
}

// Stop stops the registry. Its content is lost.
func (r *Registry) Stop() error { return r.process.Stop(process.StopGrace) }

// Alive returns whether the registry still runs.
func (r *Registry) Alive() bool { return r.process.Alive() }

// LogPath is the path of its log, which has a line for each request among others.
func (r *Registry) LogPath() string { return r.process.LogPath }

// do sends a request and expects a status code.
func (r *Registry) do(method, target, mediaType string, body []byte, want int) (*http.Response, error) {
	address, err := url.Parse("http://" + r.Host)
	if err != nil {
		return nil, err
	}
	if address, err = address.Parse(target); err != nil {
		return nil, err
	}
	request, err := http.NewRequest(method, address.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if mediaType != "" {
		request.Header.Set("Content-Type", mediaType)
	}
	if r.login {
		request.SetBasicAuth(User, Password)
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s, not %d: %s", method, target, response.Status, want, text)
	}
	return response, nil
}
