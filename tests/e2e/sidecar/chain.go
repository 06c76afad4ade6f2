package sidecar

import (
	"crypto/sha256"
	"encoding/hex"

	"sigs.k8s.io/yaml"
)

// apiVersion of the chain document that the manager writes.
const apiVersion = "chain.ctrlmesh.kusionstack.io/v1"

// Chain is the document that says which plugins a sidecar runs, in which order and with which settings.
type Chain struct {
	APIVersion string  `json:"apiVersion"`
	Namespace  string  `json:"namespace"`
	Generation int64   `json:"generation"`
	Entries    []Entry `json:"entries"`

	// Plugins has the bytes of the plugins that the entries name.
	Plugins []Plugin `json:"-"`
}

// Entry is one plugin with its settings.
type Entry struct {
	Name        string         `json:"name"`
	Plugin      string         `json:"plugin"`
	PodSelector map[string]any `json:"podSelector,omitempty"`
	Order       int            `json:"order"`
	OnFailure   string         `json:"onFailure"`
	TimeoutMs   int            `json:"timeoutMs,omitempty"`
	MemoryMiB   int            `json:"memoryMiB,omitempty"`
	Settings    any            `json:"settings"`
	Origin      Origin         `json:"origin"`
}

// Origin is the object from which an entry was made.
type Origin struct {
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
}

// Plugin is the code of a component.
type Plugin struct {
	Bytes []byte
}

// Digest is written in entries: `sha256:<hex>`.
func (p Plugin) Digest() string {
	sum := sha256.Sum256(p.Bytes)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Namespace is the default namespace of a pod and its chain.
const Namespace = "operator-demo"

// NewChain makes a document with the given entries; without any, all traffic passes unchanged.
func NewChain(generation int64, entries ...Entry) Chain {
	if entries == nil {
		entries = []Entry{}
	}
	return Chain{APIVersion: apiVersion, Namespace: Namespace, Generation: generation, Entries: entries}
}

// WithPlugins adds code for the volume.
func (c Chain) WithPlugins(plugins ...Plugin) Chain {
	c.Plugins = append(append([]Plugin(nil), c.Plugins...), plugins...)
	return c
}

// NewEntry runs a plugin with settings and `onFailure: Closed`.
func NewEntry(name string, plugin Plugin, settings any) Entry {
	return Entry{
		Name: name, Plugin: plugin.Digest(), Order: 100, OnFailure: "Closed", Settings: settings,
		Origin: Origin{Kind: "ShardingConfig", Name: name, UID: "e2e", Generation: 1},
	}
}

// YAML encodes the document.
func (c Chain) YAML() ([]byte, error) { return yaml.Marshal(c) }

// ShardRule has the settings of the shard-selector plugin.
type ShardRule struct {
	Shard              string  `json:"shard"`
	LeaderElectionName string  `json:"leaderElectionName,omitempty"`
	Limits             []Limit `json:"limits"`
	ConsistentReads    bool    `json:"consistentReads,omitempty"`
	NamedGets          string  `json:"namedGets,omitempty"`
}

// Limit narrows resources to what a label selector and hash ranges match.
type Limit struct {
	RelateResources []Resources `json:"relateResources"`
	Selector        Selector    `json:"selector"`
	HashRanges      *HashRanges `json:"hashRanges,omitempty"`
}

// HashRanges are virtual ranges of the hash of a field; `0-511` names a first and a last one.
type HashRanges struct {
	Key    string   `json:"key"`
	Ranges []string `json:"ranges"`
}

// Resources are API groups times plural resource names; `*` alone means all.
type Resources struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
}

// Selector is a Kubernetes LabelSelector.
type Selector struct {
	MatchLabels      map[string]string `json:"matchLabels,omitempty"`
	MatchExpressions []Requirement     `json:"matchExpressions,omitempty"`
}

// Requirement is one expression of a LabelSelector.
type Requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}
