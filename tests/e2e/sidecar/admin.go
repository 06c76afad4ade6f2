package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"ctrlmesh.kusionstack.io/e2e/metrics"
)

// Status has the fields of /status that tests read.
type Status struct {
	Chain struct {
		Generation int64         `json:"generation"`
		Entries    []EntryStatus `json:"entries"`
	} `json:"chain"`
	// LeaderElections are those of renamed locks that the sidecar has seen.
	LeaderElections []LeaderElection `json:"leaderElections"`
	// Refused is a newer chain that is not in force; nil if there is none.
	Refused *Refused `json:"refused"`
	// Raw is the whole response, for messages.
	Raw string `json:"-"`
}

// LeaderElection describes one lock.
type LeaderElection struct {
	// Lock is its name at the API server.
	Lock string `json:"lock"`
	// Holder is the identity of the last known holder; empty if nobody holds the lock.
	Holder string `json:"holder"`
	// Leads is true if the holder is the pod's operator and its lease has not expired.
	Leads bool   `json:"leads"`
	Since string `json:"since"`
}

// Refused says why a chain was refused.
type Refused struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// EntryStatus is the state of one entry of the chain in force.
type EntryStatus struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// SettingsHash identifies the settings of the entry.
	SettingsHash string `json:"settingsHash"`
	Error        string `json:"error"`
	// Reports are what the plugin reports about itself, by key: a breaker's state, how often a fault fired.
	Reports map[string]json.RawMessage `json:"reports"`
}

// Status reads /status.
func (s *Sidecar) Status(ctx context.Context) (Status, error) {
	code, body, err := s.GetAdmin(ctx, "/status")
	if err != nil {
		return Status{}, err
	}
	status := Status{Raw: string(body)}
	if code != http.StatusOK {
		return status, fmt.Errorf("/status returns %d: %s", code, body)
	}
	return status, json.Unmarshal(body, &status)
}

// GetAdmin sends a GET to the admin port.
func (s *Sidecar) GetAdmin(ctx context.Context, path string) (int, []byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Admin+path, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// Metric returns [metrics.Sum] of the sidecar's current metrics.
func (s *Sidecar) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	_, body, err := s.GetAdmin(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	return metrics.Sum(body, name, labels...)
}
